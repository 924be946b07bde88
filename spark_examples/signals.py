"""The handling of SIGINT (Ctrl-C) and SIGTERM, the same in all programs."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
INTERRUPTED: Final = 130
"""The exit status of a program that a signal has cut off in the middle of its work."""


def raise_interrupts() -> None:
    """Make either signal raise KeyboardInterrupt."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.default_int_handler)


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set; a second one ends the program, in the middle of whatever it does."""
    stop = threading.Event()

    def handle(_: int, __: FrameType | None) -> None:
        if stop.is_set():
            sys.exit(INTERRUPTED)
        stop.set()

    before = {number: signal.signal(number, handle) for number in STOP_SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_with(status: int) -> int:
    """The status of a program that has nothing left to do but exit: a signal that comes now ends it with that, too."""
    sys.stdout.flush()
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: os._exit(status))
    return status
