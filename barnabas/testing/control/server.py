"""The HTTP side of `serve --control`: requests for verbs in, JSON out.

The memory of its connections is bounded as on the port for HTTP (`barnabas/broker/http/connections.py`): each
connection serves one request.

It listens on loopback only and serves programs, never a page in a browser: it refuses a request with an Origin, or with
a Host that is no name of this machine, as in a request of a page under another name (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import contextvars
import difflib
import hmac
import ipaddress
import json
import logging
import re
import zlib
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from barnabas.broker.cli.one_broker import refusals_of_a_start
from barnabas.broker.configuration.config import ConfigError, parse_address
from barnabas.broker.http.connections import LARGE_BODY_BYTES, BodyTooLarge, HttpBounds, HttpConnections
from barnabas.network import BoundSocket, NewProtocol, OsNetwork
from barnabas.storage.os_files import is_reserved_descriptor
from barnabas.testing.control import openapi
from barnabas.testing.control.actions import Asked
from barnabas.testing.control.answers import SHAPES
from barnabas.testing.control.fields import TIMEOUT_MS_DEFAULT, Refused, accept, of_query
from barnabas.testing.control.served import ServedBrokers
from barnabas.testing.control.verb import Verb
from barnabas.testing.control.verbs import VERBS
from barnabas.testing.control.wording import in_http
from barnabas.testing.waiting.patience import Patience
from barnabas.wire.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.network.port_tls import PortTls

logger = logging.getLogger(__name__)

HANDSHAKES_MAX: Final = 32
"""The limit of handshakes of TLS at once, as on the port for HTTP."""

BODY_BYTES_MAX: Final = 4 * 1024 * 1024
BODY_OF_WAITING_BYTES_MAX: Final = LARGE_BODY_BYTES
"""A waiting request keeps its body, perhaps for minutes."""

WAITING_MAX: Final = 200
"""The maximum number of waiting requests: each has a thread, perhaps for minutes."""

WORKING_MAX: Final = 16
"""The maximum number of requests in progress; separate, so that a request that ends a wait always finds room."""

BOUNDS: Final = HttpBounds(
    "the control port", connections_max=WAITING_MAX + WORKING_MAX + 40, takes_bodies=True, may_wait=True
)
"""As many connections as requests are served, and some that have not sent a request yet."""

_READ_AHEAD_BYTES: Final = 64 * 1024
"""aiohttp keeps up to twice this of a body that is not being read."""

_SHUTDOWN_TIMEOUT_S: Final = 1.0
_JSON: Final = "application/json"
_UNHEARD: Final = logging.Logger("aiohttp.server", logging.CRITICAL + 1)
"""A logger that discards aiohttp's messages: the response contains the error."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def loopback_addresses(host: str | None) -> list[str]:
    """The addresses of a host, all of loopback. Raises ValueError if it has others, OSError if it has none."""
    found = [] if host is None else list(await OsNetwork().addresses(host))
    if not found or not all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in found):
        raise ValueError("brokers that fail on demand are for this machine alone: 127.0.0.1:PORT, [::1]:PORT")
    return found


