"""The parts that all tests of our own share."""

import signal

import pytest

import tests.support.hypothesis_profiles  # noqa: F401 - registers them


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Brokers run on asyncio; anyio runs a test on every loop that is installed."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def interrupts_are_heard() -> None:
    """A shell without job control starts what runs in the background with SIGINT ignored, and every program inherits
    that: Ctrl-C would then do nothing to those that tests start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
