"""What a handler file declares about itself; ApiVersions and dispatch are computed from these declarations."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Generic, TypeVar

from barnabas.broker.network.outcome import Delayed
from barnabas.wire.compile_reader import ELEMENTS_MAX
from barnabas.wire.schema import Message

if TYPE_CHECKING:
    from barnabas.broker.api.context import RequestContext

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


class WaitsFor(Enum):
    """What a request of an API may wait for, however long its client allows."""

    OTHER_CLIENTS = 1
    """Until other clients have asked for something, as a Fetch waits for a Produce."""
    CONTROLLER = 2
    """Until the controller has written something to the metadata store, which may be away."""


@dataclass(frozen=True, slots=True)
class Handler(Generic[Request, Response]):
    """One API: its key, the versions served, and the function that serves them.

    A handler file says the classes of its messages: `HANDLER: Handler[HeartbeatRequest, HeartbeatResponse] = ...`.

    `handle` is called with the decoded request and its context, in the order in which a connection's requests arrived.
    It returns the response, or None where the protocol has no reply (Produce with acks=0); or a coroutine or `Delayed`,
    and then the connection's next request waits until it is done; or a future (a task), and then what had to be in
    order is done: the connection's next request starts at once, and replies still leave in order.

    `advertised_min` is the lowest version listed by ApiVersions when it is lower than the lowest one served (Produce,
    KAFKA-18659). `unsupported_version()` is the response, of version 0, to a request of a version that is not served;
    without it such a request closes its connection. `has_large_replies` says that replies may be megabytes: they are
    made one after the other, and not while those that nobody reads take too much memory. (Fetch has its own bound.)
    Large requests that wait for something (`waits_for`) keep no others from being served. Where `elements_at_once` is
    given, so many topics, partitions and tagged fields make a request a large one, and not its bytes: it may have any
    number of those (Produce, whose records stay bytes). From another broker a request may have `elements_of_brokers`,
    where clients may have ELEMENTS_MAX (Fetch, in which a replica names all that it follows). An API whose handler
    `counts_errors` is not looked through for them once more. One that `is_inter_broker` is for brokers alone: whoever
    asks on another listener than theirs is answered CLUSTER_AUTHORIZATION_FAILED. Of any size it may be from a broker,
    as the first one that a new broker is told names all partitions; where it may be of a broker that need not show a
    secret, large ones have a bound of their own.
    """

    key: int
    min_version: int
    max_version: int
    handle: "Callable[[Request, RequestContext], Response | Awaitable[Response | None] | Delayed | None]"
    advertised_min: int | None = None
    unsupported_version: Callable[[], Response] | None = None
    has_large_replies: bool = False
    waits_for: WaitsFor | None = None
    elements_at_once: int | None = None
    elements_of_brokers: int = ELEMENTS_MAX
    counts_errors: bool = False
    is_inter_broker: bool = False
