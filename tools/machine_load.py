"""How busy this machine is: for tests whose bounds of time are wider where others wait for processors."""

import os


def load_per_processor() -> float:
    """How many processes ran, or waited to, in the last minute, for each processor: from 1 on some have waited."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)
