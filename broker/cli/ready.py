"""The line on standard output that tells the starter of a process that clients may connect."""

import logging
import sys

logger = logging.getLogger(__name__)


def print_ready(line: str) -> None:
    """Print it. The process serves without it, too, if there is no standard output, or it cannot be written."""
    try:
        print(line, flush=True)
    except OSError as error:
        logger.warning("standard output does not take the ready line: %s", error.strerror)
        sys.stdout = None  # or Python would try again when it exits
