"""From a frame to the parts of its response: header, version check, decode, handler, encode; the error boundary is
here.

A frame with an unknown API key or version closes its connection, as in Kafka (SocketServer.parseRequestHeader), except
ApiVersions, whose response tells the client the versions to use (KIP-511). An unexpected exception of a handler is
logged and closes the connection, too: the client retries, whereas UNKNOWN_SERVER_ERROR would end a producer.
"""

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable
from functools import partial
from time import perf_counter_ns
from types import CoroutineType
from typing import Any, Protocol, cast

from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.large_replies import LargeReplies
from barnabas.broker.api.large_requests import LARGE_REQUEST_BYTES, MANY_ELEMENTS_BYTES_MAX, LargeRequests
from barnabas.broker.api.registry import Handler, WaitsFor
from barnabas.broker.api.response_errors import error_counter
from barnabas.broker.network.connection import Interceptor, Serve
from barnabas.broker.network.outcome import CloseConnection, Delayed, Outcome
from barnabas.broker.network.reply_queue import Parts
from barnabas.broker.network.session import Session
from barnabas.broker.observability.request_metrics import RequestMetrics
from barnabas.broker.security.operations import CLUSTER_NAME, Operation, ResourceType
from barnabas.broker.services import Services
from barnabas.clock import Clock
from barnabas.wire import codec, headers, messages
from barnabas.wire.errors import ErrorCode, ProtocolError, TooManyElements
from barnabas.wire.framing import kept
from barnabas.wire.reader_source import ELEMENTS_MAX
from barnabas.wire.schema import Message

logger = logging.getLogger(__name__)

REQUEST_BYTES_MAX = 8 * 1024 * 1024
"""The limit of a request's size, if its elements are not limited instead (as Produce's are): decoding creates objects
several times as large. The largest request of real clients, SyncGroup of the leader of thousands of members, could not
be stored beyond the size of a batch, 1 MiB."""

BROKER_ELEMENTS_MAX = 1 << 62
"""A controller's request may name any number of partitions; socket.request.max.bytes limits its size. Other clients'
requests have the usual limit of elements: they are decoded before they can be refused."""

_REPLY_LENGTH = struct.Struct(">i")


class Requester(Protocol):
    """The dispatcher's interface to where a request comes from: a connection, or a client in this process."""

    session: Session

    def hold(self, size: int) -> None:
        """Count the bytes of a large request that waits, or is in progress; a negative size when that is over."""
        ...


class Metering(Protocol):
    """Counts requests for the quotas of clients (`metering.py`)."""

    def context(self, *arguments: Any, **named: Any) -> RequestContext:
        """The context of a request; the arguments are those of `RequestContext`."""
        ...

    def metered(self, handler: Handler[Any, Any], handle: Callable[..., Any]) -> Callable[..., Any]:
        """The function of an API with its requests counted."""
        ...


class _Route:
    """The compiled functions for one (API, version), created by its first request."""

    __slots__ = ("decode", "decode_large", "encode", "handle", "handler", "pack_header")

    def __init__(
        self, handler: Handler[Any, Any], version: int, metrics: RequestMetrics, *, has_authorizer: bool
    ) -> None:
        api = messages.api(handler.key)
        self.handler = handler
        self.handle: Callable[..., Any] = handler.handle
        if handler.handle_unasked is not None and not has_authorizer:
            self.handle = handler.handle_unasked
        self.decode: Callable[..., tuple[Any, int]] = codec.decoder(api.request_class, version)
        self.decode_large = self.decode
        if handler.elements_at_once is not None:
            self.decode = partial(self.decode, left=handler.elements_at_once)
        if handler.is_inter_broker:
            self.handle = partial(_handle_of_broker, handler.handle, api.response_class)
        self.encode: Callable[[Any, list[Any]], None] = codec.encoder(api.response_class, version)
        self.pack_header: Callable[[int], bytes] = headers.response_header_packer(handler.key, version)
        count_errors = error_counter(api.response_class, partial(metrics.count_error, handler.key))
        if count_errors is not None and not handler.counts_errors:
            self.encode = _counting(self.encode, count_errors)


