"""A request of an administrator's client that the controller serves: its answer, also if that takes too long."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from barnabas.timers import Timers
from barnabas.wire.errors import ApiError, ErrorCode

Answer = TypeVar("Answer")

Results = dict[str, ApiError | None]
"""The answer to a request that names topics: for each name its error, None where it succeeded."""


class AdminRequest(Generic[Answer]):
    """A request that waits for its answer, which an operation of the controller gives in two steps.

    `decide`: everything is checked and written, nobody can undo it. `finish`: the brokers have applied it. If the time
    is up in between, the answer is `on_timeout(decision)`, before the decision `on_timeout(None)`; the work goes on.
    Where the rest fails, as another broker controls the cluster by then, the answer is the decision: that one tells
    the brokers, and who asked it again would be told, say, that the topic exists.
    With a timeout of zero or less the answer comes with the decision, which is how clients ask not to wait.

    Made and awaited by the task that serves the client, answered by the controller's.
    """

    def __init__(self, timers: Timers, timeout_ms: int, on_timeout: Callable[[Answer | None], Answer]) -> None:
        self._on_timeout = on_timeout
        self._reply: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._decision: Answer | None = None
        self._waits = timeout_ms > 0
        self._timer = timers.call_later(timeout_ms, self._time_out) if self._waits else None

    async def answer(self) -> Answer:
        """Wait for the answer. Raises: what `fail` was told."""
        try:
            return await self._reply
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def decide(self, decision: Answer) -> None:
        """Note what was decided: the answer, if the brokers apply it in time."""
        self._decision = decision
        if not self._waits:
            self._time_out()

    def finish(self, answer: Answer) -> None:
        """Answer whoever asked, unless that was done before."""
        if not self._reply.done():
            self._reply.set_result(answer)

    def fail(self, error: Exception) -> None:
        """Have the request fail, unless there is an answer or a decision."""
        if self._reply.done():
            return
        if self._decision is not None:
            self._reply.set_result(self._decision)
        else:
            self._reply.set_exception(error)

    def _time_out(self) -> None:
        if not self._reply.done():
            self._reply.set_result(self._on_timeout(self._decision))


def timed_out(names: Iterable[str], decided: Results | None) -> Results:
    """The answer to a request whose time is up: REQUEST_TIMED_OUT for each name, unless another error was decided for
    it.
    """
    results: Results = decided if decided is not None else dict.fromkeys(names)
    return {name: error or ApiError(ErrorCode.REQUEST_TIMED_OUT) for name, error in results.items()}