class ControlServer:
    """Serves the verbs for `brokers` at `address`, HOST:PORT of loopback; a `token` is required from clients. With
    `tls` it serves HTTPS."""

    def __init__(
        self, brokers: ServedBrokers, address: str, token: str | None = None, tls: PortTls | None = None
    ) -> None:
        self._tls = tls
        self._brokers = brokers
        self._address = address
        self._token = token
        self._bound: list[BoundSocket] = []
        self._threads = ThreadPoolExecutor(WAITING_MAX + WORKING_MAX, thread_name_prefix="barnabas-control")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="barnabas-control-bodies")
        self._waiting = 0
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def start(self) -> None:
        """Listen. Raises ValueError for an address that is not of loopback, OSError (address in use)."""
        host, port = parse_address(self._address)
        addresses = await loopback_addresses(host)
        application = web.Application(middlewares=[self._guard])
        application.router.add_get(openapi.PATH, self._describe)
        for verb in VERBS:
            for path in verb.paths:
                application.router.add_route(verb.method, path, self._handler(verb))
        keywords: dict[str, Any] = {"access_log": None, "logger": _UNHEARD, "auto_decompress": False}
        self._runner = web.AppRunner(
            application, shutdown_timeout=_SHUTDOWN_TIMEOUT_S, handler_cancellation=True, **keywords
        )
        await self._runner.setup()
        assert self._runner.server is not None
        new_connection = partial(
            _Connection,
            self._runner.server,
            loop=asyncio.get_running_loop(),
            read_bufsize=_READ_AHEAD_BYTES,
            **keywords,
        )
        self.connections = HttpConnections(new_connection, BOUNDS, is_reserved_descriptor)
        new_protocol: NewProtocol = self.connections.new
        if self._tls is not None:
            new_protocol = self._tls.before(self.connections.new_with_tls)
        try:
            for address in addresses:
                bound = OsNetwork().bind(address, port)
                port = bound.port  # the same port on each address
                self._bound.append(bound)
                await bound.listen(new_protocol)
        except OSError as error:
            await self.stop()
            why = f"cannot serve {self._address}: {error.strerror}. Take another one (--control)"
            raise OSError(error.errno, why) from error
        host_text = f"[{addresses[0]}]" if ":" in addresses[0] else addresses[0]
        self.url = f"{'http' if self._tls is None else 'https'}://{host_text}:{port}"

    def stop_listening(self) -> None:
        """Accept no more connections; existing ones stay."""
        for bound in self._bound:
            bound.close()

    async def stop(self) -> None:
        """Stop for good: requests under way get a second."""
        self.stop_listening()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        for threads in (self._threads, self._reader):
            threads.shutdown(wait=False, cancel_futures=True)

    # --- access -----------------------------------------------------------------------------------

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Close the connection after the response."""
        response = await self._answer(request, handler)
        self.connections.is_answered(request.transport)
        response.force_close()
        return response

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse unauthorised requests, and describe errors in one line of JSON."""
        try:
            self._check(request)
            return await handler(request)
        except Refused as refused:
            return _error(refused.status, str(refused), is_usage=refused.is_usage)
        except web.RequestPayloadError as error:
            return _error(400, _what_is_broken(str(error)))
        except web.HTTPException as error:
            return _error(error.status, self._what_would_be_right(request, error))
        except Exception:
            logger.exception("a request for %r failed", request.path)
            return _error(500, "the request failed: see the log for the error")

    def _check(self, request: web.Request) -> None:
        host = request.headers.get("Host", "")
        if not _is_of_this_machine(host):
            raise Refused(403, f"Host {host[:100]!r} is no name of this machine: ask 127.0.0.1 or localhost")
        if "Origin" in request.headers:
            raise Refused(403, "this is for programs, not for pages in browsers: send no Origin")
        if self._token is not None and not _has_token(request.headers.get("Authorization", ""), self._token):
            raise Refused(401, "this needs the token that the server was started with: Authorization: Bearer TOKEN")

    def _what_would_be_right(self, request: web.Request, error: web.HTTPException) -> str:
        if isinstance(error, web.HTTPMethodNotAllowed):
            allowed = " or ".join(sorted(method for method in error.allowed_methods if method != "HEAD"))
            return f"{request.path[:200]} is asked with {allowed}, not with {request.method[:20]}"
        if isinstance(error, web.HTTPNotFound):
            return _no_path(request.method, request.path)
        return error.reason

    # --- requests ---------------------------------------------------------------------------------

    async def _describe(self, request: web.Request) -> web.Response:
        return _json(openapi.document(has_token=self._token is not None))

    def _handler(self, verb: Verb) -> Handler:
        async def handle(request: web.Request) -> web.Response:
            arguments = await self._arguments(verb, request)
            return await self._do(verb, Asked(self._brokers, request.match_info, arguments))

        return handle

    async def _arguments(self, verb: Verb, request: web.Request) -> dict[str, Any]:
        """The arguments of a request, from the query of a GET or else from the body. Raises Refused.

        A thread parses large and compressed bodies, one at a time: four megabytes of JSON may be a million lists.
        """
        query = {name: request.query.getall(name) for name in request.query}
        if verb.method == "GET":
            self.connections.has_asked(request.transport)
            return accept(verb.name, verb.fields, of_query(verb.name, verb.fields, query))
        if query:
            raise Refused(400, f"{verb.name} takes its fields as JSON in the body: {', '.join(query)[:100]}")
        bytes_max = BODY_OF_WAITING_BYTES_MAX if verb.waits else BODY_BYTES_MAX
        try:
            body = await self.connections.body(request, bytes_max)
            self.connections.has_asked(request.transport)
            encoding = request.headers.get("Content-Encoding", "")
            read = partial(_arguments, verb, body, encoding, request.content_type, bytes_max)
            if encoding or len(body) > LARGE_BODY_BYTES:
                return await asyncio.get_running_loop().run_in_executor(self._reader, read)
            return read()
        except BodyTooLarge:
            raise Refused(413, f"a request of {verb.name} has {bytes_max} bytes at most") from None

    async def _do(self, verb: Verb, asked: Asked) -> web.Response:
        """Run the verb in a thread: it may wait for a broker, or for a client's action, while the HTTP client is
        connected.
        """
        if verb.waits and self._waiting >= WAITING_MAX:
            raise Refused(503, f"{WAITING_MAX} requests wait already: let one of them end first")
        loop, patience = asyncio.get_running_loop(), Patience()
        timeout_s: float = asked.arguments.pop("deadline", TIMEOUT_MS_DEFAULT / 1000)
        call = partial(contextvars.copy_context().run, _call, verb, asked, patience)
        work = loop.run_in_executor(self._threads, call)
        if not verb.waits and not verb.has_deadline:
            return await work
        self._waiting += verb.waits
        work.add_done_callback(partial(self._has_waited, verb))
        deadline = loop.call_later(timeout_s, patience.end) if verb.has_deadline else None
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:  # the client has gone
            patience.end()
            raise
        finally:
            if deadline is not None:
                deadline.cancel()

    def _has_waited(self, verb: Verb, work: asyncio.Future[web.Response]) -> None:
        self._waiting -= verb.waits
        if not work.cancelled():
            work.exception()  # ignored if the client has gone


