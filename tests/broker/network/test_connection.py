"""The order of replies, what waits, and when a connection is paused or closed."""

import asyncio
import socket
import struct
from collections.abc import Awaitable
from itertools import pairwise
from typing import Any

import pytest

from barnabas.broker.configuration.config import load
from barnabas.broker.configuration.live_config import LiveConfig
from barnabas.broker.network.connection import Connection, SharedResources
from barnabas.broker.network.connections import (
    ABANDONED_TIMEOUT_MS,
    PARTIAL_FRAME_TIMEOUT_MS,
    STRANGERS_IN_RESERVE_MAX,
    STRANGERS_MAX,
    UNSENT_BYTES_MAX,
    Connections,
)
from barnabas.broker.network.listener import UNAUTHENTICATED_BYTES_MAX, ListenerContext, PrincipalSource
from barnabas.broker.network.outcome import CloseConnection, Delayed
from barnabas.broker.network.reply_queue import GATHERED_BYTES_MAX
from barnabas.broker.network.socket_server import SocketServer
from barnabas.broker.network.turns import FRAMES_PER_TURN
from barnabas.broker.timers import Timers
from barnabas.clock import ManualClock
from barnabas.inflight_budget import InflightBudget
from barnabas.network import OsNetwork
from barnabas.threads import OsThreads
from barnabas.wire.framing import ReceiveBuffer
from tests.support.bugs import Bug

LIMITS = load(options={"max.connections": "100", "max.connections.per.ip": "100"})
OF_THEIR_OWN = {
    "listeners": "CLIENTS://:1,BROKERS://:2",
    "listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT",
    "inter.broker.listener.name": "BROKERS",
}
"""Brokers have a listener of their own."""
SHARED = ListenerContext.of(LIMITS, "PLAINTEXT")
CLIENTS, BROKERS = (ListenerContext.of(load(options=OF_THEIR_OWN), name) for name in ("CLIENTS", "BROKERS"))
SECRETIVE = BROKERS._replace(principal_source=PrincipalSource.SASL)


