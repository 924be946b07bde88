"""Adapts kazoo to one event loop: every response and watch event of ZooKeeper reaches the loop in the order in which
the server sent it, and the connection is suspended while the loop is stalled.

kazoo's own thread is an edge of the program: it creates real sockets and waits for them in real time, whatever clock
the broker uses. Everything else of a broker runs on its loop.
"""

import asyncio
import logging
import math
import select
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from kazoo.exceptions import AuthFailedError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol import states
from kazoo.protocol.connection import CLOSE_RESPONSE, ConnectionHandler
from kazoo.protocol.serialization import SASL, Connect

from barnabas.clock import REPEAT_MIN_MS, Clock, interval_ms, wait_s
from barnabas.controller.coordination.owner_thread import post
from barnabas.controller.coordination.session_security import UNPROTECTED, LoginExchange, LoginFailed, SessionSecurity

logger = logging.getLogger(__name__)

HEARTBEATS_PER_SESSION_TIMEOUT = 8
"""The number of heartbeats of the event loop per session timeout."""

ATTEMPTS_PER_SESSION_TIMEOUT = 4
ATTEMPT_MIN_MS = 1_000
ATTEMPT_MAX_MS = 10_000
"""The bounds of the time that a server may take to accept a connection, and then to answer the handshake: so that a
session tries several servers, or one several times, before it expires. A busy machine gets a second even if sessions
are shorter, and the wait is bounded if they are longer.
"""


class LoopHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's interface for threads, sockets and callbacks. It has no worker threads: everything goes to the event
    loop.

    It also checks whether the loop moves (`_check_loop`), in kazoo's thread before and after each wait.
    `session_timeout_ms` is the requested timeout until the server has granted one. `clock` has to be ZooKeeper's: the
    machine's. `has_ended` is set by kazoo's thread when the session is over: no connection is made any more;
    `was_closed`, when ZooKeeper has confirmed that it is closed. `security` protects the connections; `last_failure` is
    the reason why the last one could not be encrypted, or its login could not begin, `refusal` why ZooKeeper does not
    accept the login.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        session_timeout_ms: int,
        server_count: int,
        clock: Clock,
        security: SessionSecurity = UNPROTECTED,
    ) -> None:
        super().__init__()
        self._loop = loop
        self._clock = clock
        self._server_count = server_count
        self.security = security
        self.last_failure = ""
        self.refusal = ""
        self.session_timeout_ms = session_timeout_ms
        self._last_heartbeat_ms = 0
        self._timer: asyncio.TimerHandle | None = None
        self._stall_was_reported = False
        self._has_stopped = False
        self.has_ended = False
        self.was_closed = False

    @property
    def attempt_s(self) -> float:
        """The time that a server may take to accept a connection, and to answer the handshake."""
        share_ms = self.session_timeout_ms // max(ATTEMPTS_PER_SESSION_TIMEOUT, self._server_count)
        return min(max(share_ms, ATTEMPT_MIN_MS), ATTEMPT_MAX_MS) / 1000

    # -- called on the loop

    def stop_heartbeats(self) -> None:
        """Stop checking whether the loop moves: the session is over, or about to be closed."""
        self._has_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _go_by(self, session_timeout_ms: int) -> None:
        """A server has accepted the session, for the first time or again: from now on the loop has to move."""
        self.session_timeout_ms = session_timeout_ms
        if self._timer is not None:
            self._timer.cancel()
        self._beat()

    def _beat(self) -> None:
        if self._has_stopped:
            return
        self._last_heartbeat_ms = self._clock.monotonic_ms()
        pause_ms = interval_ms(self.session_timeout_ms // HEARTBEATS_PER_SESSION_TIMEOUT)
        self._timer = self._loop.call_later(wait_s(pause_ms), self._beat)

    # -- called by kazoo

    def grant(self, session_timeout_ms: int) -> None:
        """Called when a server has accepted the session, with the timeout that it grants."""
        post(self._loop, self._go_by, session_timeout_ms)

    def start(self) -> None:
        """No-op: there are no worker threads, callbacks run on the loop."""
        self._running = True

    def stop(self) -> None:
        self._running = False

    def async_result(self) -> "Answer":
        return Answer(self._loop)

    def dispatch_callback(self, callback: states.Callback) -> None:
        callback.func(*callback.args)

    def spawn(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> threading.Thread:
        thread = threading.Thread(target=func, args=args, kwargs=kwargs, name="zookeeper", daemon=True)
        thread.start()
        return thread

    def select(self, readers: Any, writers: Any, errors: Any, timeout_s: float | None = None) -> Any:
        self._check_loop()
        # What has been decrypted already is not seen by the operating system.
        decrypted = [] if self.security.encrypt is None else [each for each in readers if _has_decrypted(each)]
        readable, writable, failed = _poll(readers, writers, 0 if decrypted else timeout_s)
        self._check_loop()
        return [*readable, *(each for each in decrypted if each not in readable)], writable, failed

    def create_connection(self, address: Any, hostname: str | None = None, **_settings: Any) -> Any:
        """A connection to a server; `_settings` are kazoo's own of TLS."""
        if self.has_ended:
            raise ConnectionAbortedError("the session has ended")
        self._check_loop()
        connection: socket.socket = super().create_connection(address, timeout=self.attempt_s)
        encrypt = self.security.encrypt
        return connection if encrypt is None else self._encrypted(encrypt, connection, hostname or address[0])

    def _encrypted(self, encrypt: Callable[[Any, str], Any], connection: socket.socket, host: str) -> Any:
        """Raises OSError; kazoo hides its reason, which is logged when it is another one than last time."""
        try:
            connection.settimeout(self.attempt_s)
            encrypted = encrypt(connection, host)
        except OSError as error:
            connection.close()
            self._report(f"the connection to ZooKeeper at {host} cannot be encrypted", str(error))
            raise
        return encrypted

    def _report(self, message: str, reason: str) -> None:
        """Log a failure, unless it is that of the connection before."""
        if self.last_failure != reason:
            self.last_failure = reason
            logger.warning("%s: %s", message, reason)

    def first_message(self, login: LoginExchange, host: str) -> bytes:
        """The first message of a login to this host. Raises OSError, as `_encrypted` does."""
        try:
            return login.first()
        except OSError as error:
            self._report(f"the login to ZooKeeper at {host} cannot begin", str(error))
            raise

    def _check_loop(self) -> None:
        """Raises OSError while the loop is stalled: kazoo then drops the connection."""
        if self._timer is None or self._has_stopped:
            return
        stalled_ms = self._clock.monotonic_ms() - self._last_heartbeat_ms
        if stalled_ms <= max(self.session_timeout_ms // 2, HEARTBEATS_PER_SESSION_TIMEOUT * REPEAT_MIN_MS // 2):
            self._stall_was_reported = False
            return
        if not self._stall_was_reported:
            self._stall_was_reported = True
            logger.error(
                "the event loop has not moved for %.1f s: the connection to ZooKeeper pauses until it does",
                stalled_ms / 1000,
            )
        raise TimeoutError("the event loop stands still")


def _has_decrypted(connection: Any) -> bool:
    pending = getattr(connection, "pending", None)
    return pending is not None and pending() > 0


_POLL_MS_MAX: Final = 2**31 - 1
"""The maximum timeout of `poll`."""

Ready = tuple[list[Any], list[Any], list[Any]]


def _poll(readers: Sequence[Any], writers: Sequence[Any], timeout_s: float | None) -> Ready:
    """Same result as `select.select`, with any number of open files.

    kazoo's own version creates an epoll for each call, and waits twice for each request: eight more system calls, after
    each of which its thread may have to wait until a busy event loop releases the interpreter.
    """
    poll = select.poll()
    for reader in readers:
        poll.register(reader, select.POLLIN)
    for writer in writers:
        poll.register(writer, select.POLLOUT)
    timeout_ms = None if timeout_s is None else min(max(math.ceil(timeout_s * 1000), 0), _POLL_MS_MAX)
    ready = {fd for fd, _ in poll.poll(timeout_ms)}
    readable, writable = ([each for each in files if each.fileno() in ready] for files in (readers, writers))
    return readable, writable, []


class LoopConnection(ConnectionHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's connection with a bound for the handshake, and with a login of ours (kazoo needs a library for it); it
    records when the end of the session is confirmed.

    kazoo's timeout for a handshake is the requested session timeout: too short for a busy server if it is a
    millisecond, and endless if it is a day.
    """

    def _invoke(self, timeout_s: float, request: Any, xid: int | None = None) -> Any:
        answer = super()._invoke(self.handler.attempt_s, request, xid)
        if isinstance(request, Connect) and answer[0].time_out > 0:
            self.handler.grant(answer[0].time_out)
        return answer

    def _connect(self, host: str, hostip: str, port: int) -> Any:
        """Connect, begin or resume the session, and log in. Raises AuthFailedError if a login is refused. Without a
        first message, as when there is no ticket of Kerberos, it is as if there were no connection."""
        login = self.handler.security.login
        self.sasl_options: dict[str, str] | None = None
        if login is not None:
            self.sasl_options = {}  # then kazoo calls what is below
            self._login = login.begin(host)
            with self._socket_error_handling():
                self._first_message = self.handler.first_message(self._login, host)
        try:
            timeouts = super()._connect(host, hostip, port)
        except AuthFailedError as error:
            user = self.handler.security.user
            reason = str(error) or "a wrong user or password"
            self.handler.refusal = f"ZooKeeper at {host}:{port} does not accept the login of {user}: {reason}"
            raise
        self.handler.last_failure = ""
        return timeouts

    def _authenticate_with_sasl(self, _host: str, timeout_s: float) -> None:
        login, token, xid = self._login, self._first_message, 0
        while not login.is_complete:
            xid += 1
            self._submit(SASL(token), timeout_s, xid)
            header, message, offset = self._read_header(timeout_s)
            if header.err:
                raise AuthFailedError
            challenge, _ = SASL.deserialize(message, offset)
            try:
                token = login.respond(challenge or b"")
            except LoginFailed as error:
                raise AuthFailedError(str(error)) from error

    def _read_socket(self, read_timeout_s: float) -> Any:
        response = super()._read_socket(read_timeout_s)
        if response == CLOSE_RESPONSE:
            self.handler.was_closed = True
        return response


class Answer:
    """The receiver of kazoo's result of one request: the part of its IAsyncResult that kazoo calls itself.

    `on_success` runs on the loop, before anything that ZooKeeper sent after the result.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.on_success: Callable[[], None] | None = None

    def set(self, value: Any = None) -> None:
        post(self._loop, self._resolve, value, None)

    def set_exception(self, exception: Exception) -> None:
        post(self._loop, self._resolve, None, exception)

    def _resolve(self, value: Any, error: Exception | None) -> None:
        if self.future.done():
            return  # cancelled, or kazoo set it twice
        if error is not None:
            self.future.set_exception(error)
            return
        if self.on_success is not None:
            self.on_success()
        self.future.set_result(value)
