"""A request of an admin client to the controller, with its response, also after a timeout."""

import asyncio
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Generic, TypeVar

from barnabas.controller.state import TopicPartition
from barnabas.timers import Timers
from barnabas.wire.errors import ApiError, ErrorCode

Answer = TypeVar("Answer")

Results = dict[str, ApiError | None]
"""The response to a request that names topics: an error for each name, None for success."""

PartitionResults = dict[TopicPartition, ApiError | None]
"""The response to a request that names partitions: an error for each one, None for success."""


class ElectionType(Enum):
    """The type of an election; the value is Kafka's number on the wire."""

    PREFERRED = 0
    """Elects the first replica of the assignment."""
    UNCLEAN = 1
    """Elects any live replica, if there is no leader: acknowledged records that it lacks are lost."""


class AdminRequest(Generic[Answer]):
    """A request that waits for its response, which an operation of the controller provides in two steps.

    `decide`: everything is validated and written, and cannot be undone. `finish`: the brokers have applied it. After a
    timeout in between, the response is `on_timeout(decision)`, before the decision `on_timeout(None)`; the work
    continues. If the remaining steps fail because another broker has become the controller, the response is the
    decision: the new controller informs the brokers, and a repeated request would fail, for instance because the topic
    exists. If brokers had refused by then, the response is that of a timeout (`time_out`). With a timeout of zero or
    less the response comes with the decision: clients use that to avoid waiting.

    Created and awaited by the task that serves the client, completed by the controller's task.
    """

    def __init__(self, timers: Timers, timeout_ms: int, on_timeout: Callable[[Answer | None], Answer]) -> None:
        self._on_timeout = on_timeout
        self._reply: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._decision: Answer | None = None
        self._waits = timeout_ms > 0
        self._timer = timers.call_later(timeout_ms, self.time_out) if self._waits else None

    async def answer(self) -> Answer:
        """Wait for the response. Raises the error passed to `fail`."""
        try:
            return await self._reply
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def decide(self, decision: Answer) -> None:
        """Record the decision: it is the response if the brokers apply it in time."""
        self._decision = decision
        if not self._waits:
            self.time_out()

    def finish(self, answer: Answer) -> None:
        """Complete the request with a response, unless it is complete."""
        if not self._reply.done():
            self._reply.set_result(answer)

    def fail(self, error: Exception) -> None:
        """Fail the request, unless there is a response or a decision."""
        if self._reply.done():
            return
        if self._decision is not None:
            self._reply.set_result(self._decision)
        else:
            self._reply.set_exception(error)

    def time_out(self) -> None:
        """Complete the request as its timeout does, unless it is complete."""
        if not self._reply.done():
            self._reply.set_result(self._on_timeout(self._decision))


def timed_out(names: Iterable[str], decided: Results | None) -> Results:
    """The response to a request that has timed out: REQUEST_TIMED_OUT for each name, unless the decision has another
    error for it.
    """
    results: Results = decided if decided is not None else dict.fromkeys(names)
    return {name: error or ApiError(ErrorCode.REQUEST_TIMED_OUT) for name, error in results.items()}