class Transport(asyncio.Transport):
    """Records what is written, and whether the socket is read."""

    def __init__(self, host: str = "10.0.0.1", own_socket: socket.socket | None = None) -> None:
        super().__init__({"peername": (host, 12345), "socket": own_socket})
        self.written = b""
        self.write_sizes: list[int] = []
        self.unsent = 70_000
        self.reading = True
        self.closed = False
        self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)
        self.write_sizes.append(len(data))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The limits stay as they are."""

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True


class Dispatcher:
    """Answers a frame with its own bytes: at once (`throttleN` beyond a quota, by N ms), later (`wait...`, `delay...`),
    or as the second stage of two (`stage...`). After the delay, `delay-close`, `delay-fail` and `delay-wait` have
    something else in store."""

    def __init__(self) -> None:
        self.clock = ManualClock(now_ms=1_700_000_000_000)
        self.served: list[bytes] = []
        self.pending: dict[bytes, asyncio.Future[list[bytes] | None]] = {}

    def dispatch(self, frame: memoryview, connection: Connection) -> Any:
        body = bytes(frame)
        self.served.append(body)
        if body.startswith(b"stage"):
            return self._later(body)
        if body.startswith(b"wait"):
            return self._coroutine(body)
        if body.startswith(b"delay"):
            self.pending[body] = ready = asyncio.get_running_loop().create_future()
            return Delayed(ready, lambda: self._resume(body))
        if body.startswith(b"throttle"):
            connection.session.throttle(int(body[8:]))
        if body.startswith(b"close"):
            raise CloseConnection("as asked")
        return None if body.startswith(b"silent") else [body]

    def _later(self, body: bytes) -> "asyncio.Future[list[bytes] | None]":
        self.pending[body] = asyncio.get_running_loop().create_future()
        return self.pending[body]

    def _resume(self, body: bytes) -> Any:
        self.served.append(b"again " + body)
        if body.startswith(b"delay-close"):
            raise CloseConnection("as asked")
        if body.startswith(b"delay-fail"):
            raise RuntimeError("as asked")
        return self._coroutine(b"rest") if body.startswith(b"delay-wait") else [body]

    async def _coroutine(self, body: bytes) -> list[bytes] | None:
        return await self._later(body)


class Peer:
    """A connection under test with its surroundings."""

    def __init__(
        self,
        *,
        frame_bytes_max: int = 1000,
        budget_bytes: int = 10_000,
        receive_bytes: int = 4096,
        connections: Connections | None = None,
        own_socket: socket.socket | None = None,
        listener: ListenerContext = SHARED,
        budget: InflightBudget | None = None,
    ) -> None:
        self.dispatcher = Dispatcher()
        self.connections = Connections(LIMITS, OsThreads(), work_s=lambda: 0.0) if connections is None else connections
        self.budget = InflightBudget(budget_bytes) if budget is None else budget
        self.timers = Timers(self.dispatcher.clock, asyncio.get_running_loop())
        self.connection = Connection(
            self.dispatcher,  # type: ignore[arg-type]
            SharedResources(self.connections, ReceiveBuffer(receive_bytes), self.budget, self.timers, frame_bytes_max),
            listener,
            1,
        )
        self.transport = Transport(own_socket=own_socket)
        self.connection.connection_made(self.transport)

    def send(self, *bodies: bytes) -> None:
        self.receive(b"".join(struct.pack(">i", len(body)) + body for body in bodies))

    def receive(self, data: bytes) -> None:
        while data:
            buffer = self.connection.get_buffer(-1)
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            self.connection.buffer_updated(count)
            data = data[count:]

    def pass_time(self, duration_ms: int) -> None:
        self.dispatcher.clock.advance(duration_ms)
        self.timers.fire_due()

    async def answer(self, body: bytes) -> None:
        self.dispatcher.pending[body].set_result([body])
        await asyncio.sleep(0)
        await asyncio.sleep(0)


def scenario(run: Awaitable[None]) -> None:
    async def main() -> None:
        await run

    asyncio.run(main())


def test_replies_keep_request_order_while_second_stages_overlap() -> None:
    async def run() -> None:
        peer = Peer()
        peer.send(b"stage1", b"stage2", b"now3")
        assert peer.dispatcher.served == [b"stage1", b"stage2", b"now3"]
        await peer.answer(b"stage2")
        assert peer.transport.written == b""
        await peer.answer(b"stage1")
        assert peer.transport.written == b"stage1stage2now3"

    scenario(run())


def test_a_burst_of_requests_is_served_in_turns_and_in_order() -> None:
    async def scenario() -> None:
        peer = Peer()
        bodies = [b"%03d" % number for number in range(2 * FRAMES_PER_TURN + 5)]
        peer.send(*bodies)
        assert len(peer.dispatcher.served) == FRAMES_PER_TURN
        assert not peer.transport.reading
        await asyncio.sleep(0)
        assert peer.transport.written == b"".join(bodies)
        assert peer.transport.reading

    asyncio.run(scenario())


def test_a_request_that_arrived_in_pieces_is_not_copied_to_wait() -> None:
    """It may have 100 MiB, which the budget of unfinished requests counts once."""

    async def run() -> None:
        peer = Peer()
        peer.send(b"wait")
        await asyncio.sleep(0)
        whole = struct.pack(">i", 900) + b"x" * 900
        peer.receive(whole[:-1])
        arriving = peer.connection._reader.partial_frame
        peer.receive(whole[-1:])
        assert peer.connection._waiting is not None
        (kept,) = peer.connection._waiting
        assert isinstance(kept, memoryview)
        assert kept.obj is arriving
        assert peer.budget.used_bytes == 900
        await peer.answer(b"wait")
        assert peer.dispatcher.served[1:] == [whole[4:]]
        assert peer.budget.used_bytes == 0

    scenario(run())


def test_connections_take_turns_beyond_the_common_slice() -> None:
    """And they are served in order, one connection after the other; the loop does other work in between."""

    async def run() -> None:
        passing = iter(range(10**6))  # each look at the clock is 1 ms later
        connections = Connections(LIMITS, OsThreads(), work_s=lambda: next(passing) / 1000)
        peers = [Peer(connections=connections) for _ in range(10)]
        bodies = [b"%03d" % number for number in range(10)]
        served: list[int] = []
        for peer in peers:
            peer.send(*bodies)
        while served[-1:] != [100]:
            served.append(sum(len(peer.dispatcher.served) for peer in peers))
            await asyncio.sleep(0)
        assert max(later - earlier for earlier, later in pairwise([0, *served])) <= 10
        assert len(served) >= 10
        for peer in peers:
            assert peer.transport.written == b"".join(bodies)
            assert peer.transport.reading

    scenario(run())


def test_requests_that_one_append_wakes_take_turns() -> None:
    """With what has come in behind it; whoever is gone by then is left out."""

    async def run() -> None:
        passing = iter(range(10**6))  # each look at the clock is 1 ms later
        connections = Connections(LIMITS, OsThreads(), work_s=lambda: next(passing) / 1000)
        peers = [Peer(connections=connections) for _ in range(40)]
        for peer in peers:
            peer.send(b"delay", b"next")
        for _ in peers:  # one is served in each round at least
            await asyncio.sleep(0)
        for peer in peers:
            peer.dispatcher.pending[b"delay"].set_result(None)
        gone = peers.pop()
        answered: list[int] = []
        while answered[-1:] != [len(peers)]:
            await asyncio.sleep(0)
            answered.append(sum(peer.transport.written == b"delaynext" for peer in peers))
            if len(answered) == 1:
                assert all(peer.connection.is_busy for peer in [*peers, gone] if peer.transport.written == b"")
                gone.connection.connection_lost(None)
        assert max(later - earlier for earlier, later in pairwise([0, *answered])) <= 10
        assert gone.dispatcher.served == [b"delay"]
        assert all(peer.transport.reading for peer in peers)

    scenario(run())


def test_a_turn_just_before_a_wake_does_not_replace_the_wake() -> None:
    """The turn was asked for before the request that waits had begun."""

    async def run() -> None:
        failures: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failures.append(context["message"]))
        peer = Peer(connections=Connections(LIMITS, OsThreads(), work_s=lambda: 0.0))
        peer.send(*[b"now"] * FRAMES_PER_TURN, b"delay1", b"delay2")
        peer.connection.pause_writing()
        peer.connection.resume_writing()
        peer.dispatcher.pending[b"delay1"].set_result(None)
        assert peer.connection.take_turn() is False
        assert peer.dispatcher.served[FRAMES_PER_TURN:] == [b"delay1"]
        await asyncio.sleep(0)
        assert peer.dispatcher.served[FRAMES_PER_TURN:] == [b"delay1", b"again delay1", b"delay2"]
        assert not failures

    scenario(run())


@pytest.mark.parametrize("resets", [True, False])
def test_kept_requests_of_an_unreachable_peer_are_not_served(resets: bool) -> None:
    """One that has ended its side only may have written something with acks=0 before."""

    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            theirs = socket.create_connection(server.getsockname())
            ours, _ = server.accept()
        with ours, theirs:
            peer = Peer(own_socket=ours)
            peer.send(*[b"%03d" % number for number in range(FRAMES_PER_TURN + 1)])
            if resets:
                theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            theirs.close()
            await asyncio.sleep(0)
            assert peer.transport.aborted == resets
            assert len(peer.dispatcher.served) == FRAMES_PER_TURN + (not resets)

    scenario(run())


def test_a_stop_does_not_serve_what_is_kept() -> None:
    async def run() -> None:
        peer = Peer()
        peer.send(*[b"%03d" % number for number in range(FRAMES_PER_TURN + 1)])
        peer.connection.close()
        await asyncio.sleep(0)
        assert len(peer.dispatcher.served) == FRAMES_PER_TURN

    scenario(run())


def test_replies_to_one_read_leave_together() -> None:
    async def run() -> None:
        peer = Peer()
        peer.send(b"now1", b"now2", b"now3")
        assert peer.transport.write_sizes == [12]
        peer.send(b"now4", b"wait5", b"now6", b"now7")
        await asyncio.sleep(0)
        assert peer.transport.write_sizes == [12, 4]
        await peer.answer(b"wait5")
        assert peer.transport.written.endswith(b"now4wait5now6now7")
        assert peer.transport.write_sizes == [12, 4, 5, 8]

    scenario(run())


def test_replies_that_become_known_in_one_turn_leave_together() -> None:
    async def run() -> None:
        peer = Peer()
        peer.send(b"stage1", b"stage2", b"stage3", b"stage4")
        for body in (b"stage2", b"stage1", b"stage3"):  # as when one fetch commits several batches
            peer.dispatcher.pending[body].set_result([body])
        await peer.answer(b"stage4")
        assert peer.transport.written == b"stage1stage2stage3stage4"
        assert peer.transport.write_sizes == [24]
        peer.send(b"stage5")
        await peer.answer(b"stage5")
        assert peer.transport.write_sizes == [24, 6], "one alone waits for nothing"

    scenario(run())


def test_a_connection_that_ends_between_replies_writes_no_more() -> None:
    async def run() -> None:
        peer = Peer()
        peer.send(b"stage1", b"stage2")
        peer.dispatcher.pending[b"stage1"].set_result([b"stage1"])
        await asyncio.sleep(0)
        peer.connection.abort()
        await asyncio.sleep(0)
        assert peer.transport.written == b""

    scenario(run())


def test_large_replies_do_not_wait_for_each_other() -> None:
    size = GATHERED_BYTES_MAX // 2

    async def run() -> None:
        peer = Peer(frame_bytes_max=size, receive_bytes=10 * size)
        peer.send(*[b"x" * size] * 3, b"last")
        assert peer.transport.write_sizes == [2 * size, size + 4]

    scenario(run())


def test_a_burst_of_a_peer_that_leaves_is_forgotten() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.send(*[b"%03d" % number for number in range(FRAMES_PER_TURN + 1)])
        peer.connection.connection_lost(None)
        await asyncio.sleep(0)
        assert len(peer.dispatcher.served) == FRAMES_PER_TURN

    asyncio.run(scenario())


@pytest.mark.parametrize("first", [b"wait1", b"delay1"])
def test_a_request_that_waits_holds_back_the_next_one(first: bytes) -> None:
    async def run() -> None:
        peer = Peer()
        peer.send(first, b"now2", b"silent3", b"now4")
        await asyncio.sleep(0)
        assert peer.dispatcher.served == [first]
        assert not peer.transport.reading
        await peer.answer(first)
        assert peer.dispatcher.served[-3:] == [b"now2", b"silent3", b"now4"]
        assert peer.transport.written == first + b"now2now4"
        assert peer.transport.reading
        assert peer.budget.used_bytes == 0

    scenario(run())


def test_a_peer_that_does_not_read_is_served_no_further() -> None:
    async def run() -> None:
        peer = Peer()
        peer.connection.pause_writing()
        assert peer.connections.unsent_bytes == 70_000
        peer.send(b"now1")
        assert peer.dispatcher.served == []
        peer.connection.resume_writing()
        assert peer.connections.unsent_bytes == 0
        assert peer.dispatcher.served == [b"now1"]
        assert peer.transport.reading

    scenario(run())


def test_a_delayed_request_may_go_on_as_one_that_waits() -> None:
    async def run() -> None:
        peer = Peer()
        peer.send(b"delay-wait1", b"now2")
        await peer.answer(b"delay-wait1")
        assert peer.dispatcher.served == [b"delay-wait1", b"again delay-wait1"]
        assert not peer.transport.reading
        await peer.answer(b"rest")
        assert peer.transport.written == b"restnow2"
        assert peer.transport.reading

    scenario(run())


def test_a_delayed_reply_keeps_its_place() -> None:
    async def run() -> None:
        peer = Peer()
        peer.send(b"stage1", b"delay2", b"now3")
        await peer.answer(b"delay2")
        assert peer.transport.written == b""
        await peer.answer(b"stage1")
        assert peer.transport.written == b"stage1delay2now3"

    scenario(run())


@pytest.mark.parametrize("lost", [True, False])
def test_a_connection_that_ended_meanwhile_is_not_resumed(lost: bool) -> None:
    async def run() -> None:
        peer = Peer()
        peer.send(b"delay1", b"now2")
        peer.dispatcher.pending[b"delay1"].set_result(None)
        if lost:
            peer.connection.connection_lost(None)
        else:
            peer.connection.close()
        await asyncio.sleep(0)
        assert peer.dispatcher.served == [b"delay1"]
        assert peer.transport.written == b""

    scenario(run())


def test_a_failed_delayed_request_cuts_the_connection() -> None:
    """A delayed request can also close the connection."""

    async def run() -> None:
        failures: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        for body, aborted in ((b"delay-close", False), (b"delay-fail", True)):
            peer = Peer()
            peer.send(body, b"now2")
            await peer.answer(body)
            assert (peer.transport.closed, peer.transport.aborted) == (not aborted, aborted)
            assert peer.transport.written == b""
        assert [str(failure["exception"]) for failure in failures] == ["as asked"]

    scenario(run())


@pytest.mark.parametrize("first", [b"wait1", b"delay1"])
def test_a_lost_connection_cancels_what_waits(first: bytes) -> None:
    async def run() -> None:
        peer = Peer()
        peer.send(first, b"now2")
        await asyncio.sleep(0)
        peer.connection.pause_writing()
        peer.connection.connection_lost(None)
        assert peer.connections.unsent_bytes == 0
        await asyncio.sleep(0)
        assert peer.dispatcher.pending[first].cancelled()
        assert len(peer.connections) == 0
        assert peer.budget.used_bytes == 0

    scenario(run())


@pytest.mark.parametrize("data", [struct.pack(">i", -1), struct.pack(">i", 1001), struct.pack(">i", 2**31 - 1)])
def test_a_bad_length_closes_the_connection(data: bytes) -> None:
    async def run() -> None:
        peer = Peer()
        peer.receive(data)
        assert peer.transport.closed

    scenario(run())


@pytest.mark.parametrize(
    ("data", "spoken"),
    [
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP"),
        (b"POST / HTTP/1.1\r\n", "HTTP"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP"),
        (bytes.fromhex("1603010200010001fc0303"), "TLS"),
        (b"SSH-2.0-OpenSSH_9.2p1\r\n", "SSH"),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_the_log_names_a_protocol_other_than_kafkas(
    data: bytes, spoken: str, at_once: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        peer = Peer()
        for part in [data] if at_once else [data[:3], data[3:4], data[4:]]:
            if not peer.transport.closed:
                peer.receive(part)
        assert peer.transport.closed

    caplog.set_level("INFO")
    scenario(run())
    (line,) = caplog.messages
    assert line.endswith(f": the peer speaks {spoken}; this port speaks Kafka's protocol, without TLS")


def test_vain_probes_of_the_port_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    """By the log, which counts warnings that come again word for word."""

    async def run() -> None:
        for _ in range(5):
            peer = Peer()
            peer.receive(b"GET /healthz HTTP/1.1\r\n")
            assert peer.transport.closed

    caplog.set_level("INFO")
    scenario(run())
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 5
    assert len(set(caplog.messages)) == 1


def test_a_handler_closes_the_connection_after_earlier_replies() -> None:
    async def run() -> None:
        peer = Peer()
        peer.send(b"now1", b"close2", b"now3")
        assert peer.dispatcher.served == [b"now1", b"close2"]
        assert peer.transport.written == b"now1"
        assert peer.transport.closed

    scenario(run())


def test_partial_frames_count_against_the_budget() -> None:
    async def run() -> None:
        peer = Peer(frame_bytes_max=1_000_000, budget_bytes=10)
        other = Peer()
        peer.budget.report(other.connection, 20)  # somebody else is over the limit already and goes first
        peer.receive(struct.pack(">i", 100_000) + b"x" * 50_000)
        assert not peer.transport.reading
        peer.budget.report(other.connection, 0)
        peer.receive(b"x" * 50_000)
        assert peer.dispatcher.served == [b"x" * 100_000]
        assert peer.transport.reading
        assert peer.budget.used_bytes == 0

    scenario(run())


@pytest.mark.parametrize("in_one_read", [True, False])
def test_a_throttled_client_is_served_after_its_throttle_time(in_one_read: bool) -> None:
    """KIP-219: the reply tells for how long, and the connection is muted for that."""

    async def run() -> None:
        peer = Peer()
        if in_one_read:
            peer.send(b"throttle1000", b"now2", b"now3")
        else:
            peer.send(b"throttle1000")
            assert not peer.transport.reading
            peer.send(b"now2", b"now3")
        assert peer.transport.written == b"throttle1000"
        peer.pass_time(999)
        await asyncio.sleep(0)  # whoever has a turn coming would take it
        assert peer.dispatcher.served == [b"throttle1000"]
        peer.pass_time(1)
        assert peer.transport.written == b"throttle1000now2now3"
        assert peer.transport.reading
        assert peer.budget.used_bytes == 0

    scenario(run())


def test_the_throttle_time_that_ends_last_counts() -> None:
    async def run() -> None:
        peer = Peer()
        peer.send(b"now1")
        for throttle_time_ms in (500, 0, 1000, 200):
            peer.connection.session.throttle(throttle_time_ms)
        peer.send(b"now2")
        peer.pass_time(999)
        assert peer.dispatcher.served == [b"now1"]
        peer.pass_time(1)
        assert peer.dispatcher.served == [b"now1", b"now2"]
        peer.send(b"throttle300", b"now4")
        assert peer.dispatcher.served[2:] == [b"throttle300"]
        peer.pass_time(300)
        assert peer.dispatcher.served[3:] == [b"now4"]

    scenario(run())


def test_a_throttled_client_waits_for_its_other_reasons_too() -> None:
    """A request that began before the mute is answered during it, and one that does not end goes on holding back."""

    async def run() -> None:
        peer = Peer()
        peer.send(b"stage1", b"throttle1000", b"wait3")
        await peer.answer(b"stage1")
        assert peer.transport.written == b"stage1throttle1000"
        peer.pass_time(1000)
        await asyncio.sleep(0)
        assert peer.dispatcher.served == [b"stage1", b"throttle1000", b"wait3"]
        peer.send(b"now4")
        peer.connection.session.throttle(1000)
        await peer.answer(b"wait3")
        assert peer.transport.written == b"stage1throttle1000wait3"
        peer.connection.pause_writing()
        peer.pass_time(1000)
        assert peer.dispatcher.served[3:] == []
        peer.connection.resume_writing()
        assert peer.dispatcher.served[3:] == [b"now4"]

    scenario(run())


@pytest.mark.parametrize("lost", [True, False])
def test_a_throttled_client_that_goes_leaves_nothing_behind(lost: bool) -> None:
    async def run() -> None:
        peer = Peer()
        session = peer.connection.session
        peer.send(b"throttle1000", b"now2")
        if lost:
            peer.connection.connection_lost(None)
        else:
            peer.connection.close()
            assert peer.transport.closed
        session.throttle(5000)
        peer.pass_time(10_000)
        assert peer.dispatcher.served == [b"throttle1000"]
        assert peer.transport.written == b"throttle1000"
        if lost:
            assert peer.budget.used_bytes == 0
            assert len(peer.connections) == 0

    scenario(run())


@pytest.mark.parametrize("whose", ["a client's", "a broker's", "on the listener of brokers", "both"])
def test_idle_and_half_sent_connections_are_closed(whose: str) -> None:
    """A connection that waits for a response of the broker is not idle."""

    async def run() -> None:
        connections = Connections(load(options=OF_THEIR_OWN), OsThreads())
        listener = BROKERS if whose in ("on the listener of brokers", "both") else CLIENTS
        idle, partial, waiting = (Peer(connections=connections, listener=listener) for _ in range(3))
        for peer in (idle, partial, waiting):
            if whose in ("a broker's", "both"):
                peer.connection.session.belongs_to_broker(2)
        partial.receive(struct.pack(">i", 100) + b"x")
        waiting.send(b"wait1")
        await asyncio.sleep(0)
        connections.close_idle(PARTIAL_FRAME_TIMEOUT_MS)
        assert [peer.transport.closed for peer in (idle, partial, waiting)] == [False, False, False]
        connections.close_idle(PARTIAL_FRAME_TIMEOUT_MS + 1)
        assert [peer.transport.closed for peer in (idle, partial, waiting)] == [False, True, False]
        connections.close_idle(600_000)
        assert [peer.transport.closed for peer in (idle, waiting)] == [False, False]
        connections.close_idle(600_001)
        assert [peer.transport.closed for peer in (idle, waiting)] == [True, False]

    scenario(run())


def test_a_peer_that_reads_a_long_reply_slowly_is_not_idle() -> None:
    async def run() -> None:
        connections = Connections(LIMITS, OsThreads())
        peer = Peer(connections=connections)
        peer.connection.pause_writing()
        for now_ms, unsent in ((500_000, 70_000), (1_000_000, 50_000), (1_500_000, 1), (2_100_000, 1)):
            peer.transport.unsent = unsent
            connections.close_idle(now_ms)
            assert not peer.transport.aborted
        connections.close_idle(2_100_001)
        assert peer.transport.aborted

    scenario(run())


def test_a_gone_peer_that_left_requests_is_noticed() -> None:
    async def run() -> None:
        connections = Connections(LIMITS, OsThreads())
        ours, theirs = socket.socketpair()
        with ours, theirs:
            peer = Peer(connections=connections, own_socket=ours)
            peer.send(b"wait1", b"now2")
            await asyncio.sleep(0)
            connections.close_idle(ABANDONED_TIMEOUT_MS + 1)
            assert not peer.transport.aborted
            theirs.sendall(b"unread")
            theirs.close()
            connections.close_idle(ABANDONED_TIMEOUT_MS)
            assert not peer.transport.aborted
            connections.close_idle(ABANDONED_TIMEOUT_MS + 1)
            assert peer.transport.aborted

    scenario(run())


def test_limits_can_change_for_connections_to_come() -> None:
    async def run() -> None:
        limits = LiveConfig(LIMITS)
        connections = Connections(limits, OsThreads())
        first = Peer(connections=connections)
        limits.change({"max.connections": "1"})
        second = Peer(connections=connections)
        assert [peer.transport.closed for peer in (first, second)] == [False, True]

    scenario(run())


def test_an_ipv4_peer_of_a_dual_socket_has_its_ipv4_address() -> None:
    async def run() -> None:
        peer = Peer()
        for host, known_as in (("::ffff:10.0.0.7", "10.0.0.7"), ("2001:db8::7", "2001:db8::7")):
            found = {"peername": (host, 4711, 0, 0)}
            peer.transport.get_extra_info = found.get  # type: ignore[method-assign, assignment]
            peer.connection.connection_made(peer.transport)
            assert peer.connection.session.client_host == known_as

    scenario(run())


def test_connections_beyond_the_limits_are_closed_at_once() -> None:
    async def run() -> None:
        connections = Connections(
            load(
                options={
                    "max.connections": "3",
                    "max.connections.per.ip": "1",
                    "max.connections.per.ip.overrides": "10.0.0.1:2",
                }
            ),
            OsThreads(),
        )
        peers = [Peer(connections=connections) for _ in range(3)]
        assert [peer.transport.closed for peer in peers] == [False, False, True]
        peers[2].connection.connection_lost(None)
        peers[0].connection.connection_lost(None)
        assert not Peer(connections=connections).transport.closed

    scenario(run())


def test_limits_of_clients_spare_the_listener_of_brokers() -> None:
    """This holds if brokers have a listener of their own."""

    async def run() -> None:
        connections = Connections(load(options={**OF_THEIR_OWN, "max.connections": "1"}), OsThreads())
        arrivals = [Peer(connections=connections, listener=listener) for listener in (CLIENTS, CLIENTS, BROKERS)]
        assert [peer.transport.closed for peer in arrivals] == [False, True, False]
        shared = Connections(load(options={"listeners": "PLAINTEXT://:1", "max.connections": "1"}), OsThreads())
        assert [Peer(connections=shared).transport.closed for _ in range(2)] == [False, True]

    scenario(run())


@pytest.mark.parametrize("of_brokers", [BROKERS, SECRETIVE])
def test_a_reserved_descriptor_is_withheld_from_clients_only(
    of_brokers: ListenerContext,
) -> None:
    """A broker may have one: it shows its secret only after its connection was accepted. Where all share one listener,
    nobody is known for a broker by then."""

    async def run() -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            for limits, listener, is_refused in (
                (OF_THEIR_OWN, CLIENTS, True),
                (OF_THEIR_OWN, of_brokers, False),
                ({"listeners": "PLAINTEXT://:1"}, SHARED, True),
            ):
                connections = Connections(
                    load(options=limits), OsThreads(), is_reserved_descriptor=ours.fileno().__eq__
                )
                assert not Peer(connections=connections, listener=listener, own_socket=theirs).transport.closed
                peer = Peer(connections=connections, listener=listener, own_socket=ours)
                assert peer.transport.closed == is_refused, listener

    scenario(run())


@pytest.mark.parametrize("of_brokers", [BROKERS, SECRETIVE])
def test_strangers_hold_few_reserved_descriptors_on_the_listener_of_brokers(of_brokers: ListenerContext) -> None:
    """Silent or not. Brokers keep theirs, with a secret or by a registered name."""

    async def run() -> None:
        connections = Connections(load(options=OF_THEIR_OWN), OsThreads(), is_reserved_descriptor=lambda _: True)
        brokers = [Peer(connections=connections, listener=of_brokers) for _ in range(STRANGERS_IN_RESERVE_MAX)]
        for number, broker in enumerate(brokers):
            broker.connection.session.belongs_to_broker(number)
        strangers = [Peer(connections=connections, listener=of_brokers) for _ in range(STRANGERS_IN_RESERVE_MAX)]
        for stranger in strangers:
            stranger.send(b"now")
        assert not any(peer.transport.aborted for peer in (*brokers, *strangers))
        newcomers = [Peer(connections=connections, listener=of_brokers) for _ in range(3)]
        assert [peer.transport.aborted for peer in strangers] == [True] * 3 + [False] * (len(strangers) - 3)
        assert not any(peer.transport.aborted for peer in (*brokers, *newcomers))
        strangers[-1].connection.connection_lost(None)
        assert not Peer(connections=connections, listener=of_brokers).transport.aborted
        assert [peer.transport.aborted for peer in strangers] == [True] * 3 + [False] * (len(strangers) - 3)

    scenario(run())


@pytest.mark.parametrize("newcomer", [BROKERS, CLIENTS], ids=["a broker", "a client"])
def test_silent_connections_to_the_listener_of_brokers_make_room(newcomer: ListenerContext) -> None:
    """When no descriptors are left but those reserved for files. Who has sent a request stays: an operator may have
    clients there, too."""

    async def run() -> None:
        is_scarce = False
        connections = Connections(load(options=OF_THEIR_OWN), OsThreads(), is_reserved_descriptor=lambda _: is_scarce)
        silent, speaking, brokers = (
            [Peer(connections=connections, listener=BROKERS) for _ in range(STRANGERS_MAX + 8)] for _ in range(3)
        )
        for client in speaking:
            client.send(b"now")
        for broker in brokers:
            broker.connection.session.belongs_to_broker(2)
        silent[-1].receive(b"\0")  # no whole request
        assert not any(peer.transport.aborted for peer in (*silent, *speaking, *brokers))
        is_scarce = True
        Peer(connections=connections, listener=newcomer)
        cut = [peer.transport.aborted for peer in silent]
        few = STRANGERS_MAX - (newcomer is BROKERS)
        assert cut == [True] * (len(silent) - few) + [False] * few
        assert not any(peer.transport.aborted for peer in (*speaking, *brokers))

    scenario(run())


def test_peers_without_a_secret_make_room_for_brokers() -> None:
    async def run() -> None:
        connections = Connections(load(options=OF_THEIR_OWN), OsThreads())
        broker = Peer(connections=connections, listener=SECRETIVE)
        broker.connection.session.principal = "User:broker-2"
        strangers = [Peer(connections=connections, listener=SECRETIVE) for _ in range(STRANGERS_MAX)]
        client = Peer(connections=connections, listener=CLIENTS)
        newcomers = [Peer(connections=connections, listener=SECRETIVE) for _ in range(3)]
        stay = [not peer.transport.aborted for peer in strangers]
        assert stay == [False] * 3 + [True] * (STRANGERS_MAX - 3)
        assert not any(peer.transport.aborted for peer in (broker, client, *newcomers))

    scenario(run())


def test_peers_without_a_secret_leave_no_bytes_behind() -> None:
    """The received part of its request is kept neither while it is connected, beyond 512 KiB, nor afterwards."""

    async def run() -> None:
        connections = Connections(load(options=OF_THEIR_OWN), OsThreads())
        large = UNAUTHENTICATED_BYTES_MAX + 1
        stranger, broker = (
            Peer(connections=connections, listener=SECRETIVE, frame_bytes_max=large, budget_bytes=2 * large)
            for _ in range(2)
        )
        stranger.receive(struct.pack(">i", large - 1) + bytes(1_000))
        assert not stranger.transport.closed
        stranger.connection.connection_lost(None)
        assert list(connections._strangers) == [broker.connection]
        broker.receive(struct.pack(">i", large)[:3])
        broker.connection.session.belongs_to_broker(2)
        broker.receive(struct.pack(">i", large)[3:] + bytes(large))
        assert [len(frame) for frame in broker.dispatcher.served] == [large]
        other = Peer(connections=connections, listener=SECRETIVE, frame_bytes_max=large)
        other.receive(struct.pack(">i", large))
        assert other.transport.closed

    scenario(run())


def test_unread_bytes_of_clients_do_not_delay_brokers() -> None:
    async def run() -> None:
        connections = Connections(LIMITS, OsThreads())
        budget = InflightBudget(1_500)
        client, other, broker = (Peer(connections=connections, budget=budget) for _ in range(3))
        half_a_frame = struct.pack(">i", 1_000) + b"x" * 900
        for peer in (client, other, broker):
            peer.receive(half_a_frame)
        assert [peer.transport.reading for peer in (client, other, broker)] == [True, True, False]
        broker.connection.session.belongs_to_broker(2)
        assert broker.transport.reading
        broker.receive(b"y" * 100)
        other.connection.pause_writing()
        connections.add_unsent(UNSENT_BYTES_MAX)
        assert connections.is_crowded
        for peer in (client, broker):
            peer.send(b"asked")
        await asyncio.sleep(0)
        assert client.dispatcher.served == []
        assert broker.dispatcher.served == [b"x" * 900 + b"y" * 100, b"asked"]

    scenario(run())


@pytest.mark.parametrize("late", ["broker", "client"])
def test_brokers_have_turns_of_their_own(late: str) -> None:
    """After one kind has used up a slice, others of this kind wait, and none of the other kind."""

    async def run() -> None:
        passing = iter(range(10**6))  # each look at the clock is 1 ms later
        connections = Connections(LIMITS, OsThreads(), work_s=lambda: next(passing) / 1000)
        clients, brokers = ([Peer(connections=connections) for _ in range(3)] for _ in range(2))
        for peer in brokers:
            peer.connection.session.belongs_to_broker(2)
        early, others = (clients, brokers) if late == "broker" else (brokers, clients)
        for peer in early[:2]:
            peer.send(*[b"%03d" % number for number in range(FRAMES_PER_TURN)])
        early[2].send(b"asked")
        others[0].send(b"asked")
        assert (early[2].transport.written, others[0].transport.written) == (b"", b"asked")
        await asyncio.sleep(0)
        assert early[2].transport.written == b"asked"

    scenario(run())


def test_unread_replies_of_a_broker_do_not_count_or_cut_it() -> None:
    async def run() -> None:
        peer = Peer()
        peer.connection.pause_writing()
        assert peer.connections.unsent_bytes == peer.transport.unsent
        peer.connection.session.belongs_to_broker(2)
        assert peer.connections.unsent_bytes == 0
        peer.connections.add_unsent(UNSENT_BYTES_MAX + 1)
        assert peer.connections.is_crowded
        assert not peer.transport.aborted

    scenario(run())


def test_a_connection_that_raises_at_its_close_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are closed."""

    async def run() -> None:
        clock = ManualClock()
        connections = Connections(LIMITS, OsThreads(), clock=clock)
        bad, good = Peer(connections=connections), Peer(connections=connections)
        bug = Bug(monkeypatch, Connection, "note_progress", lambda connection, _: connection is bad.connection)
        for _ in range(3):
            connections.close_idle(600_001)
        assert [peer.transport.closed for peer in (bad, good)] == [False, True]
        assert connections.set_aside.members == [bad.connection]
        assert bug.tries == 1
        bug.is_there = False
        clock.advance(60_000)
        connections.close_idle(600_001)
        assert bad.transport.closed
        assert connections.set_aside.members == []

    scenario(run())


@pytest.mark.parametrize("cuts", [False, True])
def test_a_connection_that_cannot_be_closed_keeps_no_other_open(monkeypatch: pytest.MonkeyPatch, cuts: bool) -> None:
    async def run() -> None:
        connections = Connections(LIMITS, OsThreads())
        bad, good = Peer(connections=connections), Peer(connections=connections)
        name = "abort" if cuts else "close"
        Bug(monkeypatch, Connection, name, lambda connection, *_: connection is bad.connection)
        server = SocketServer(LIMITS, OsNetwork(), connections, good.timers)
        await server.stop(cuts=cuts)
        assert good.transport.aborted if cuts else good.transport.closed
        assert connections.set_aside.members == [bad.connection]

    scenario(run())
