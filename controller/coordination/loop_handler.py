"""kazoo's threads, made to serve one event loop: every result and callback reaches the loop in the order in which
ZooKeeper sent it, and the connection rests while the loop stands still."""

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol import states

from barnabas.clock import REPEAT_MIN_MS

logger = logging.getLogger(__name__)

HEARTBEATS_PER_SESSION_TIMEOUT = 8
"""How often the event loop says that it is alive."""

SESSION_TIMEOUT_MIN_MS = HEARTBEATS_PER_SESSION_TIMEOUT * REPEAT_MIN_MS
"""What a smaller session timeout counts as here: no server grants one (its least is two ticks, usually 4 s)."""


class LoopHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's way to threads, sockets and callbacks: hands everything to the event loop, and watches over it.

    `has_ended` is set when the session is over: no connection is made any more. `is_connected` tells whether a server
    has accepted the session.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, session_timeout_ms: int) -> None:
        super().__init__()
        self._loop = loop
        session_timeout_s = max(session_timeout_ms, SESSION_TIMEOUT_MIN_MS) / 1000
        self._interval_s = session_timeout_s / HEARTBEATS_PER_SESSION_TIMEOUT
        self._stall_s = session_timeout_s / 2
        self._handshake_s = session_timeout_s / 4
        # Of real time, whatever clock the broker lives by: it is ZooKeeper's.
        self._last_heartbeat = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self._stall_was_reported = False
        self.has_ended = False
        self.is_connected = False

    # -- called on the loop

    def start_heartbeats(self) -> None:
        self._last_heartbeat = time.monotonic()
        self._timer = self._loop.call_later(self._interval_s, self.start_heartbeats)

    def stop_heartbeats(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    # -- called by kazoo

    def start(self) -> None:
        """There are no worker threads: callbacks run on the loop."""
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
        if not self.is_connected and timeout_s is not None:
            # A server that is starting may swallow a handshake; kazoo would wait for it as long as the session lives.
            timeout_s = min(timeout_s, self._handshake_s)
        ready = super().select(readers, writers, errors, timeout_s)
        self._check_loop()
        return ready

    def create_connection(self, *args: Any, **kwargs: Any) -> socket.socket:
        if self.has_ended:
            raise ConnectionAbortedError("the session has ended")
        self._check_loop()
        connection: socket.socket = super().create_connection(*args, **kwargs)
        return connection

    def _check_loop(self) -> None:
        """Raises OSError, on which kazoo drops the connection, while the loop stands still."""
        stalled_s = time.monotonic() - self._last_heartbeat
        if self._timer is None or self._timer.cancelled() or stalled_s <= self._stall_s:
            self._stall_was_reported = False
            return
        if not self._stall_was_reported:
            self._stall_was_reported = True
            logger.error(
                "the event loop has not moved for %.1f s: the connection to ZooKeeper rests until it does", stalled_s
            )
        raise TimeoutError("the event loop stands still")


class Answer:
    """What kazoo gives the result of one request to: the part of its IAsyncResult that it calls itself.

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
            return  # cancelled, or kazoo said it twice
        if error is not None:
            self.future.set_exception(error)
            return
        if self.on_success is not None:
            self.on_success()
        self.future.set_result(value)


def post(loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *arguments: object) -> None:
    """`call_soon_threadsafe`, unless the loop is gone: then nobody is left to tell."""
    try:
        loop.call_soon_threadsafe(callback, *arguments)
    except RuntimeError:
        if not loop.is_closed():
            raise
