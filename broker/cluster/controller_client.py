"""What this broker asks of the controller, whichever broker that is: other in-sync replicas, producer ids, topics, its
own relief before it stops.

Each API has a connection of its own, as in Kafka: a connection's requests are served one after the other, and a
creation may wait for as long as it has time, if a disk is full. What is committed must not wait for that.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

from barnabas.backoff import Backoff
from barnabas.broker.cluster.metadata import MetadataCache
from barnabas.broker.cluster.peers import Peers
from barnabas.broker.network.peer_connection import PeerUnavailable
from barnabas.clock import Clock
from barnabas.timers import Timers, pause
from barnabas.wire import messages
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.schema import Message

logger = logging.getLogger(__name__)

FIRST_BACKOFF_MS: Final = 50
LONGEST_BACKOFF_MS: Final = 1_000
"""How long after a failure the controller is looked for again: at first, then twice as long each time, up to this."""

Answer = Callable[[Any], Awaitable[Any]]


class OwnController(Protocol):
    """This broker's `Controller`, which is the cluster's controller or stands by."""

    @property
    def is_active(self) -> bool:
        """Whether this broker's controller is the cluster's."""
        ...


class ControllerClient:
    """Asks the cluster's controller, and asks again where there is none, or another one by now.

    Args:
        controller: this broker's own, which is asked directly while it is active.
        answers: how that answers, by the key of the API.
        metadata: tells who the controller is otherwise.
        peers: connections to other brokers.
        clock, timers: bound the search.
    """

    def __init__(
        self,
        controller: OwnController,
        answers: Mapping[int, Answer],
        metadata: MetadataCache,
        peers: Peers,
        clock: Clock,
        timers: Timers,
    ) -> None:
        self._controller = controller
        self._answers = answers
        self._metadata = metadata
        self._peers = peers
        self._clock = clock
        self._timers = timers

    async def send(self, request: Message, version: int, timeout_ms: int) -> Any:
        """The controller's response; a request whose answer was lost is sent again, so that it may be done twice.

        Errors: ApiError REQUEST_TIMED_OUT, when nobody who is the controller has answered within `timeout_ms`.
        """
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        backoff = Backoff(FIRST_BACKOFF_MS, LONGEST_BACKOFF_MS)
        while True:
            why_not = await self._ask(request, version, max(1, deadline_ms - self._clock.monotonic_ms()))
            if not isinstance(why_not, str):
                return why_not
            delay_ms = backoff.next_ms()
            if deadline_ms - self._clock.monotonic_ms() <= delay_ms:
                raise ApiError(ErrorCode.REQUEST_TIMED_OUT, f"The controller did not answer: {why_not}.")
            await pause(self._timers, delay_ms)

    async def _ask(self, request: Message, version: int, timeout_ms: int) -> Any:
        """The response, or, as text, why there is none."""
        if self._controller.is_active:
            response = await self._answers[request.API_KEY](request)
            who = "this broker"
        else:
            controller_id = self._metadata.controller_id
            if controller_id < 0:
                return "none is known"
            who = f"broker {controller_id}"
            try:
                connection = self._peers.connection(controller_id, _purpose(request))
                response = await connection.send(request, version, timeout_ms)
            except PeerUnavailable as error:
                return str(error)
        if getattr(response, "error_code", ErrorCode.NONE) == ErrorCode.NOT_CONTROLLER:
            return f"{who} is not the controller any more, or not yet"
        return response


def _purpose(request: Message) -> str:
    """Which connection a request goes over; it is made when the first of its API does."""
    return f"to-controller-{messages.API_NAMES[request.API_KEY]}"
