"""The process around a broker notices signals at once."""

import asyncio
import signal
from collections.abc import Callable, Iterator

import pytest

from barnabas.broker.cli.process import End
from barnabas.broker.event_loops import new_event_loop


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """The handlers of signals are those of before when a test has ended."""
    former = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGURG)}
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("new_event_loop", [asyncio.SelectorEventLoop, new_event_loop])
def test_a_signal_wakes_the_loop_that_waits_for_sockets(
    new_event_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def wakeup_descriptor() -> int:
        End()
        descriptor = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(descriptor)
        return descriptor

    loop = new_event_loop()
    try:
        assert loop.run_until_complete(wakeup_descriptor()) != -1
    finally:
        loop.close()


def test_a_signal_begins_the_end_once() -> None:
    async def two_signals() -> End:
        end = End()
        begun = list[bool]()
        end.on_begin = lambda: begun.append(end.begun.is_set())
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        await end.begun.wait()
        await asyncio.sleep(0)  # the second signal's turn
        assert begun == [True]
        return end

    assert asyncio.run(two_signals()).status == 0
