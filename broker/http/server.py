"""The HTTP side of a broker, off unless `barnabas.http.address` (--http) is set: /healthz, /readyz and /metrics, and a
page at / that lists them.

It has no secrets and changes nothing, and like all of the broker it has no authentication for clients: bind it to an
address whose users may read it. `connections.py` limits the resources of clients.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from html import escape
from typing import Final

from aiohttp import web

import barnabas
from barnabas.broker.configuration.config import parse_address
from barnabas.broker.http.connections import EXCHANGE_TIMEOUT_S, HttpBounds, HttpConnections
from barnabas.broker.http.figures import MetricSources, take_snapshot
from barnabas.broker.http.joining import Joining
from barnabas.broker.http.metrics_page import MetricsPage
from barnabas.network import BoundSocket, Network
from barnabas.threads import Threads

logger = logging.getLogger(__name__)

REST_FACTOR: Final = 3
"""After a /metrics page the next one is delayed by three times the time that it took to build: requests in a loop use a
quarter of a processor at most.
"""

_INDEX: Final = """\
<!DOCTYPE html>
<html lang="en">
<title>Barnabas {version}, broker {node_id}</title>
<h1>Barnabas {version}</h1>
<p>Broker {node_id} of cluster {cluster_id}: {state}. Kafka clients connect to its listeners, not here.</p>
<ul>
<li><a href="/metrics">/metrics</a>: counters and gauges, for Prometheus</li>
<li><a href="/healthz">/healthz</a>: 200 while the process lives and its event loop turns</li>
<li><a href="/readyz">/readyz</a>: 200 while clients are accepted, once the replicas are in sync after a start</li>
</ul>
</html>
"""

_OTHER_ADDRESS: Final = "Serve it elsewhere (--http, barnabas.http.address), or end what is in the way"

_SHUTDOWN_TIMEOUT_S: Final = 1.0

_UNHEARD: Final = logging.Logger("aiohttp.server", logging.CRITICAL + 1)
"""Discards aiohttp's log lines: it would write a traceback for all invalid data. The response informs the client."""


class HttpServer:
    """Serves the pages of the broker that `sources` belong to, from its own event loop: if that hangs, the health check
    fails, as it should. It listens at `address` of `network`. `metrics_page` builds the page of /metrics,
    `exchange_timeout_s` is the deadline of a connection's one request, `is_reserved_descriptor` is as in `Environment`.
    """

    def __init__(
        self,
        sources: MetricSources,
        address: str,
        network: Network,
        threads: Threads,
        *,
        metrics_page: MetricsPage | None = None,
        exchange_timeout_s: float = EXCHANGE_TIMEOUT_S,
        is_reserved_descriptor: Callable[[int], bool] = lambda _descriptor: False,
    ) -> None:
        self._sources = sources
        self._threads = threads
        self._host, self._port = parse_address(address)
        self._network = network
        self._page = MetricsPage() if metrics_page is None else metrics_page
        self._exchange_timeout_s = exchange_timeout_s
        self._is_reserved_descriptor = is_reserved_descriptor
        self._rendering = asyncio.Lock()
        self._next_page_at = 0.0
        services = sources.services
        self.joining = Joining(services.metadata, services.node_id, sources.is_ready)
        self._bound: list[BoundSocket] = []
        self._runner: web.AppRunner | None = None

    @property
    def port(self) -> int:
        """The port in use; the configured one until `start` is done."""
        return self._port

    async def start(self) -> None:
        """Listen. Errors: OSError (address in use)."""
        application = web.Application(middlewares=[self._one_request])
        application.router.add_get("/", self._index)
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
        bounds = HttpBounds(exchange_timeout_s=self._exchange_timeout_s)
        self.connections = HttpConnections(self._runner.server, bounds, self._is_reserved_descriptor)
        try:
            await self._listen()
        except OSError as error:
            await self.stop()
            where = f"{self._host or ''}:{self._port}"
            raise OSError(error.errno, f"cannot serve HTTP on {where}: {error.strerror}. {_OTHER_ADDRESS}") from error
        self._port = self._bound[0].port
        self.joining.start()
        logger.info("HTTP on %s:%d: /healthz, /readyz, /metrics", self._host or "*", self._port)

    async def _listen(self) -> None:
        """Listen on every address of the host, or on all without a host."""
        hosts = [None] if self._host is None else await self._network.addresses(self._host)
        for host in hosts:
            bound = self._network.bind(host, self._port)
            self._bound.append(bound)
            await bound.listen(self.connections.new)

    async def stop(self) -> None:
        """Stop listening; responses in progress get a second."""
        self.joining.stop()
        for bound in self._bound:
            bound.close()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @web.middleware
    async def _one_request(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Note that a request has arrived, and close the connection after its response."""
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

    async def _index(self, request: web.Request) -> web.Response:
        """The page about this broker, with links to the other pages."""
        services = self._sources.services
        page = _INDEX.format(
            version=barnabas.__version__,
            node_id=services.node_id,
            cluster_id=escape(services.cluster_id),
            state="clients are accepted" if self._sources.is_ready() else "not ready",
        )
        return web.Response(text=page, content_type="text/html")

    async def _healthz(self, request: web.Request) -> web.Response:
        """The process lives and its event loop runs."""
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        """Clients are accepted, and since the start all replicas have been in sync: a rolling restart may proceed to
        the next broker. Replicas that fall behind later do not count, nor do those of partitions without a leader,
        which may wait for the next broker. A full log directory is reported, and changes nothing: its records are
        served, and other brokers need not wait for it."""
        if not self._sources.is_ready():
            return web.Response(text="not ready\n", status=503)
        lacking = self.joining.lacking()
        if lacking:
            replicas = "1 replica" if lacking == 1 else f"{lacking} replicas"
            return web.Response(text=f"not ready: {replicas} not in sync yet\n", status=503)
        complaint = self._sources.services.disk_space.complaint()
        return web.Response(text=f"ready, but {complaint}\n" if complaint else "ready\n")

    async def _metrics(self, request: web.Request) -> web.Response:
        self.connections.holds_page(request.transport)
        loop = asyncio.get_running_loop()
        async with self._rendering:
            await asyncio.sleep(self._next_page_at - loop.time())
            if request.transport is None:
                return web.Response()  # the client has gone: otherwise pages would be built for no one for a long time
            started = loop.time()
            snapshot = take_snapshot(self._sources)
            accept = request.headers.get("Accept", "")
            body, content_type = await self._threads.call(self._page.render, snapshot, accept)
            self._next_page_at = loop.time() + REST_FACTOR * (loop.time() - started)
        return web.Response(body=body, headers={"Content-Type": content_type})
