"""One administrator's request on its way through the controller, and what its answer is if it takes too long."""

import asyncio
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

Answer = TypeVar("Answer")


class CancellableTimer(Protocol):
    """A scheduled call that may be called off."""

    def cancel(self) -> None: ...


class Timers(Protocol):
    """The part of the broker's timers that the controller uses."""

    def call_later(self, delay_ms: int, callback: Callable[[], None], /) -> CancellableTimer: ...


class AdminRequest(Generic[Answer]):
    """The promise of an answer, kept by the controller in two steps.

    `decide`: everything is checked and written, nobody can undo it. `finish`: the brokers have applied it. If the time
    is up in between, the answer is `on_timeout(decision)`, before the decision `on_timeout(None)`; the work goes on.
    With a timeout of zero or less the answer comes with the decision, which is how clients ask not to wait.
    """

    def __init__(self, timers: Timers, timeout_ms: int, on_timeout: Callable[[Answer | None], Answer]) -> None:
        self._on_timeout = on_timeout
        self._reply: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._decision: Answer | None = None
        self._waits = timeout_ms > 0
        self._timer = timers.call_later(timeout_ms, self._time_out) if self._waits else None

    async def answer(self) -> Answer:
        try:
            return await self._reply
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def decide(self, decision: Answer) -> None:
        self._decision = decision
        if not self._waits:
            self._time_out()

    def finish(self, answer: Answer) -> None:
        if not self._reply.done():
            self._reply.set_result(answer)

    def fail(self, error: Exception) -> None:
        if not self._reply.done():
            self._reply.set_exception(error)

    def _time_out(self) -> None:
        if not self._reply.done():
            self._reply.set_result(self._on_timeout(self._decision))
