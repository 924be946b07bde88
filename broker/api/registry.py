"""The declaration of a handler file; ApiVersions and dispatch are computed from these declarations."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from barnabas.broker.network.outcome import Delayed
from barnabas.wire.reader_source import ELEMENTS_MAX
from barnabas.wire.schema import Message

if TYPE_CHECKING:
    from barnabas.broker.api.context import RequestContext

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


class WaitsFor(Enum):
    """The event that a request of an API may wait for, however long its client allows."""

    OTHER_CLIENTS = 1
    """A request of another client, as a Fetch waits for a Produce."""
    CONTROLLER = 2
    """A write of the controller to the metadata store, which may be unavailable."""


@dataclass(frozen=True, slots=True)
class Handler(Generic[Request, Response]):
    """One API: its key, the versions served, and the function that serves them.

    A handler file declares the classes of its messages: `HANDLER: Handler[HeartbeatRequest, HeartbeatResponse] = ...`.

    `handle` is called with the decoded request and its context, in the order in which a connection's requests arrived.
    It returns the response, or None if the protocol has no response (Produce with acks=0); or a coroutine or `Delayed`:
    then the connection's next request waits until it is done; or a future (a task): then the ordered part is done, the
    connection's next request starts at once, and responses are still sent in order.

    `advertised_min` is the lowest version listed by ApiVersions when it is lower than the lowest one served (Produce,
    KAFKA-18659). `unsupported_version()` is the response, of version 0, to a request of a version that is not served;
    without it such a request closes its connection. `has_large_replies` means that responses may be megabytes: they are
    built one after the other, and not while unread responses use too much memory. (Fetch has its own limit.)

    Large requests that wait for something (`waits_for`) do not keep others from being served. With `elements_at_once`,
    more topics, partitions and tagged fields than that make a request a large one, and not its bytes: their number is
    unlimited (Produce, whose records stay bytes). A request from another broker may have `elements_of_brokers`, where
    clients may have ELEMENTS_MAX (Fetch, in which a replica names all partitions that it follows). Responses of an API
    whose handler `counts_errors` are not searched for errors again. An API that `is_inter_broker` is for brokers alone:
    requests on other listeners fail with CLUSTER_AUTHORIZATION_FAILED. From a broker a request may have any size, as
    the first one to a new broker names all partitions; large ones that may be from a broker without a secret have a
    limit of their own.

    `handle` asks the authorizer, if there is one. `handle_unasked` serves the requests of a broker without one instead,
    for the APIs of which each call counts (Produce, Fetch).
    """

    key: int
    min_version: int
    max_version: int
    handle: "Callable[[Request, RequestContext], Response | Awaitable[Response | None] | Delayed | None]"
    handle_unasked: Callable[..., Any] | None = None
    advertised_min: int | None = None
    unsupported_version: Callable[[], Response] | None = None
    has_large_replies: bool = False
    waits_for: WaitsFor | None = None
    elements_at_once: int | None = None
    elements_of_brokers: int = ELEMENTS_MAX
    counts_errors: bool = False
    is_inter_broker: bool = False
