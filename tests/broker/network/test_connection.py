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
from barnabas.broker.network.connection import Connection
from barnabas.broker.network.connections import (
    ABANDONED_TIMEOUT_MS,
    PARTIAL_FRAME_TIMEOUT_MS,
    Connections,
)
from barnabas.broker.network.inflight_budget import InflightBudget
from barnabas.broker.network.outcome import CloseConnection, Delayed
from barnabas.broker.network.reply_queue import GATHERED_BYTES_MAX
from barnabas.broker.network.turns import FRAMES_PER_TURN, RequestTurns
from barnabas.clock import ManualClock
from barnabas.wire.framing import ReceiveBuffer

LIMITS = load(options={"max.connections": "100", "max.connections.per.ip": "100"})


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
    """Answers a frame with its own bytes: at once, later (`wait...`, `delay...`), or as the second stage of two
    (`stage...`). After the delay, `delay-close`, `delay-fail` and `delay-wait` have something else in store."""

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
            return Delayed(ready, lambda: self._resume(body))  # type: ignore[arg-type]
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
    ) -> None:
        self.dispatcher = Dispatcher()
        self.connections = Connections(LIMITS) if connections is None else connections
        self.budget = InflightBudget(budget_bytes)
        self.connection = Connection(
            self.dispatcher,  # type: ignore[arg-type]
            self.connections,
            ReceiveBuffer(receive_bytes),
            self.budget,
            "PLAINTEXT",
            1,
            frame_bytes_max,
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

    async def answer(self, body: bytes) -> None:
        self.dispatcher.pending[body].set_result([body])
        await asyncio.sleep(0)
        await asyncio.sleep(0)


def scenario(run: Awaitable[None]) -> None:
    async def main() -> None:
        await run

    asyncio.run(main())


def test_replies_leave_in_request_order_while_second_stages_overlap() -> None:
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


def test_beyond_the_slice_of_all_connections_requests_are_kept_and_connections_take_turns() -> None:
    """And they are served in order, one connection after the other; the loop does other work in between."""

    async def run() -> None:
        passing = iter(range(10**6))  # each look at the clock is 1 ms later
        connections = Connections(LIMITS, RequestTurns(lambda: next(passing) / 1000))
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


@pytest.mark.parametrize("resets", [True, False])
def test_what_is_kept_of_a_peer_that_cannot_be_answered_is_not_served(resets: bool) -> None:
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
def test_nothing_is_resumed_for_a_connection_that_ended_meanwhile(lost: bool) -> None:
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


def test_a_delayed_request_can_close_the_connection_and_cuts_it_when_it_fails() -> None:
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


def test_a_handler_that_asks_for_it_closes_the_connection_after_earlier_replies() -> None:
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


def test_idle_and_half_sent_connections_are_closed_but_not_those_that_wait_for_us() -> None:
    async def run() -> None:
        connections = Connections(LIMITS)
        idle, partial, waiting = (Peer(connections=connections) for _ in range(3))
        partial.receive(struct.pack(">i", 100) + b"x")
        waiting.send(b"wait1")
        await asyncio.sleep(0)
        connections.close_idle(PARTIAL_FRAME_TIMEOUT_MS + 1)
        assert [peer.transport.closed for peer in (idle, partial, waiting)] == [False, True, False]
        connections.close_idle(600_001)
        assert [peer.transport.closed for peer in (idle, waiting)] == [True, False]

    scenario(run())


def test_a_peer_that_reads_a_long_reply_slowly_is_not_idle() -> None:
    async def run() -> None:
        connections = Connections(LIMITS)
        peer = Peer(connections=connections)
        peer.connection.pause_writing()
        for now_ms, unsent in ((500_000, 70_000), (1_000_000, 50_000), (1_500_000, 1), (2_100_000, 1)):
            peer.transport.unsent = unsent
            connections.close_idle(now_ms)
            assert not peer.transport.aborted
        connections.close_idle(2_100_001)
        assert peer.transport.aborted

    scenario(run())


def test_a_peer_that_left_requests_behind_a_waiting_one_is_not_waited_for() -> None:
    async def run() -> None:
        connections = Connections(LIMITS)
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
        connections = Connections(limits)
        first = Peer(connections=connections)
        limits.change({"max.connections": "1"})
        second = Peer(connections=connections)
        assert [peer.transport.closed for peer in (first, second)] == [False, True]

    scenario(run())


def test_an_ipv4_peer_of_a_socket_for_both_families_has_its_ipv4_address() -> None:
    async def run() -> None:
        peer = Peer()
        for host, known_as in (("::ffff:10.0.0.7", "10.0.0.7"), ("2001:db8::7", "2001:db8::7")):
            found = {"peername": (host, 4711, 0, 0)}
            peer.transport.get_extra_info = found.get  # type: ignore[method-assign, assignment]
            peer.connection.connection_made(peer.transport)
            assert peer.connection.client_host == known_as

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
            )
        )
        peers = [Peer(connections=connections) for _ in range(3)]
        assert [peer.transport.closed for peer in peers] == [False, False, True]
        peers[2].connection.connection_lost(None)
        peers[0].connection.connection_lost(None)
        assert not Peer(connections=connections).transport.closed

    scenario(run())
