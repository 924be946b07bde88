"""The HTTP side of a broker, off unless `barnabas.http.address` (--http) is set: /healthz, /readyz and /metrics.

It has no secrets and changes nothing, and like everything else it knows no authentication: bind it where it may be
read.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from aiohttp import web

from barnabas.broker.config import parse_address
from barnabas.broker.metrics_page import MetricsPage, take_snapshot

if TYPE_CHECKING:
    from barnabas.broker.server import Broker

logger = logging.getLogger(__name__)

_SHUTDOWN_TIMEOUT_S = 1.0


class HttpServer:
    """Serves a broker's pages from the broker's own event loop: if that hangs, the health check fails, as it should."""

    def __init__(self, broker: Broker, address: str) -> None:
        self._broker = broker
        self._host, self._port = parse_address(address)
        self._page = MetricsPage()
        self._rendering = asyncio.Lock()
        self._runner: web.AppRunner | None = None

    @property
    def port(self) -> int:
        """The port in use; the one asked for until `start` is done."""
        return self._port

    async def start(self) -> None:
        """Listen. Errors: OSError (address in use)."""
        application = web.Application()
        application.router.add_get("/healthz", self._healthz)
        application.router.add_get("/readyz", self._readyz)
        application.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=_SHUTDOWN_TIMEOUT_S)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self._port).start()
        except OSError as error:
            await self.stop()
            where = f"{self._host or ''}:{self._port}"
            raise OSError(error.errno, f"cannot serve HTTP on {where}: {error.strerror}") from error
        self._port = self._runner.addresses[0][1]
        logger.info("HTTP on %s:%d: /healthz, /readyz, /metrics", self._host or "*", self._port)

    async def stop(self) -> None:
        """Stop listening; running answers get a second."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _healthz(self, request: web.Request) -> web.Response:
        """The process lives and its event loop turns."""
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        """Clients are accepted."""
        if self._broker.is_ready:
            return web.Response(text="ready\n")
        return web.Response(text="not ready\n", status=503)

    async def _metrics(self, request: web.Request) -> web.Response:
        async with self._rendering:
            snapshot = take_snapshot(self._broker)
            accept = request.headers.get("Accept", "")
            body, content_type = await asyncio.to_thread(self._page.render, snapshot, accept)
        return web.Response(body=body, headers={"Content-Type": content_type})
