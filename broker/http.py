"""The HTTP side of a broker, off unless `barnabas.http.address` (--http) is set: /healthz, /readyz and /metrics.

It has no secrets and changes nothing, and like everything else it knows no authentication: bind it where it may be
read. A connection is good for one request and has a deadline for all of it, so that silence, half a request and an
answer that nobody reads end in the same way; when there are too many, the oldest makes room, so that a health check is
answered whoever else is connected.
"""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from barnabas.broker.config import parse_address
from barnabas.broker.metrics_page import MetricsPage, take_snapshot
from barnabas.storage.files import is_reserved_descriptor

if TYPE_CHECKING:
    from barnabas.broker.server import Broker

logger = logging.getLogger(__name__)

EXCHANGE_TIMEOUT_S: Final = 30.0
"""From the connection to the last byte that the peer takes."""

CONNECTIONS_MAX: Final = 32
PAGES_MAX: Final = 4
"""Of /metrics, being made or sent: a broker with many partitions fills megabytes with each."""

REQUEST_BYTES_MAX: Final = 16 * 1024
"""Request line and headers; no request has a body."""

_SHUTDOWN_TIMEOUT_S: Final = 1.0
_TEXT: Final = "text/plain; charset=utf-8"


class _Answer(NamedTuple):
    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = _TEXT


class HttpServer:
    """Serves a broker's pages from the broker's own event loop: if that hangs, the health check fails, as it should."""

    def __init__(self, broker: Broker, address: str) -> None:
        self._broker = broker
        self._host, self._port = parse_address(address)
        self._page = MetricsPage()
        self._rendering = asyncio.Lock()
        self._server: asyncio.Server | None = None
        self._exchanges: dict[_Exchange, None] = {}

    @property
    def port(self) -> int:
        """The port in use; the one asked for until `start` is done."""
        return self._port

    async def start(self) -> None:
        """Listen. Errors: OSError (address in use)."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(lambda: _Exchange(self), self._host, self._port)
        except OSError as error:
            where = f"{self._host or ''}:{self._port}"
            raise OSError(error.errno, f"cannot serve HTTP on {where}: {error.strerror}") from error
        self._port = self._server.sockets[0].getsockname()[1]
        logger.info("HTTP on %s:%d: /healthz, /readyz, /metrics", self._host or "*", self._port)

    async def stop(self) -> None:
        """Stop listening; running answers get a second."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        ending = [exchange.ended for exchange in self._exchanges if exchange.has_asked]
        if ending:
            await asyncio.wait(ending, timeout=_SHUTDOWN_TIMEOUT_S)
        for exchange in list(self._exchanges):
            exchange.abort()
        await asyncio.sleep(0)  # lets transports tell their protocols

    # What exchanges ask

    def admit(self, exchange: _Exchange) -> None:
        """Count a new connection; too many of them cost the oldest its place, those first that have not asked yet."""
        self._exchanges[exchange] = None
        if len(self._exchanges) > CONNECTIONS_MAX:
            silent = next(other for other in self._exchanges if not other.has_asked)  # the newcomer, if no other
            oldest = next(iter(self._exchanges)) if silent is exchange else silent
            oldest.close_for(f"more than {CONNECTIONS_MAX} connections to the HTTP port")

    def discard(self, exchange: _Exchange) -> None:
        self._exchanges.pop(exchange, None)

    async def answer(self, exchange: _Exchange, path: str, accept: str) -> _Answer:
        """The page of a path."""
        match path:
            case "/healthz":  # the process lives and its event loop turns
                return _Answer(b"ok\n")
            case "/readyz":  # clients are accepted
                is_ready = self._broker.is_ready
                return _Answer(b"ready\n") if is_ready else _Answer(b"not ready\n", HTTPStatus.SERVICE_UNAVAILABLE)
            case "/metrics":
                return await self._metrics(exchange, accept)
            case _:
                return _Answer(b"not found\n", HTTPStatus.NOT_FOUND)

    async def _metrics(self, exchange: _Exchange, accept: str) -> _Answer:
        exchange.holds_page = True
        holders = [other for other in self._exchanges if other.holds_page]
        for oldest in holders[:-PAGES_MAX]:
            oldest.close_for(f"more than {PAGES_MAX} connections ask for /metrics and do not read it")
        async with self._rendering:
            snapshot = take_snapshot(self._broker)
            body, content_type = await asyncio.to_thread(self._page.render, snapshot, accept)
        return _Answer(body, content_type=content_type)


class _Exchange(asyncio.Protocol):
    """One connection and its one request. `ended` is done when the connection is lost."""

    def __init__(self, server: HttpServer) -> None:
        loop = asyncio.get_running_loop()
        self.has_asked = False
        self.holds_page = False
        self.ended: asyncio.Future[None] = loop.create_future()
        self._server = server
        self._received = bytearray()
        self._task: asyncio.Task[None] | None = None
        self._deadline = loop.call_later(EXCHANGE_TIMEOUT_S, self._time_out)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is no subclass
        peer = transport.get_extra_info("peername")
        self._host = str(peer[0]) if peer else ""
        self._server.admit(self)
        if is_reserved_descriptor(transport.get_extra_info("socket").fileno()):
            self.close_for("the descriptors that are left are for files")

    def data_received(self, data: bytes) -> None:
        if self.has_asked:
            return
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0 and len(self._received) <= REQUEST_BYTES_MAX:
            return
        self.has_asked = True
        self._transport.pause_reading()  # what comes after the one request is of no interest
        head = self._received[: max(end, 0)].decode("latin-1")
        self._received.clear()
        self._task = asyncio.get_running_loop().create_task(self._answer(head))

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        self._server.discard(self)
        if self._task is not None:
            self._task.cancel()
        self.ended.set_result(None)

    def abort(self) -> None:
        """Cut the connection."""
        self._transport.abort()

    def close_for(self, reason: str) -> None:
        """Cut the connection and tell why."""
        logger.info("closing an HTTP connection from %s: %s", self._host, reason)
        self._server.discard(self)
        self.abort()

    def _time_out(self) -> None:
        self.close_for(f"it took longer than {EXCHANGE_TIMEOUT_S:g} s")

    async def _answer(self, head: str) -> None:
        try:
            method, answer = await self._answer_to(head)
        except Exception:
            logger.exception("an HTTP request of %s failed", self._host)
            method, answer = "", _Answer(b"an internal error\n", HTTPStatus.INTERNAL_SERVER_ERROR)
        start = (
            f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\nContent-Type: {answer.content_type}\r\n"
            f"Content-Length: {len(answer.body)}\r\nConnection: close\r\n\r\n"
        )
        self._transport.write(start.encode())
        if method != "HEAD":
            self._transport.write(answer.body)
        self._transport.close()

    async def _answer_to(self, head: str) -> tuple[str, _Answer]:
        """The method of a request, and its answer."""
        request_line, *headers = head.split("\r\n")
        match request_line.split(" "):
            case [("GET" | "HEAD") as method, target, version] if version.startswith("HTTP/1."):
                accept = ",".join(line.partition(":")[2] for line in headers if line.lower().startswith("accept:"))
                return method, await self._server.answer(self, target.partition("?")[0], accept)
            case [method, _, version] if version.startswith("HTTP/1."):
                return method, _Answer(b"GET is all there is\n", HTTPStatus.METHOD_NOT_ALLOWED)
        return "", _Answer(b"that is no HTTP request\n", HTTPStatus.BAD_REQUEST)
