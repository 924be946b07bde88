"""The pages of a broker: /healthz, /readyz and /metrics, and a page at / that lists them."""

from __future__ import annotations

import asyncio
from html import escape
from typing import Final

from aiohttp import web

import barnabas
from barnabas.broker.http.figures import MetricSources, take_snapshot
from barnabas.broker.http.joining import Joining
from barnabas.broker.http.metrics_page import MetricsPage
from barnabas.broker.http.routes import Route
from barnabas.threads import Threads

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


class Pages:
    """The pages of the broker that `sources` belong to; `metrics_page` builds the page of /metrics."""

    def __init__(self, sources: MetricSources, threads: Threads, metrics_page: MetricsPage | None = None) -> None:
        self._sources = sources
        self._threads = threads
        self._page = MetricsPage() if metrics_page is None else metrics_page
        self._rendering = asyncio.Lock()
        self._next_page_at = 0.0
        services = sources.services
        self.joining = Joining(services.metadata, services.node_id, sources.is_ready)

    def routes(self) -> tuple[Route, ...]:
        return (
            Route("GET", "/", self._index),
            Route("GET", "/healthz", self._healthz),
            Route("GET", "/readyz", self._readyz),
            Route("GET", "/metrics", self._metrics, has_large_responses=True),
        )

    async def _index(self, request: web.Request, _body: bytes) -> web.Response:
        """The page about this broker, with links to the other pages."""
        services = self._sources.services
        page = _INDEX.format(
            version=barnabas.__version__,
            node_id=services.node_id,
            cluster_id=escape(services.cluster_id),
            state="clients are accepted" if self._sources.is_ready() else "not ready",
        )
        return web.Response(text=page, content_type="text/html")

    async def _healthz(self, request: web.Request, _body: bytes) -> web.Response:
        """The process lives and its event loop runs."""
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request, _body: bytes) -> web.Response:
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

    async def _metrics(self, request: web.Request, _body: bytes) -> web.Response:
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
