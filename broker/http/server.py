"""The HTTP side of a broker, off unless `barnabas.http.address` (--http) is set: /healthz, /readyz and /metrics.

It has no secrets and changes nothing, and like everything else it knows no authentication: bind it where it may be
read. `connections.py` bounds what strangers can hold of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from barnabas.broker.configuration.config import parse_address
from barnabas.broker.http.connections import HttpConnections
from barnabas.broker.http.metrics_page import MetricSources, MetricsPage, take_snapshot

logger = logging.getLogger(__name__)

REST_FACTOR: Final = 3
"""After a page of /metrics the next one waits three times as long as that took to make: whoever asks in a loop gets a
quarter of a processor at most.
"""

_SHUTDOWN_TIMEOUT_S: Final = 1.0

_UNHEARD: Final = logging.Logger("aiohttp.server", logging.CRITICAL + 1)
"""aiohttp logs a traceback for whatever a stranger sends that is no HTTP; the answer tells it to who has to know."""


class HttpServer:
    """Serves the pages of the broker that `sources` belong to, from its own event loop: if that hangs, the health check
    fails, as it should."""

    def __init__(self, sources: MetricSources, address: str) -> None:
        self._sources = sources
        self._host, self._port = parse_address(address)
        self._page = MetricsPage()
        self._rendering = asyncio.Lock()
        self._next_page_at = 0.0
        self._server: asyncio.Server | None = None
        self._runner: web.AppRunner | None = None

    @property
    def port(self) -> int:
        """The port in use; the one asked for until `start` is done."""
        return self._port

    async def start(self) -> None:
        """Listen. Errors: OSError (address in use)."""
        application = web.Application(middlewares=[self._one_request])
        application.router.add_get("/healthz", self._healthz)
        application.router.add_get("/readyz", self._readyz)
        application.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(
            application,
            access_log=None,
            logger=_UNHEARD,
            shutdown_timeout=_SHUTDOWN_TIMEOUT_S,
            lingering_time=0,
        )
        await self._runner.setup()
        assert self._runner.server is not None
        self.connections = HttpConnections(self._runner.server)
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self.connections.new, self._host, self._port)
        except OSError as error:
            await self.stop()
            where = f"{self._host or ''}:{self._port}"
            raise OSError(error.errno, f"cannot serve HTTP on {where}: {error.strerror}") from error
        self._port = self._server.sockets[0].getsockname()[1]
        logger.info("HTTP on %s:%d: /healthz, /readyz, /metrics", self._host or "*", self._port)

    async def stop(self) -> None:
        """Stop listening; running answers get a second."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @web.middleware
    async def _one_request(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Tell that a request has come, and have its answer be the connection's last."""
        self.connections.has_asked(request.transport)
        try:
            response = await handler(request)
        except web.HTTPException as error:
            error.force_close()
            raise
        except Exception:
            logger.exception("an HTTP request of %s failed", request.remote)
            response = web.Response(text="an internal error\n", status=500)
        response.force_close()
        return response

    async def _healthz(self, request: web.Request) -> web.Response:
        """The process lives and its event loop turns."""
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        """Clients are accepted."""
        if self._sources.is_ready():
            return web.Response(text="ready\n")
        return web.Response(text="not ready\n", status=503)

    async def _metrics(self, request: web.Request) -> web.Response:
        self.connections.holds_page(request.transport)
        loop = asyncio.get_running_loop()
        async with self._rendering:
            await asyncio.sleep(self._next_page_at - loop.time())
            started = loop.time()
            snapshot = take_snapshot(self._sources)
            accept = request.headers.get("Accept", "")
            body, content_type = await asyncio.to_thread(self._page.render, snapshot, accept)
            self._next_page_at = loop.time() + REST_FACTOR * (loop.time() - started)
        return web.Response(body=body, headers={"Content-Type": content_type})
