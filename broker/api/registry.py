"""What a handler file declares about itself; ApiVersions and dispatch are computed from these declarations."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from barnabas.broker.api.context import RequestContext

Response = Any
"""A response message of `barnabas.wire.messages`, or None where the protocol has no reply (Produce with acks=0)."""


@dataclass(slots=True)
class Delayed:
    """An answer that has to wait for something but needs no coroutine for it (Kafka's DelayedOperation).

    When `ready` is done, `resume()` gives what a handler gives: the response, or a coroutine. `ready` is cancelled when
    nobody wants the answer any more. (On its way to the connection, `Dispatcher` puts the encoding into `resume`.)
    """

    ready: asyncio.Future[None]
    resume: Callable[[], Any]


HandlerFunction = Callable[[Any, "RequestContext"], Response | Awaitable[Response] | Delayed]


@dataclass(frozen=True, slots=True)
class Handler:
    """One API: its key, the versions served, and the function that serves them.

    `handle` is called with the decoded request and its context, in the order in which a connection's requests arrived.
    It returns the response; or a coroutine or `Delayed`, and then the connection's next request waits until it is done;
    or a future (a task), and then what had to be in order is done: the connection's next request starts at once, and
    replies still leave in order.

    `advertised_min` is the lowest version listed by ApiVersions when it is lower than the lowest one served (Produce,
    KAFKA-18659).
    """

    key: int
    min_version: int
    max_version: int
    handle: HandlerFunction
    advertised_min: int | None = None
