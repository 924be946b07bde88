"""A process that cannot start another thread: the stack of a new one is said to be larger than any address space."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

STACK_BYTES: Final = 1 << 50


@contextmanager
def no_new_threads() -> Iterator[None]:
    """Starting a thread raises "can't start new thread"; running threads continue."""
    usual = threading.stack_size(STACK_BYTES)
    try:
        yield
    finally:
        threading.stack_size(usual)