class _Connection(web.RequestHandler):
    """A client's connection; bytes that are no request get the response of a request that is refused."""

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        response = _error(status, _what_is_broken(message or "it broke off"))
        response.force_close()
        return response


def _what_is_broken(message: str) -> str:
    return f"this is no request of HTTP: {message.splitlines()[0].rstrip(':')[:200]}"


def _call(verb: Verb, asked: Asked, patience: Patience) -> web.Response:
    patience.use()
    try:
        answer = verb.call(asked)
    except Exception as error:  # noqa: BLE001 - reported, or raised again
        if verb.has_deadline and patience.is_over:
            return _in_vain(verb, asked)
        return _refusal(verb, asked, error)
    if verb.answer in SHAPES:
        return _json(answer, verb.status)
    return web.Response(text=answer, status=verb.status, content_type=verb.answer)


def _refusal(verb: Verb, asked: Asked, error: Exception) -> web.Response:
    """The response for an error. Raises errors that are not the client's.

    A refusal is no exception here: the future of this thread would keep it, and the traceback the future, with all
    fields of the request, until a garbage collection.
    """
    if isinstance(error, Refused):
        return _error(error.status, str(error), is_usage=error.is_usage)
    if isinstance(error, ApiError):
        if verb.has_deadline and error.error is ErrorCode.REQUEST_TIMED_OUT:
            return _in_vain(verb, asked, error)
        return _json({"error": _line(str(error)), "kafka_error": error.error.name}, 409)
    if isinstance(error, TimeoutError):
        first, _, more = in_http(str(error)).partition("\n")
        return _json({"error": first, "report": more}, 504)
    if isinstance(error, ConfigError):
        return _error(400, _line(str(error)), is_usage=True)
    if isinstance(error, ValueError | TypeError):
        return _error(400, _line(f"{verb.name}: {error}"), is_usage=True)
    if isinstance(error, (RuntimeError, *refusals_of_a_start())):
        return _error(409, _line(f"{verb.name}: {error}"))
    raise error


