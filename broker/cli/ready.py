"""The line on standard output by which whoever has started a process knows that clients may connect."""

import logging
import sys

logger = logging.getLogger(__name__)


def print_ready(line: str) -> None:
    """Print it. What is ready serves without it, too: where there is no standard output, or it takes nothing."""
    try:
        print(line, flush=True)
    except OSError as error:
        logger.warning("standard output does not take the ready line: %s", error.strerror)
        sys.stdout = None  # or Python would try again when it exits
