"""The HTTP port of a broker, off unless `barnabas.http.address` (--http) is set. It serves a table of routes.

It has no authentication for clients: bind it to an address whose users may do what its routes
offer. `connections.py` limits the resources of clients.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from aiohttp import HttpVersion11, web

from barnabas.broker.configuration.config import parse_address
from barnabas.broker.http.connections import BodyTooLarge, HttpBounds, HttpConnections
from barnabas.broker.http.routes import Route
from barnabas.network import BoundSocket, Network, NewProtocol
from barnabas.timers import Timers

if TYPE_CHECKING:
    from barnabas.broker.network.tls_handshakes import HasTls

logger = logging.getLogger(__name__)

_OTHER_ADDRESS: Final = "Serve it elsewhere (--http, barnabas.http.address), or stop what uses it"

_SHUTDOWN_TIMEOUT_S: Final = 1.0

_UNHEARD: Final = logging.Logger("aiohttp.server", logging.CRITICAL + 1)
"""Discards aiohttp's log lines: it would write a traceback for all invalid data. The response informs the client."""

_BOUNDS: Final = HttpBounds()

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HttpServer:
    """Serves `routes` from its broker's event loop: if that hangs, a health check fails, as it should. It listens at
    `address` of `network`; `is_reserved_descriptor` is as in `Environment`. With `tls` it serves HTTPS, and `timers`
    end handshakes.
    """

    def __init__(
        self,
        routes: Sequence[Route],
        address: str,
        network: Network,
        bounds: HttpBounds = _BOUNDS,
        is_reserved_descriptor: Callable[[int], bool] = lambda _descriptor: False,
        tls: HasTls | None = None,
        timers: Timers | None = None,
    ) -> None:
        self._routes = routes
        self._tls = tls
        self._timers = timers
        self._host, self._port = parse_address(address)
        self._network = network
        bounds = replace(bounds, takes_bodies=any(route.body_bytes_max for route in routes))
        self.connections = HttpConnections(self._new_exchanges, bounds, is_reserved_descriptor)
        self._bound: list[BoundSocket] = []
        self._runner: web.AppRunner | None = None

    @property
    def port(self) -> int:
        """The port in use; the configured one until `start` is done."""
        return self._port

    async def start(self) -> None:
        """Listen. Errors: OSError (address in use)."""
        application = web.Application(middlewares=[self._exchange])
        for route in self._routes:
            if route.method == "GET":
                application.router.add_get(route.path, self._handler(route))
            else:
                application.router.add_route(route.method, route.path, self._handler(route))
        self._runner = web.AppRunner(application, shutdown_timeout=_SHUTDOWN_TIMEOUT_S)
        await self._runner.setup()
        try:
            await self._listen()
        except OSError as error:
            await self.stop()
            where = f"{self._host or ''}:{self._port}"
            raise OSError(error.errno, f"cannot serve HTTP on {where}: {error.strerror}. {_OTHER_ADDRESS}") from error
        self._port = self._bound[0].port
        paths = ", ".join(route.path for route in self._routes if route.path != "/")
        scheme = "HTTP" if self._tls is None else "HTTPS"
        logger.info("%s on %s:%d: %s", scheme, self._host or "*", self._port, paths)

    async def _listen(self) -> None:
        """Listen on every address of the host, or on all without a host."""
        hosts = [None] if self._host is None else await self._network.addresses(self._host)
        new_protocol = self._new_protocol()
        for host in hosts:
            bound = self._network.bind(host, self._port)
            self._bound.append(bound)
            await bound.listen(new_protocol)

    def _new_protocol(self) -> NewProtocol:
        """Makes the protocol of accepted connections. Their handshakes are limited by their own number."""
        if self._tls is None:
            return self.connections.new
        from barnabas.broker.network.tls_handshakes import TlsHandshakes

        assert self._timers is not None, "handshakes have deadlines"
        handshakes = TlsHandshakes(self._timers, self.connections.bounds.connections_max)
        return handshakes.before(self.connections.new_with_tls, self._tls)

    async def stop(self) -> None:
        """Stop listening; responses in progress get a second."""
        for bound in self._bound:
            bound.close()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def _new_exchanges(self) -> _Exchanges:
        assert self._runner is not None
        assert self._runner.server is not None
        return _Exchanges(
            self.connections,
            self._runner.server,
            loop=asyncio.get_running_loop(),
            access_log=None,
            logger=_UNHEARD,
            lingering_time=0,
        )

    @web.middleware
    async def _exchange(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer whatever a handler raises, and close the connection after its last response."""
        response: web.StreamResponse
        try:
            response = await handler(request)
        except web.HTTPException as error:
            self._close_after_last(request, error)
            raise
        except Exception:
            logger.exception("an HTTP request of %s failed", request.remote)
            response = web.Response(text="an internal error\n", status=500)
        self._close_after_last(request, response)
        return response

    def _close_after_last(self, request: web.Request, response: web.StreamResponse) -> None:
        if request.version < HttpVersion11 or self.connections.is_last(request.transport):
            response.force_close()

    def _handler(self, route: Route) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            body = await self._body(request, route.body_bytes_max) if route.body_bytes_max else b""
            self.connections.has_asked(request.transport)
            if route.has_large_responses:
                self.connections.holds_page(request.transport)
            return await route.handle(request, body)

        return handle

    async def _body(self, request: web.Request, bytes_max: int) -> bytes:
        """The body of a request. Raises HTTPException."""
        try:
            return await self.connections.body(request, bytes_max)
        except BodyTooLarge:
            told = f"the body has more than {bytes_max} bytes\n"
            raise web.HTTPRequestEntityTooLarge(bytes_max, 0, text=told) from None
        except web.RequestPayloadError as error:
            raise web.HTTPBadRequest(text=f"{error}\n") from None


class _Exchanges(web.RequestHandler):
    """aiohttp's part of a connection; it tells `connections` when a response has been written."""

    def __init__(self, connections: HttpConnections, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._connections = connections

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        transport = request.transport
        response, is_cut = await super().finish_response(request, resp, start_time)
        if response.keep_alive and not is_cut:
            self._connections.is_sent(transport)
        return response, is_cut
