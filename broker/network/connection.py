"""One client connection: frames in, responses out in request order, with bounded memory.

Kafka serves one request of a connection at a time (SocketServer mutes the channel until the response is sent). So
does this class, with one exception: a Produce whose append is done may wait for replication while the next request
starts; its response keeps its place.
"""

import asyncio
import logging
import select
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

from barnabas.broker.network.listener import ListenerContext, PrincipalSource
from barnabas.broker.network.outcome import CloseConnection, Delayed, Outcome
from barnabas.broker.network.reply_queue import Parts, ReplyQueue
from barnabas.broker.network.session import Session
from barnabas.broker.network.turns import FRAMES_PER_TURN, RequestTurns
from barnabas.clock import Clock
from barnabas.inflight_budget import InflightBudget
from barnabas.network import peer_host
from barnabas.threads import Threads
from barnabas.timers import ScheduledCall, Timers
from barnabas.wire.errors import ForeignProtocol, ProtocolError
from barnabas.wire.framing import FrameReader, ReceiveBuffer

logger = logging.getLogger(__name__)


class RequestServer(Protocol):
    """Serves the requests of connections (`api/dispatch.py`); deadlines of sockets use its `clock`."""

    clock: Clock

    def dispatch(self, frame: memoryview | bytearray, connection: "Connection") -> Outcome:
        """Serve one request. Raises ProtocolError or CloseConnection when the connection must be closed."""
        ...


class ConnectionSet(Protocol):
    """A connection's interface to the set of all connections of its broker (`connections.py`).

    `threads` wait for the disk, and `sending` are the tasks that send responses from files. `turns` schedule
    the requests of clients, `turns_of_brokers` those of other brokers.
    """

    threads: Threads
    sending: "set[asyncio.Task[None]]"
    turns: RequestTurns
    turns_of_brokers: RequestTurns

    def admit(self, connection: "Connection") -> str | None:
        """Count a new connection; returns why it must be closed at once, or None."""
        ...

    def discard(self, connection: "Connection") -> None:
        """Remove a closed connection from the counts."""
        ...

    def add_unsent(self, size: int) -> None:
        """Add `size` to the bytes of unread responses."""
        ...


class SharedResources(NamedTuple):
    """The resources that the connections of a broker share.

    `budget` bounds the bytes of all unfinished requests, `frame_bytes_max` those of one; `timers` end the throttling of
    clients.
    """

    connections: ConnectionSet
    receive_buffer: ReceiveBuffer
    budget: InflightBudget
    timers: Timers
    frame_bytes_max: int


