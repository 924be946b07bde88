"""What a handler file declares about itself; ApiVersions and dispatch are computed from these declarations."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from barnabas.broker.network.outcome import Delayed

if TYPE_CHECKING:
    from barnabas.broker.api.context import RequestContext

Response = Any
"""A response message of `barnabas.wire.messages`, or None where the protocol has no reply (Produce with acks=0)."""


HandlerFunction = Callable[[Any, "RequestContext"], Response | Awaitable[Response] | Delayed]


@dataclass(frozen=True, slots=True)
class Handler:
    """One API: its key, the versions served, and the function that serves them.

    `handle` is called with the decoded request and its context, in the order in which a connection's requests arrived.
    It returns the response; or a coroutine or `Delayed`, and then the connection's next request waits until it is done;
    or a future (a task), and then what had to be in order is done: the connection's next request starts at once, and
    replies still leave in order.

    `advertised_min` is the lowest version listed by ApiVersions when it is lower than the lowest one served (Produce,
    KAFKA-18659). `unsupported_version()` is the response, of version 0, to a request of a version that is not served;
    without it such a request closes its connection.
    """

    key: int
    min_version: int
    max_version: int
    handle: HandlerFunction
    advertised_min: int | None = None
    unsupported_version: Callable[[], Response] | None = None