def _in_vain(verb: Verb, asked: Asked, error: ApiError | None = None) -> web.Response:
    """The response after a timeout, of the verb or of a broker."""
    Patience().use()
    told: dict[str, str] = {"error": f"{verb.name} timed out: report has the state of the broker"}
    if error is not None:
        told["kafka_error"] = error.error.name
    with suppress(RuntimeError, Refused):  # it has stopped meanwhile
        told["report"] = in_http(asked.served.owner.report())
    return _json(told, 504)


def _arguments(verb: Verb, body: bytes, encoding: str, content_type: str, bytes_max: int) -> dict[str, Any]:
    """The arguments in a body. Raises Refused, BodyTooLarge."""
    return accept(verb.name, verb.fields, _of_json(verb, _decoded(body, encoding, bytes_max), content_type))


def _of_json(verb: Verb, body: bytes, content_type: str) -> Mapping[str, Any]:
    """The fields in a body. Raises Refused."""
    if not body:
        return {}
    if content_type != _JSON:
        raise Refused(415, f"Content-Type is to be {_JSON}, not {content_type[:100]}")
    try:
        given = json.loads(body, parse_constant=_no_constant)
        json.dumps(given, ensure_ascii=False).encode()  # a lone surrogate has no encoding
    except json.JSONDecodeError as error:
        raise Refused(400, f"the body is no JSON: {error.msg}, line {error.lineno} column {error.colno}") from None
    except (ValueError, RecursionError):
        raise Refused(400, "the body is no JSON") from None
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise Refused(400, f'the body of {verb.name} is to be a JSON object, such as {{"times": 1}}')
    return given


def _decoded(body: bytes, encoding: str, bytes_max: int) -> bytes:
    """A body without its content encoding. Raises Refused, BodyTooLarge."""
    if encoding.lower() in ("", "identity"):
        return body
    if encoding.lower() not in ("gzip", "deflate"):
        raise Refused(
            415, f"Content-Encoding {encoding[:100]!r} is not known here: send the body as it is, or with gzip"
        )
    decoder = zlib.decompressobj(zlib.MAX_WBITS | 32)  # with the header of either
    try:
        found = decoder.decompress(body, bytes_max + 1)
    except zlib.error:
        found = b""
    if len(found) > bytes_max:
        raise BodyTooLarge
    if not decoder.eof:
        raise Refused(400, "the body is not what its Content-Encoding says: send it as it is, without one")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(name)


def _is_of_this_machine(host: str) -> bool:
    match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]]+)(?::\d+)?", host)
    if match is None:
        return False
    name = match[1].strip("[]").lower()
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _has_token(authorization: str, token: str) -> bool:
    scheme, _, given = authorization.partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())


def _no_path(method: str, path: str) -> str:
    last = path.rstrip("/").rpartition("/")[2]
    verbs = [verb for verb in VERBS if not verb.path.endswith("}")]
    for found in ([verb for verb in verbs if verb.method == method], verbs):
        words = {verb.path.rpartition("/")[2] for verb in found}
        if near := difflib.get_close_matches(last, words, 1):
            of_word = [verb for verb in found if verb.path.endswith(f"/{near[0]}")]
            meant = max(of_word, key=lambda verb: difflib.SequenceMatcher(None, path[:200], verb.path).ratio())
            return f"there is nothing at {path[:200]!r}: did you mean {meant.name}?"
    return f"there is nothing at {path[:200]!r}: GET {openapi.PATH} lists what there is"


def _line(text: str) -> str:
    return in_http(" ".join(text.split("\n")))


def _error(status: int, text: str, *, is_usage: bool = False) -> web.Response:
    response = _json({"error": text, **({"usage": True} if is_usage else {})}, status)
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _json(content: object, status: int = 200) -> web.Response:
    text = json.dumps(content, ensure_ascii=False, allow_nan=False)
    return web.Response(text=f"{text}\n", status=status, content_type=_JSON)