class Connection(asyncio.BufferedProtocol):
    """The protocol of one accepted socket; owned by the event loop. It adds itself to the set of live connections, and
    removes itself."""

    __slots__ = (
        "_budget",
        "_busy",
        "_closing",
        "_delayed",
        "_dispatcher",
        "_frame_bytes_max",
        "_has_turn_coming",
        "_is_woken",
        "_pause_reasons",
        "_reader",
        "_replies",
        "_seen_progress",
        "_task",
        "_throttle",
        "_throttled_until_ms",
        "_timers",
        "_transport",
        "_turns",
        "_waiting",
        "_waiting_bytes",
        "connections",
        "frame_started_ms",
        "is_silent",
        "last_active_ms",
        "session",
        "unsent_bytes",
    )

    _PAUSED_BY_REQUEST = 1  # a request waits for the one in progress, or for a turn
    _PAUSED_BY_WRITER = 2  # the client does not read its responses
    _PAUSED_BY_BUDGET = 4
    _PAUSED_BY_FILES = 8  # the file sender, not the transport, is sending a response
    _PAUSED_BY_QUOTA = 16  # the client has exceeded its quota: it waits (KIP-219)
    _CANNOT_REPLY = _PAUSED_BY_WRITER | _PAUSED_BY_FILES
    _CANNOT_SERVE = _CANNOT_REPLY | _PAUSED_BY_QUOTA
    _CANNOT_BEGIN = _CANNOT_SERVE | _PAUSED_BY_REQUEST

    def __init__(
        self,
        dispatcher: RequestServer,
        shared: SharedResources,
        listener: ListenerContext,
        connection_id: int,
    ) -> None:
        self._dispatcher = dispatcher
        self._budget = shared.budget
        self._frame_bytes_max = shared.frame_bytes_max
        self._reader = FrameReader(shared.receive_buffer, self._frame_bytes_max, self._budget.has_room)
        self.connections = shared.connections
        self._turns = self.connections.turns
        self.session = Session(self, listener, connection_id)
        self._timers = shared.timers
        self._throttle: ScheduledCall | None = None
        self._throttled_until_ms = 0
        self.last_active_ms = dispatcher.clock.monotonic_ms()
        self.frame_started_ms: int | None = None
        self.is_silent = True
        """Whether no whole request has arrived yet."""
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._delayed: Delayed | None = None
        self._busy = False
        self._closing = False
        self._has_turn_coming = False
        self._is_woken = False
        self._pause_reasons = 0
        self._replies = ReplyQueue(self)
        self._waiting: deque[memoryview | bytearray] | None = None
        self._waiting_bytes = 0
        self.unsent_bytes = 0
        self._seen_progress = 0

    # --- the socket -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = self._replies.transport = cast(asyncio.Transport, transport)  # uvloop's class is no subclass
        self.session.client_host = sys.intern(peer_host(transport))  # thousands of connections often come from one host
        refusal = self.connections.admit(self)
        if refusal is not None:
            self.close(refusal)

    def encrypted(self, transport: asyncio.Transport, certificate: bytes | None) -> None:
        """Switch to `transport`, the TLS layer over the former transport. `certificate` is the client's (DER), None
        without one. Raises NoMatchingRule."""
        session = self.session
        if certificate is not None and session.listener.principal_source is PrincipalSource.CERTIFICATE:
            session.principal = session.listener.principal_of(certificate)
        self._transport = self._replies.transport = transport
        self.last_active_ms = self._dispatcher.clock.monotonic_ms()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        now_ms = self._dispatcher.clock.monotonic_ms()
        self.last_active_ms = now_ms
        self._replies.is_gathering = True
        try:
            for number, frame in enumerate(self._reader.received(nbytes)):
                self.is_silent = False
                if (
                    self._busy
                    or (self._pause_reasons and self._pause_reasons & self._CANNOT_BEGIN)
                    or number >= FRAMES_PER_TURN
                    or (self._turns.work_s() >= self._turns.end_s and self._turns.is_over())
                ):
                    self._keep(frame)
                else:
                    self._serve(self._dispatcher.dispatch, frame, self)
                if self._closing:
                    return
        except ProtocolError as error:
            if isinstance(error, ForeignProtocol):
                # No connection number: the log counts equal lines as repetitions.
                logger.warning("closing connections from %s: %s", self.session.client_host, error)
            self.close(None if isinstance(error, ForeignProtocol) else str(error))
            return
        finally:
            self._replies.flush()
        if self._reader.partial_frame is not None:
            if self.frame_started_ms is None:
                self.frame_started_ms = now_ms
        elif self.frame_started_ms is None and not self._waiting:
            return  # nothing is held, nor was before
        else:
            self.frame_started_ms = None
        self._report_held()
        if self._waiting:
            self._ask_for_turn(self._turns.queue if len(self._waiting) > 1 else self._turns.come_in)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._replies.close()
        self.session.close()
        if self._throttle is not None:
            self._throttle.cancel()
        self.connections.discard(self)
        if self._task is not None:
            self._task.cancel()
        if self._delayed is not None:
            self._delayed.ready.cancel()
        self._waiting = None
        self._budget.report(self, 0)
        self._report_unsent()

    def pause_writing(self) -> None:
        self._replies.is_transport_full = True
        self._pause(self._PAUSED_BY_WRITER)
        self._report_unsent()

    def resume_writing(self) -> None:
        self.last_active_ms = self._dispatcher.clock.monotonic_ms()
        self._replies.transport_has_room()
        self._resume(self._PAUSED_BY_WRITER)
        self._report_unsent()
        self._serve_waiting()

    def pause_for_budget(self) -> None:
        self._pause(self._PAUSED_BY_BUDGET)

    def resume_from_budget(self) -> None:
        self._resume(self._PAUSED_BY_BUDGET)

    def throttle(self, throttle_time_ms: int) -> None:
        """Start no new request for `throttle_time_ms`; requests in progress are answered."""
        if self._closing:
            return
        until_ms = self._dispatcher.clock.monotonic_ms() + throttle_time_ms
        if self._throttle is not None:
            if until_ms <= self._throttled_until_ms:
                return
            self._throttle.cancel()
        self._throttle = self._timers.call_later(throttle_time_ms, self._end_throttle)
        self._throttled_until_ms = until_ms
        self._pause(self._PAUSED_BY_QUOTA)

    def close_later(self, delay_ms: int) -> None:
        """Serve no requests and close after `delay_ms`, because the client connects too often. 0 does nothing."""
        if delay_ms > 0:
            self._pause(self._PAUSED_BY_QUOTA)
            self._throttle = self._timers.call_later(delay_ms, self.close)

    def exempt(self) -> None:
        """Exempt this connection from the limits that all connections of clients share, and from their turns."""
        self._turns = self.connections.turns_of_brokers
        self._reader.frame_bytes_max = self._frame_bytes_max
        self._report_held()
        self._report_unsent()

    def bound_frames(self, frame_bytes_max: int) -> None:
        """Limit the size of requests until the client has authenticated."""
        self._reader.frame_bytes_max = min(frame_bytes_max, self._frame_bytes_max)

    def unbound_frames(self) -> None:
        self._reader.frame_bytes_max = self._frame_bytes_max

    def serve_by(self, dispatcher: RequestServer) -> None:
        """Have another server serve the requests from the next one on."""
        self._dispatcher = dispatcher

    def _end_throttle(self) -> None:
        self._throttle = None
        self._resume(self._PAUSED_BY_QUOTA)
        self._serve_waiting()

    # --- requests ---------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether a request is in progress (a long poll, say) or waits for its turn; False while a response is sent
        from a file."""
        return (self._busy or self._has_turn_coming or self._replies.is_waiting) and not self._replies.is_sending_files

    @property
    def threads(self) -> Threads:
        """The threads that wait for the disk."""
        return self.connections.threads

    @property
    def descriptor(self) -> int:
        """The descriptor of the socket; -1 if the transport has none."""
        socket = None if self._transport is None else self._transport.get_extra_info("socket")
        return -1 if socket is None else int(socket.fileno())

    @property
    def has_hung_up(self) -> bool:
        """Whether the client has closed its side. The transport does not report a close while reading is paused."""
        if self._transport is None or self.is_reading:
            return False
        return self._poll(getattr(select, "POLLRDHUP", 0))

    @property
    def _is_cut_off(self) -> bool:
        """Whether the client can no longer receive. A half-closed connection does not count: its last requests, for
        example with acks=0, are still valid."""
        return self._poll(0)

    def _poll(self, events: int) -> bool:
        descriptor = self.descriptor
        if descriptor < 0:
            return False
        poller = select.poll()
        poller.register(descriptor, events)
        return bool(poller.poll(0))

    @property
    def is_closing(self) -> bool:
        """Whether the connection is being closed: no more requests are served then."""
        return self._closing

    @property
    def is_reading(self) -> bool:
        """False while this connection is paused, so that the client cannot send."""
        return not self._pause_reasons

    def note_progress(self, now_ms: int) -> None:
        """Set `last_active_ms` if the client has read response bytes since the last call. This is checked
        periodically: transports do not report it, and a check per request would cost too much."""
        if self._transport is None or not self._pause_reasons & self._CANNOT_REPLY:
            return
        progress = self._replies.progress
        if progress != self._seen_progress:
            self._seen_progress = progress
            self.last_active_ms = now_ms

    def close(self, reason: str | None = None) -> None:
        """Accept no further request. Responses that are already written are sent, unless the transport is full;
        responses from files are cut."""
        if self._closing:
            return
        self._end(reason)
        if self._transport is None:
            return
        self._replies.flush()
        if self._pause_reasons & self._CANNOT_REPLY:
            self._transport.abort()  # the client does not read: a flush would never end
        else:
            self._transport.close()

    def abort(self, reason: str | None = None) -> None:
        """Cut the connection; bytes that are not sent yet are lost."""
        self._end(reason)
        if self._transport is not None:
            self._transport.abort()

    def hand_over(self) -> asyncio.Transport | None:
        """Detach the socket for another protocol, and end this connection; for tests. None, without a change, unless
        the connection is between two frames: no request, response or pause."""
        transport = self._transport
        if (
            transport is None
            or transport.is_closing()
            or self.is_busy
            or self._closing
            or self._pause_reasons
            or self._waiting
            or self._reader.partial_frame is not None
        ):
            return None
        transport.pause_reading()
        self.connection_lost(None)
        self._transport = None
        return transport

    def _end(self, reason: str | None) -> None:
        self._closing = True
        self._replies.stop()
        if reason is not None:
            session = self.session
            logger.info("closing connection %d from %s: %s", session.connection_id, session.client_host, reason)

    def _keep(self, frame: memoryview) -> None:
        """Keep a frame until the request in progress is done, or the next turn comes. A frame that has its own buffer
        (up to 100 MiB) is not copied."""
        if self._waiting is None:
            self._waiting = deque()
        self._waiting.append(bytearray(frame) if self._reader.is_shared(frame) else frame)
        self._waiting_bytes += len(frame)
        self._pause(self._PAUSED_BY_REQUEST)

    def _serve(self, step: Callable[..., Outcome], *arguments: Any) -> None:
        """Run the first step of a request, or the step after its delay."""
        try:
            outcome = step(*arguments)
        except (ProtocolError, CloseConnection) as error:
            self._refuse(error)
            return
        if isinstance(outcome, list):
            self._replies.add(outcome)
        elif isinstance(outcome, asyncio.Future):
            self._reply_later(outcome)
        elif isinstance(outcome, Delayed):
            self._busy = True
            self._delayed = outcome
            outcome.ready.add_done_callback(self._resume_delayed)
        elif outcome is not None:
            self._busy = True
            self._task = asyncio.get_running_loop().create_task(self._finish(outcome))

    def _refuse(self, error: ProtocolError | CloseConnection) -> None:
        """Close the connection because of a request, after its response if there is one."""
        if isinstance(error, CloseConnection) and error.reply is not None and not self._closing:
            self._replies.add(error.reply)
        self.close(str(error) or "request refused")

    def _resume_delayed(self, _ready: "asyncio.Future[None]", *, is_turn: bool = False) -> None:
        """Run the step after a delay. If the turn is over, queue it: one append may wake thousands of connections."""
        assert self._delayed is not None
        if not is_turn and self._turns.work_s() >= self._turns.end_s and not self._closing and self._turns.is_over():
            self._is_woken = True
            if not self._has_turn_coming:
                self._has_turn_coming = True
                self._turns.queue(self)
            return
        resume = self._delayed.resume
        self._delayed = None
        self._busy = self._is_woken = False
        if self._closing:
            return
        try:
            self._serve(resume)
        except BaseException:
            self.abort()  # as the transport does when `buffer_updated` fails: a response is missing
            raise
        if self._waiting or self._pause_reasons & self._PAUSED_BY_REQUEST:
            self._serve_waiting()

    async def _finish(self, outcome: Awaitable[Parts | None]) -> None:
        """Wait for the rest of a request; the connection serves no other request meanwhile."""
        try:
            parts = await outcome
        except (ProtocolError, CloseConnection) as error:
            self._refuse(error)
            return
        finally:
            self._busy = False
            self._task = None
        if self._closing:
            return
        if parts is not None:
            self._replies.add(parts)
        if self._waiting or self._pause_reasons & self._PAUSED_BY_REQUEST:
            self._serve_waiting()

    @property
    def _could_begin(self) -> bool:
        """Whether a kept request waits only for a turn."""
        return bool(self._waiting) and not (self._busy or self._closing or self._pause_reasons & self._CANNOT_SERVE)

    def _ask_for_turn(self, ask: "Callable[[Connection], None]") -> None:
        if self._could_begin and not self._has_turn_coming:
            self._has_turn_coming = True
            ask(self)

    def take_turn(self) -> bool:
        """Serve kept requests, if the client is still connected, until the turn is over; returns whether another turn
        is needed."""
        self._has_turn_coming = False
        if self._is_woken:
            assert self._delayed is not None
            # requests behind the delayed one ask for a turn
            self._resume_delayed(self._delayed.ready, is_turn=True)
            return False
        if self._could_begin and self._is_cut_off:
            self.abort()
        self._serve_waiting(is_turn=True)
        self._has_turn_coming = self._could_begin
        return self._has_turn_coming

    def _serve_waiting(self, *, is_turn: bool = False) -> None:
        """Serve kept requests while there is time; in a turn, at least one."""
        served = 0
        self._replies.is_gathering = True
        while self._waiting and not (self._busy or self._closing or self._pause_reasons & self._CANNOT_SERVE):
            is_first = is_turn and not served
            if served >= FRAMES_PER_TURN or (
                not is_first and self._turns.work_s() >= self._turns.end_s and self._turns.is_over()
            ):
                break
            frame = self._waiting.popleft()
            self._waiting_bytes -= len(frame)
            self._serve(self._dispatcher.dispatch, frame, self)
            served += 1
        self._replies.flush()
        if self._closing:
            return
        self._report_held()
        if self._waiting:
            if not is_turn:
                self._ask_for_turn(self._turns.queue)
        elif not self._busy:
            self._waiting = None
            self._resume(self._PAUSED_BY_REQUEST)

    # --- responses --------------------------------------------------------------------------------

    def _reply_later(self, outcome: "asyncio.Future[Parts | None]") -> None:
        reply = self._replies.reserve()

        def done(future: "asyncio.Future[Parts | None]") -> None:
            if self._closing or future.cancelled():
                return
            if future.exception() is not None:
                self.close(str(future.exception()))
                return
            self._replies.fill(reply, future.result())

        outcome.add_done_callback(done)

    def pause_for_files(self, finishing: "asyncio.Task[None]") -> None:
        self.connections.sending.add(finishing)
        finishing.add_done_callback(self.connections.sending.discard)
        self._pause(self._PAUSED_BY_FILES)
        self._report_unsent()

    def resume_from_files(self) -> None:
        self.last_active_ms = self._dispatcher.clock.monotonic_ms()
        self._resume(self._PAUSED_BY_FILES)
        self._report_unsent()
        self._replies.write_known()
        self._serve_waiting()

    # --- pausing ----------------------------------------------------------------------------------

    def _pause(self, reason: int) -> None:
        if not self._pause_reasons and self._transport is not None and not self._closing:
            self._transport.pause_reading()
        self._pause_reasons |= reason

    def _resume(self, reason: int) -> None:
        if self._pause_reasons & reason:
            self._pause_reasons &= ~reason
            if not self._pause_reasons and self._transport is not None and not self._closing:
                self._transport.resume_reading()

    def _report_unsent(self) -> None:
        size = 0 if self.session.is_broker else self._replies.unsent_bytes
        added, self.unsent_bytes = size - self.unsent_bytes, size
        self.connections.add_unsent(added)

    def hold(self, size: int) -> None:
        """Count the bytes of a large request that waits, or is in progress; a negative size when that is over."""
        self._waiting_bytes += size
        if not self._closing:
            self._report_held()

    def _report_held(self) -> None:
        held_bytes = 0 if self.session.is_broker else self._reader.buffered_bytes + self._waiting_bytes
        self._budget.report(self, held_bytes)


Serve: TypeAlias = Callable[[memoryview | bytearray, Connection], Outcome]
"""Serves a request frame of a connection, as `RequestServer.dispatch` does."""

Interceptor: TypeAlias = Callable[[Serve, memoryview | bytearray, Connection], Outcome]
"""Stands between connections and the broker in a test. It is called with each request frame. It may serve this frame,
another one, or none, and returns the outcome. It keeps no view of the frame."""