def _handle_of_broker(
    handle: Callable[..., Any], response_class: type[Any], request: Message, context: RequestContext
) -> Any:
    """Handle a request that only brokers may send: it requires ClusterAction on the cluster, as in Kafka."""
    if not context.authorize(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME):
        return response_class(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return handle(request, context)


def _elements_max(handler: Handler[Any, Any], context: RequestContext) -> int:
    """The number of elements that a large request may have. The first request of a broker's connection may be the
    largest, and if that broker has no secret, only its client id identifies it so far."""
    of_brokers = BROKER_ELEMENTS_MAX if handler.is_inter_broker else handler.elements_of_brokers
    if of_brokers > ELEMENTS_MAX and context.comes_from_another_broker():
        return of_brokers
    return ELEMENTS_MAX


def _counting(
    encode: Callable[[Any, list[Any]], None], count_errors: Callable[[Message], None]
) -> Callable[[Any, list[Any]], None]:
    def encode_and_count(response: Message, parts: list[Any]) -> None:
        encode(response, parts)
        count_errors(response)

    return encode_and_count


class Dispatcher:
    """Turns request frames into response parts for every connection of one broker.

    `find_handler` returns the handler of an API key, None for an unknown one; `clock` is that of sockets.
    """

    def __init__(
        self,
        services: Services,
        find_handler: Callable[[int], Handler[Any, Any] | None],
        clock: Clock,
        metrics: RequestMetrics,
        large_replies: LargeReplies,
    ) -> None:
        self.clock = clock
        self.metrics = metrics
        self._services = services
        self._find_handler = find_handler
        self._routes: dict[tuple[int, int], _Route] = {}
        self._large_requests = LargeRequests()
        self._large_requests_of_brokers = LargeRequests()
        self._large_requests_to_controller = LargeRequests()
        self._requests_of_many_elements = LargeRequests(MANY_ELEMENTS_BYTES_MAX)
        self._large_replies = large_replies
        self.dispatch: Serve = self.serve
        """Called by connections: `serve` itself, unless there is an interceptor."""
        self._new_context: Callable[..., RequestContext] = RequestContext
        self._metering: Metering | None = None

    def intercept(self, interceptor: Interceptor | None) -> None:
        """Pass requests from now on through `interceptor`; with None they are served directly again."""
        self.dispatch = self.serve if interceptor is None else partial(interceptor, self.serve)

    def meter(self, metering: Metering) -> None:
        """Count requests from now on for the quotas of their clients."""
        self._metering = metering
        self._new_context = metering.context
        self._routes.clear()

    def serve(self, frame: memoryview | bytearray, connection: Requester, *, is_let_in: bool = False) -> Outcome:
        """Serve one request; a large one waits until others are done, unless it `is_let_in`.

        Returns the response's parts, None where there is no response, a coroutine or `Delayed` (whose `resume` returns
        one of these) where the connection must wait, or a future where it need not (the ordered stage is done). Raises
        ProtocolError or CloseConnection when the connection must be closed. Views of `frame` are not kept.
        """
        started_ns = perf_counter_ns()
        header = headers.parse_request_header(frame)
        key = header.api_key
        version = header.api_version
        route = self._routes.get((key, version))
        if route is None:
            route = self._route(key, version)
            if route is None:
                return self._unsupported_version(key, header.correlation_id)
        size = len(frame)
        is_large = size > LARGE_REQUEST_BYTES
        if is_large and route.handler.elements_at_once is None and not connection.session.is_broker:
            if size > REQUEST_BYTES_MAX and not self._may_be_of_broker(route.handler, connection):
                raise ProtocolError(f"a request of {size} bytes with API key {key}; {REQUEST_BYTES_MAX} are allowed")
            if not is_let_in and route.handler.waits_for != WaitsFor.OTHER_CLIENTS:
                return self._let_in(self._room_for(route.handler, connection), kept(frame), connection)
        context = self._new_context(
            self._services,
            connection.session,
            key,
            version,
            header.correlation_id,
            header.client_id,
            size,
        )
        try:
            request, _ = route.decode(frame, header.body_position)
        except TooManyElements:
            if route.handler.elements_at_once is not None and not is_let_in:
                return self._let_in(self._requests_of_many_elements, kept(frame), connection)
            request, _ = route.decode_large(frame, header.body_position, _elements_max(route.handler, context))
        if not is_large:
            return self._answer(route, context, started_ns, size, route.handle, request, context)
        outcome = self._answer(route, context, started_ns, size, route.handle, request, context)
        if outcome.__class__ is CoroutineType and route.handler.elements_at_once is not None:
            connection.hold(size)
            return _holding(connection, size, cast("Awaitable[Parts | None]", outcome))
        return outcome

    def _may_be_of_broker(self, handler: Handler[Any, Any], connection: Requester) -> bool:
        """Whether a request may be the first one of another broker whose connection is not known as such yet, because
        brokers without a secret exist; brokers with one have sent it before."""
        return (
            handler.is_inter_broker
            and connection.session.listener.is_inter_broker
            and self._services.broker_secrets.believes_anybody()
        )

    def _room_for(self, handler: Handler[Any, Any], connection: Requester) -> LargeRequests:
        """The limit that a large request counts for: requests that wait for the controller, and those that brokers may
        have sent, have limits of their own, so that neither delay others nor are delayed by them."""
        if self._may_be_of_broker(handler, connection):
            return self._large_requests_of_brokers
        return self._large_requests_to_controller if handler.waits_for else self._large_requests

    async def _let_in(
        self, requests: LargeRequests, frame: memoryview | bytearray, connection: Requester
    ) -> Parts | None:
        """Serve a large request when there is room for its decoded form."""
        size = len(frame)
        connection.hold(size)
        try:
            await requests.enter(size)
        finally:
            connection.hold(-size)
        try:
            outcome = self.serve(frame, connection, is_let_in=True)
            del frame
            assert not isinstance(outcome, Delayed)  # a Fetch, which waits for other clients
            return await outcome if isinstance(outcome, Awaitable) else outcome
        finally:
            requests.leave(size)

    def _route(self, key: int, version: int) -> _Route | None:
        """The route of an API and version; None at an unknown version that gets a response."""
        handler = self._find_handler(key)
        if handler is None:
            raise ProtocolError(f"API key {key} is not served")
        if not handler.min_version <= version <= handler.max_version:
            if handler.unsupported_version is not None:
                return None
            raise ProtocolError(
                f"version {version} of API key {key} is not served ({handler.min_version} to {handler.max_version} are)"
            )
        has_authorizer = self._services.authorizer is not None
        route = self._routes[key, version] = _Route(handler, version, self.metrics, has_authorizer=has_authorizer)
        if route.handler.has_large_replies:
            route.handle = partial(self._handle_in_turn, route.handle)
        if self._metering is not None:
            route.handle = self._metering.metered(handler, route.handle)
        return route

    async def _handle_in_turn(self, handle: Callable[..., Any], request: Message, context: RequestContext) -> Any:
        """Handle a request whose response may be large."""
        response = await self._large_replies.make(partial(handle, request, context))
        return response if isinstance(response, Message) else await response

    def _answer(
        self,
        route: _Route,
        context: RequestContext,
        started_ns: int,
        request_bytes: int,
        handle: Callable[..., Any],
        *arguments: Any,
    ) -> Outcome:
        """Call a handler, or resume a delayed request, and encode the response if there is one by now."""
        parts: list[Any] | None = None
        try:
            response = handle(*arguments)
            if isinstance(response, Message):
                parts = [b""]
                route.encode(response, parts)
            elif response is not None:
                return self._answer_later(route, context, started_ns, request_bytes, response)
            if parts is None:
                size = 0
            else:
                header = route.pack_header(context.correlation_id)
                size = len(header) + sum(map(len, parts))
                parts[0] = _REPLY_LENGTH.pack(size) + header
            self.metrics.record(context.api_key, perf_counter_ns() - started_ns, request_bytes, size)
        except CloseConnection as error:
            _encode_last(error, partial(self._answer, route, context, started_ns, request_bytes))
            raise
        except ProtocolError:
            raise
        except Exception as error:
            raise self._unforeseen(context, error) from error
        return parts

    def _answer_later(
        self, route: _Route, context: RequestContext, started_ns: int, request_bytes: int, response: Any
    ) -> Outcome:
        answer = partial(self._answer, route, context, started_ns, request_bytes)
        if isinstance(response, Delayed):
            response.resume = partial(answer, response.resume)
            return response
        if not isinstance(response, asyncio.Future):
            return self._await(response, route, context, answer)
        if route.handler.has_large_replies:
            return asyncio.ensure_future(self._await(response, route, context, answer))
        return _answer_when_done(response, answer)

    async def _await(
        self, response: Awaitable[Any], route: _Route, context: RequestContext, answer: Callable[..., Outcome]
    ) -> Parts | None:
        try:
            known = await response
        except CloseConnection as error:
            _encode_last(error, answer)
            raise
        except ProtocolError:
            raise
        except Exception as error:
            raise self._unforeseen(context, error) from error
        if not route.handler.has_large_replies:
            return cast("Parts | None", answer(lambda: known))
        reply = await self._large_replies.make(partial(answer, lambda: known), self._unread_replies_have_room)
        return cast("Parts | None", reply)

    async def _unread_replies_have_room(self) -> None:
        """Wait until cancelled requests have released their memory, or readers have read."""
        while self._services.connections.is_crowded:
            await self._services.connections.has_room.wait()

    def _unforeseen(self, context: RequestContext, error: Exception) -> CloseConnection:
        self.metrics.count_error(context.api_key, ErrorCode.UNKNOWN_SERVER_ERROR)
        logger.error(
            "request failed: API key %d version %d from %s",
            context.api_key,
            context.api_version,
            context.session.client_host,
            exc_info=error,
        )
        return CloseConnection(f"an internal error ({type(error).__name__}) while serving API key {context.api_key}")

    def _unsupported_version(self, key: int, correlation_id: int) -> Parts:
        handler = self._find_handler(key)
        assert handler is not None
        assert handler.unsupported_version is not None
        self.metrics.count_error(key, ErrorCode.UNSUPPORTED_VERSION)
        body = codec.encode(handler.unsupported_version(), 0)
        header = headers.response_header(key, 0, correlation_id)
        return [_REPLY_LENGTH.pack(len(header) + len(body)) + header + body]


async def _holding(connection: Requester, size: int, outcome: Awaitable[Parts | None]) -> Parts | None:
    """Wait for the response to a request that stays in memory until then (a Produce whose records are opened in a
    thread, say): its bytes count as unfinished, or each connection could hold `socket.request.max.bytes`."""
    try:
        return await outcome
    finally:
        connection.hold(-size)


def _encode_last(error: CloseConnection, answer: Callable[..., Outcome]) -> None:
    """Encode the response after which a connection closes, if it has one."""
    if error.response is not None:
        error.reply = cast("Parts", answer(lambda: error.response))


def _answer_when_done(response: "asyncio.Future[Any]", answer: Callable[..., Outcome]) -> "asyncio.Future[Any]":
    """The outcome of a request whose response comes later, without a task that waits for it."""
    outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def done(response: "asyncio.Future[Any]") -> None:
        if response.cancelled() or outcome.done():
            outcome.cancel()
            return
        try:
            outcome.set_result(answer(response.result))
        except Exception as error:  # noqa: BLE001 - the connection handles it
            outcome.set_exception(error)

    response.add_done_callback(done)
    return outcome
