"""Interception between the connections of clients and the brokers of a test: faults, and recordings of requests.
Without either there is nothing in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from barnabas.broker.network.outcome import CloseConnection, Delayed
from barnabas.testing.interception.answer import Answer, Effect, GoOn, Passage, answer_of
from barnabas.testing.interception.faulty_disk import ExchangeableFiles, Refusing
from barnabas.testing.interception.request import Request, read_request
from barnabas.testing.waiting.calls import of_another_process
from barnabas.wire import codec, headers
from barnabas.wire.errors import ProtocolError
from barnabas.wire.framing import kept

if TYPE_CHECKING:
    from barnabas.broker.network.connection import Connection, Serve
    from barnabas.broker.network.outcome import Outcome
    from barnabas.broker.network.reply_queue import Parts
    from barnabas.broker.network.session import Session
    from barnabas.broker.server import Broker as Server
    from barnabas.wire.schema import Message

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Owner(Protocol):
    """A broker, or a cluster, of a test."""

    @property
    def is_running(self) -> bool:
        """Whether it has an event loop: a cluster has one even if none of its brokers runs."""
        ...

    @property
    def _is_of_another_process(self) -> bool:
        """Whether it runs in the process from which this one was forked."""
        ...

    def live_servers(self) -> Sequence[Server]:
        """The running brokers."""
        ...

    def _check_started(self) -> None:
        """Errors: RuntimeError when it was never started, or was stopped since."""
        ...

    def _check_brokers(self, numbers: Collection[int]) -> None:
        """Refuse numbers of brokers that it does not have. Errors: ValueError."""
        ...

    def _run_through(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on its event loop, also if none of a cluster's brokers runs, and while they are restarted."""
        ...

    def _watch(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine that sends no request to brokers: it continues while they are restarted."""
        ...

    async def _watch_async(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Like `watch`, from a coroutine on another event loop."""
        ...

    def _explained(self, error: TimeoutError, more: Iterable[str] = ()) -> TimeoutError:
        """The error with `more` and the state of the brokers added to its text."""
        ...


class Meddler(Protocol):
    """A fault of requests."""

    _effect: Effect

    def _is_hit(self, request: Request) -> bool:
        """Whether the fault hits a request; counts."""
        ...


class Doorkeeper(Protocol):
    """A fault of connections."""

    def _refuses(self, broker: int) -> bool:
        """Whether a new connection at a broker is refused; counts."""
        ...


class DiskFault(Protocol):
    """A fault of disks."""

    def _refusing(self, broker: int) -> Refusing | None:
        """The effect on a broker's disk; None for none."""
        ...


class Exchange(Protocol):
    """A recorded request, and its outcome."""

    def _note_answer(self, answer: Answer | None) -> None:
        """The response is sent, or there is none."""
        ...

    def _note_close(self) -> None:
        """The connection is closed in place of a response."""
        ...


class Observer(Protocol):
    """A recording."""

    def _begin(self, request: Request, size: int, now_ms: int) -> Exchange | None:
        """A client has sent a request, of `size` bytes; None if that is not recorded."""
        ...


class Interception:
    """The faults and recordings of a broker, or a cluster. `run` changes its lists, followed by `attach_all`."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.meddlers: tuple[Meddler, ...] = ()
        self.doorkeepers: tuple[Doorkeeper, ...] = ()
        self.disk_faults: tuple[DiskFault, ...] = ()
        self.observers: tuple[Observer, ...] = ()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, action: Callable[[], None]) -> None:
        """Call a function on the event loop of the running broker, and return when it is done: for a cluster also while
        its brokers are restarted, which may wait for the end of a fault.

        Errors: RuntimeError in a process that was forked: the broker would not notice.
        """
        if self.owner._is_of_another_process:
            raise of_another_process()
        if not self.owner.is_running or self._is_on_loop():
            action()
            return

        async def act() -> None:
            action()

        self.owner._run_through(act())

    def _is_on_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def wait(self, waiting: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Wait for the result of faults, or recordings, also while brokers are restarted. Raises RuntimeError when no
        broker runs.
        """
        return self.owner._watch(self._explained(waiting))

    async def wait_async(self, waiting: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Like `wait`, from a coroutine on another event loop."""
        return await self.owner._watch_async(self._explained(waiting))

    async def _explained(self, waiting: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            return await waiting()
        except TimeoutError as error:
            raise self.owner._explained(error) from None

    def soon(self, action: Callable[[], None]) -> None:
        """Have a function called on the event loop, from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(action)

    def attach_all(self) -> None:
        """Apply the current faults and recordings to the running brokers."""
        for server in self.owner.live_servers():
            self.attach(server)

    def attach(self, server: Server) -> None:
        """Apply the current faults and recordings to a broker; also before it starts, on its event loop."""
        self._loop = asyncio.get_running_loop()
        server.connections.refusal = partial(self._refuse, server) if self.doorkeepers else _admit
        disk = server.environment.files
        if isinstance(disk, ExchangeableFiles):
            faults = [fault._refusing(server.node_id) for fault in self.disk_faults]
            disk.refuse([fault for fault in faults if fault is not None])
        server.intercept(partial(self._intercept, server) if self.meddlers or self.observers else None)

    def _refuse(self, server: Server, session: Session) -> str | None:
        is_refused = any(doorkeeper._refuses(server.node_id) for doorkeeper in self.doorkeepers)
        return "a fault of a test refuses it" if is_refused else None

    def _intercept(
        self, server: Server, serve: Serve, frame: memoryview | bytearray, connection: Connection
    ) -> Outcome:
        data = kept(frame)  # decoded, and stored, values are views of it
        request = read_request(server, connection, data)
        if request is None:
            return serve(frame, connection)
        begun = (observer._begin(request, len(data), server.clock.now_ms()) for observer in self.observers)
        exchanges = [exchange for exchange in begun if exchange is not None]
        try:
            hit = [meddler for meddler in self.meddlers if meddler._is_hit(request)]
            if hit:
                passage = Passage(request, connection, server.timers, request.message)
                outcome: Outcome = _play(hit, passage, serve, data)
            else:
                outcome = serve(data, connection)
        except (CloseConnection, ProtocolError):
            for exchange in exchanges:
                exchange._note_close()
            raise
        for exchange in exchanges:
            outcome = _observed(outcome, request, exchange)
        return outcome


async def _play(
    meddlers: Sequence[Meddler], passage: Passage, serve: Serve, frame: memoryview | bytearray
) -> Parts | None:
    """The response to a request that these faults hit. Raises CloseConnection."""
    request = passage.request

    async def work(message: Message | None = None) -> Answer | None:
        if message is not None:
            passage.message = message
        asked = frame if passage.message is request.message else _framed(request, passage.message)
        return await answer_of(serve(asked, passage.connection), request)

    def step(effect: Effect, go_on: GoOn) -> GoOn:
        async def go(message: Message | None = None) -> Answer | None:
            if message is not None:
                passage.message = message
            return await effect.around(passage, go_on)

        return go

    go_on: GoOn = work
    for meddler in reversed(meddlers):
        go_on = step(meddler._effect, go_on)
    try:
        answer = await go_on()
        return None if answer is None else answer.parts()
    except (CloseConnection, ProtocolError):
        raise
    except Exception as error:
        logger.exception("a test's fault could not be applied to %s", request)
        raise CloseConnection(f"a fault of a test failed: {error}") from error


def _framed(request: Request, message: Message) -> bytearray:
    header = headers.request_header(message.API_KEY, request.version, request.correlation_id, request.client_id)
    return bytearray(header + codec.encode(message, request.version))


# --- observing the outcome of a request -----------------------------------------------------------


def _observed(outcome: Outcome, request: Request, exchange: Exchange) -> Outcome:
    """An unchanged outcome that is reported to `exchange` once it is there."""
    if isinstance(outcome, Delayed):
        outcome.resume = partial(_resumed, outcome.resume, request, exchange)
        return outcome
    if isinstance(outcome, asyncio.Future):
        outcome.add_done_callback(partial(_done, request, exchange))
        return outcome
    if isinstance(outcome, Awaitable):
        return _awaited(outcome, request, exchange)
    _tell(outcome, request, exchange)
    return outcome


def _tell(parts: Parts | None, request: Request, exchange: Exchange) -> None:
    exchange._note_answer(None if parts is None else Answer(request, parts))


def _resumed(resume: Callable[[], Any], request: Request, exchange: Exchange) -> Outcome:
    try:
        outcome: Outcome = resume()
    except (CloseConnection, ProtocolError):
        exchange._note_close()
        raise
    return _observed(outcome, request, exchange)


def _done(request: Request, exchange: Exchange, outcome: asyncio.Future[Parts | None]) -> None:
    if outcome.cancelled() or outcome.exception() is not None:
        exchange._note_close()
    else:
        _tell(outcome.result(), request, exchange)


async def _awaited(outcome: Awaitable[Parts | None], request: Request, exchange: Exchange) -> Parts | None:
    try:
        parts = await outcome
    except BaseException:
        exchange._note_close()
        raise
    _tell(parts, request, exchange)
    return parts


def _admit(session: Session) -> str | None:
    return None
