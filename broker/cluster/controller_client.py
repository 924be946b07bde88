"""Requests of this broker to the controller, whichever broker that is: ISR proposals, producer ids, topics, controlled
shutdown.

Each API has a connection of its own, as in Kafka: a connection's requests are served one after the other, and if a disk
is full, the creation of a topic may take until its timeout. Commits must not wait for that.
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
"""The delay before the controller is tried again after a failure: the first one, and the limit of its doubling."""

Answer = Callable[[Any], Awaitable[Any]]


class OwnController(Protocol):
    """This broker's `Controller`, which is the cluster's controller or on standby."""

    @property
    def is_active(self) -> bool:
        """Whether this broker's controller is the cluster's."""
        ...


class ControllerClient:
    """Sends requests to the cluster's controller, and repeats them while there is none, or another one has taken over.

    Args:
        controller: this broker's own, which is called directly while it is active.
        answers: its methods, by API key.
        metadata: has the id of the controller otherwise.
        peers: connections to other brokers.
        clock, timers: limit the time of the attempts.
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
        """The controller's response. A request whose response was lost is sent again, so that it may be carried out
        twice.

        Errors: ApiError REQUEST_TIMED_OUT, when no controller has responded within `timeout_ms`.
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
    """The name of the connection for a request; each API has its own, created by its first request."""
    return f"to-controller-{messages.API_NAMES[request.API_KEY]}"
