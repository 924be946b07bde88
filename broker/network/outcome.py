"""What becomes of a request, as the connection that received it sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from barnabas.broker.network.reply_queue import Parts
from barnabas.clock import Clock
from barnabas.wire.schema import Message

if TYPE_CHECKING:
    from barnabas.broker.network.connection import Connection


class CloseConnection(Exception):
    """Raised by a handler that can answer only by closing (a failed Produce with acks=0,
    KafkaApis.sendResponseCallback), or whose `response` is to be the connection's last (a refused SaslAuthenticate,
    SaslServerAuthenticator). `reply` has the parts of that one as soon as it is encoded."""

    def __init__(self, reason: str, response: Message | None = None) -> None:
        super().__init__(reason)
        self.response = response
        self.reply: Parts | None = None


@dataclass(slots=True)
class Delayed:
    """An answer that has to wait for something but needs no coroutine for it (Kafka's DelayedOperation).

    When `ready` is done, `resume()` gives what a handler gives: the response, or a coroutine. `ready` is cancelled when
    nobody wants the answer any more. (On its way to the connection, `Dispatcher` puts the encoding into `resume`.)
    """

    ready: asyncio.Future[None]
    resume: Callable[[], Any]


Outcome = Parts | None | Awaitable[Parts | None] | Delayed
"""The parts of a reply; None where the protocol has none; what has to be awaited for either."""


Serve = Callable[["memoryview | bytearray", "Connection"], Outcome]
"""What serves a request frame of a connection, as `RequestServer.dispatch` does."""

Interceptor = Callable[[Serve, "memoryview | bytearray", "Connection"], Outcome]
"""What stands between connections and the broker while a test wants it: it is given each request frame, has it or
another one served, or none, and gives the outcome. It keeps no view of the frame."""


class RequestServer(Protocol):
    """What serves the requests of connections (`api/dispatch.py`); deadlines of sockets follow its `clock`."""

    clock: Clock

    def dispatch(self, frame: memoryview | bytearray, connection: Connection) -> Outcome:
        """Serve one request. Raises ProtocolError or CloseConnection when the connection must be closed."""
        ...
