"""From a frame to the parts of its reply: header, version check, decode, handler, encode; the error boundary is here.

A frame whose key or version is not served closes its connection, as Kafka does (SocketServer.parseRequestHeader),
except ApiVersions, whose reply tells the client what to ask instead (KIP-511). An exception that a handler did not
foresee is logged and closes the connection too: the client retries, whereas UNKNOWN_SERVER_ERROR would end a producer.
"""

import asyncio
import logging
import struct
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.network.connection import Connection
from barnabas.broker.network.outcome import CloseConnection, Delayed, Outcome
from barnabas.broker.network.reply_queue import Parts
from barnabas.broker.observability.metrics import RequestMetrics
from barnabas.broker.services import Services
from barnabas.clock import Clock
from barnabas.wire import codec, headers, messages
from barnabas.wire.errors import ProtocolError
from barnabas.wire.schema import Message

logger = logging.getLogger(__name__)

PRODUCE_KEY = 0

REQUEST_BYTES_MAX = 8 * 1024 * 1024
"""Of every request but Produce: what is decoded becomes objects, several times as large. The largest requests of real
clients, SyncGroup of a leader of thousands of members, could not be stored beyond the size of a batch, 1 MiB."""

LARGE_REPLIES = frozenset((9, 11, 15, 16, 19, 32, 35, 61, 65, 66))
"""APIs whose replies may be megabytes: OffsetFetch, JoinGroup, CreateTopics, what describes and lists. (Fetch has its
own bound.)"""

_REPLY_LENGTH = struct.Struct(">i")


class _Route:
    """Everything that is needed to serve one (API, version), compiled on its first request."""

    __slots__ = ("decode", "encode", "handle", "pack_header")

    def __init__(self, handler: Handler, version: int) -> None:
        api = messages.api(handler.key)
        self.handle = handler.handle
        self.decode: Callable[..., tuple[Any, int]] = codec.decoder(api.request_class, version)
        self.encode: Callable[[Any, list[Any]], None] = codec.encoder(api.response_class, version)
        self.pack_header: Callable[[int], bytes] = headers.response_header_packer(handler.key, version)


class Dispatcher:
    """Turns request frames into reply parts for every connection of one broker.

    `find_handler` gives the handler of an API key, None for one that is not served; `clock` is that of sockets.
    """

    def __init__(
        self, services: Services, find_handler: Callable[[int], Handler | None], clock: Clock, metrics: RequestMetrics
    ) -> None:
        self.clock = clock
        self.metrics = metrics
        self._services = services
        self._find_handler = find_handler
        self._routes: dict[tuple[int, int], _Route] = {}
        self._large_replies = asyncio.Lock()

    def dispatch(self, frame: memoryview | bytearray, connection: Connection) -> Outcome:
        """Serve one request.

        Returns the reply's parts, None where there is no reply, a coroutine or `Delayed` (whose `resume` returns one of
        these) where the connection must wait, or a future where it need not (the ordered stage is done). Raises
        ProtocolError or CloseConnection when the connection must be closed. Views of `frame` are not kept.
        """
        started_ns = time.perf_counter_ns()
        header = headers.parse_request_header(frame)
        key, version = header.api_key, header.api_version
        if len(frame) > REQUEST_BYTES_MAX and key != PRODUCE_KEY:
            raise ProtocolError(f"a request of {len(frame)} bytes with API key {key}; {REQUEST_BYTES_MAX} are allowed")
        route = self._routes.get((key, version)) or self._route(key, version)
        if route is None:
            return self._unsupported_version(key, header.correlation_id)
        request, _ = route.decode(frame, header.body_position)
        context = RequestContext(
            self._services,
            key,
            version,
            header.correlation_id,
            header.client_id,
            connection.listener_name,
            connection.client_host,
            connection.connection_id,
        )
        return self._answer(route, context, started_ns, len(frame), route.handle, request, context)

    def _route(self, key: int, version: int) -> _Route | None:
        """The route of a served API and version; None at a version that is not served but answered."""
        handler = self._find_handler(key)
        if handler is None:
            raise ProtocolError(f"API key {key} is not served")
        if not handler.min_version <= version <= handler.max_version:
            if handler.unsupported_version is not None:
                return None
            raise ProtocolError(
                f"version {version} of API key {key} is not served ({handler.min_version} to {handler.max_version} are)"
            )
        route = self._routes[key, version] = _Route(handler, version)
        if key in LARGE_REPLIES:
            route.handle = partial(self._handle_in_turn, handler.handle)
        return route

    async def _handle_in_turn(self, handle: Callable[..., Any], request: Message, context: RequestContext) -> Any:
        """Handle a request whose reply may be large: one in a round of the event loop."""
        async with self._large_replies:
            await asyncio.sleep(0)
            response = handle(request, context)
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
        """Have a request handled, or what was delayed resumed, and encode the response if there is one by now."""
        parts: list[Any] | None = None
        try:
            response = handle(*arguments)
            if isinstance(response, Message):
                parts = [b""]
                route.encode(response, parts)
            elif response is not None:
                return self._answer_later(route, context, started_ns, request_bytes, response)
            size = 0
            if parts is not None:
                header = route.pack_header(context.correlation_id)
                size = len(header) + sum(map(len, parts))
                parts[0] = _REPLY_LENGTH.pack(size) + header
            self.metrics.record(context.api_key, time.perf_counter_ns() - started_ns, request_bytes, size)
        except (CloseConnection, ProtocolError):
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
        outcome = self._await(response, context, answer)
        return asyncio.ensure_future(outcome) if isinstance(response, asyncio.Future) else outcome

    async def _await(
        self, response: Awaitable[Any], context: RequestContext, answer: Callable[..., Outcome]
    ) -> Parts | None:
        try:
            known = await response
        except (CloseConnection, ProtocolError):
            raise
        except Exception as error:
            raise self._unforeseen(context, error) from error
        if context.api_key not in LARGE_REPLIES:
            return cast("Parts | None", answer(lambda: known))
        # One after the other, and when those who were cut have given their memory back; others have their turn between.
        async with self._large_replies:
            await asyncio.sleep(0)
            while self._services.connections.is_crowded:
                await self._services.connections.has_room.wait()
            return cast("Parts | None", answer(lambda: known))

    def _unforeseen(self, context: RequestContext, error: Exception) -> CloseConnection:
        logger.error(
            "request failed: API key %d version %d from %s",
            context.api_key,
            context.api_version,
            context.client_host,
            exc_info=error,
        )
        return CloseConnection(f"an internal error ({type(error).__name__}) while serving API key {context.api_key}")

    def _unsupported_version(self, key: int, correlation_id: int) -> Parts:
        handler = self._find_handler(key)
        assert handler is not None
        assert handler.unsupported_version is not None
        body = codec.encode(handler.unsupported_version(), 0)
        header = headers.response_header(key, 0, correlation_id)
        return [_REPLY_LENGTH.pack(len(header) + len(body)) + header + body]
