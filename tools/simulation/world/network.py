"""A network in memory: hosts with names, TCP connections, faults, all on one event loop.

`SimulatedNetwork.host(name)` is a `Network` (barnabas/network.py) of one machine among several. A connection gives
TCP's guarantees: bytes arrive in order and once, or the connection breaks. Each direction has its own delays; bytes
arrive in pieces that are independent of frames; and a receiver that does not read stops the sender (`pause_writing`).
The faults are:

- `cut(a, b)`: nothing gets from a to b. Data sent meanwhile arrives after the cut is healed, as TCP retransmits it;
  connection attempts are repeated until then. The other direction is cut separately.
- `reset(a, b)`: the connections between two hosts break.
- `end_process(host)`: the process there ends. Its kernel closes all connections; new ones are refused.
- `lose_power(host)`: the machine is down. Its peers receive nothing; data sent after `power_up` is answered by a reset,
  because the connection is unknown.

All delays are drawn from a seed. Protocols are called in the context in which they listened or connected, and a
transport has no socket.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar, cast

from barnabas.network import BACKLOG, NewProtocol

DELAY_S_MIN: Final = 0.000_05
DELAY_S_MEAN: Final = 0.000_5

WINDOW_BYTES: Final = 128 * 1024
"""The maximum number of bytes in flight in one direction, including the receive buffer of the kernel."""

HIGH_WATER_BYTES: Final = 64 * 1024
"""The size of a transport's write buffer at which its protocol is paused, as in asyncio."""

CHUNK_BYTES_MAX: Final = 64 * 1024
SPLIT_PROBABILITY: Final = 0.1

RETRANSMISSION_S_MAX: Final = 2.0
"""The maximum time until TCP retransmits after a cut is healed."""

CONNECT_WAITS_S: Final = (1, 2, 4, 8, 16, 32, 64)
"""The waits of a machine between its attempts to connect, as on Linux by default."""

FIRST_FREE_PORT: Final = 32_768

_FIN: Final = "the other side sends no more"
_RESET: Final = "the other side knows of no such connection"

Packet = bytes | str
P = TypeVar("P", bound=asyncio.BaseProtocol)


class SimulatedNetwork:
    """All hosts, and the faults between them. Owned by the running event loop."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.loop = asyncio.get_running_loop()
        self.context = contextvars.Context()
        """The context of events between hosts, which belong to no process."""
        self._hosts: dict[str, SimulatedHost] = {}
        self._cuts: set[tuple[str, str]] = set()
        self._mean_s: dict[tuple[str, str], float] = {}
        self.held: dict[Way, None] = {}
        """Directions of connections whose data waits for the end of a cut."""

    def host(self, name: str) -> SimulatedHost:
        """The machine with this name, created if there is none."""
        if name not in self._hosts:
            self._hosts[name] = SimulatedHost(self, name, f"10.0.0.{len(self._hosts) + 1}")
        return self._hosts[name]

    def find(self, host: str) -> SimulatedHost | None:
        """The host with a name or an address."""
        return next((each for each in self._hosts.values() if host in (each.name, each.address)), None)

    def close(self) -> None:
        """Break every connection at the end of a simulation."""
        for host in self._hosts.values():
            for end in list(host.ends):
                end.break_off()

    # --- faults -------------------------------------------------------------------------------------

    def cut(self, sender: str, receiver: str) -> None:
        self._cuts.add((sender, receiver))

    def heal(self, sender: str, receiver: str) -> None:
        """End a cut: delayed packets are sent again."""
        self._cuts.discard((sender, receiver))
        for way in list(self.held):
            if way.names == (sender, receiver):
                del self.held[way]
                way.go_on()

    def heal_all(self) -> None:
        for sender, receiver in sorted(self._cuts):
            self.heal(sender, receiver)

    def is_cut(self, sender: str, receiver: str) -> bool:
        return (sender, receiver) in self._cuts

    def set_delay(self, sender: str, receiver: str, mean_s: float | None = None) -> None:
        """Set the mean delay of bytes in one direction; None for the default."""
        if mean_s is None:
            self._mean_s.pop((sender, receiver), None)
        else:
            self._mean_s[sender, receiver] = mean_s

    def reset(self, one: str, other: str) -> int:
        """Break the connections between two hosts. Returns their number."""
        ends = [end for end in self.host(one).ends if end.peer.host.name == other]
        for end in ends:
            end.break_off()
            end.peer.break_off()
        return len(ends)

    def delay_s(self, sender: str, receiver: str) -> float:
        """The delay of one packet: most are near the mean, few are much longer."""
        if sender == receiver:
            return DELAY_S_MIN
        mean_s = self._mean_s.get((sender, receiver), DELAY_S_MEAN)
        return DELAY_S_MIN + self.draw.expovariate(1 / mean_s)

    def call_at(self, when_s: float, callback: Callable[..., object], *arguments: object) -> None:
        self.loop.call_at(when_s, callback, *arguments, context=self.context)


class SimulatedHost:
    """One machine, as its process sees it: a `Network` with separate names, one address and separate ports."""

    def __init__(self, network: SimulatedNetwork, name: str, address: str) -> None:
        self.network = network
        self.name = name
        self.address = address
        self.has_power = True
        self.listeners: dict[int, _SimulatedSocket] = {}
        self.ends: dict[_End, None] = {}
        """The local side of each connection, in the order of their creation."""
        self._next_port = FIRST_FREE_PORT

    # --- the process's view -------------------------------------------------------------------------

    def host_name(self) -> str:
        return self.name

    async def addresses(self, host: str) -> Sequence[str]:
        found = self._find(host)
        if found is None:
            raise OSError(errno.EHOSTUNREACH, f"no host is called {host}")
        return (found.address,)

    def bind(
        self,
        host: str | None,
        port: int,
        *,
        receive_buffer_bytes: int | None = None,
        send_buffer_bytes: int | None = None,
    ) -> _SimulatedSocket:
        if host is not None and self._find(host) is not self:
            raise OSError(errno.EADDRNOTAVAIL, f"{host} is not an address of {self.name}")
        port = port or self.free_port()
        if port in self.listeners:
            raise OSError(errno.EADDRINUSE, f"port {port} is in use")
        bound = self.listeners[port] = _SimulatedSocket(self, port)
        return bound

    async def connect(self, host: str, port: int, new_protocol: Callable[[], P]) -> tuple[asyncio.Transport, P]:
        target = self._find(host)
        if target is None:
            raise OSError(errno.EHOSTUNREACH, f"no host is called {host}")
        network, context = self.network, contextvars.copy_context()
        for wait_s in CONNECT_WAITS_S:
            if await self._crosses(self, target):
                listener = target.listeners.get(port)
                accepted = None if listener is None else listener.accept(self)
                try:
                    if await self._crosses(target, self):
                        if accepted is None:
                            raise ConnectionRefusedError(errno.ECONNREFUSED, f"nobody listens at {host}:{port}")
                        return accepted.peer.begin(new_protocol(), context)
                except BaseException:
                    if accepted is not None:
                        accepted.break_off()
                    raise
                if accepted is not None:
                    accepted.break_off()
            await asyncio.sleep(wait_s)
        raise TimeoutError(errno.ETIMEDOUT, f"{host} does not answer to {self.name}, {network.loop.time():.3f}")

    async def _crosses(self, sender: SimulatedHost, receiver: SimulatedHost) -> bool:
        """Whether a packet arrives, after its delay."""
        await asyncio.sleep(self.network.delay_s(sender.name, receiver.name))
        return receiver.has_power and not self.network.is_cut(sender.name, receiver.name)

    def _find(self, host: str) -> SimulatedHost | None:
        return self if host in ("localhost", "127.0.0.1") else self.network.find(host)

    def free_port(self) -> int:
        self._next_port += 1
        return self._next_port

    # --- the end of processes and machines ----------------------------------------------------------

    def end_process(self) -> None:
        """Close everything that a killed process leaves behind, as the kernel does."""
        self.listeners.clear()
        for end in list(self.ends):
            end.vanish()
            end.way.send(self.network.draw.choice((_FIN, _RESET)))

    def lose_power(self) -> None:
        """End all connections at once, without a packet to their peers."""
        self.has_power = False
        self.listeners.clear()
        for end in list(self.ends):
            end.vanish()

    def power_up(self) -> None:
        self.has_power = True


class _SimulatedSocket:
    """A port of a host: a `BoundSocket`."""

    def __init__(self, host: SimulatedHost, port: int) -> None:
        self.port = port
        self._host = host
        self._new_protocol: NewProtocol | None = None
        self._context = contextvars.Context()

    async def listen(self, new_protocol: NewProtocol, backlog: int = BACKLOG) -> None:
        self._new_protocol, self._context = new_protocol, contextvars.copy_context()

    def accept(self, client: SimulatedHost) -> _End | None:
        """The local side of a new connection; None while no process listens here."""
        if self._new_protocol is None:
            return None
        end = _End(self._host, self.port)
        end.join(_End(client, client.free_port()))
        new_protocol = self._new_protocol
        self._host.network.loop.call_soon(
            lambda: end.is_gone or end.begin(new_protocol(), self._context), context=self._context
        )
        return end

    def close(self) -> None:
        if self._host.listeners.get(self.port) is self:
            del self._host.listeners[self.port]


class Way:
    """One direction between two hosts, or of one connection between them: packets arrive in the order in which they
    were sent.
    """

    def __init__(self, network: SimulatedNetwork, sender: str, receiver: str, receive: Callable[[Any], None]) -> None:
        self.under_way_bytes = 0
        self.names = (sender, receiver)
        self._network = network
        self._receive = receive
        self._packets: deque[Any] = deque()
        self._held_back = 0
        """The number of packets that were delayed by a cut."""
        self._last_s = 0.0

    def send(self, packet: Any) -> None:
        if isinstance(packet, bytes):
            self.under_way_bytes += len(packet)
        self._packets.append(packet)
        self._go(0.0)

    def _go(self, extra_s: float) -> None:
        network = self._network
        self._last_s = max(self._last_s, network.loop.time() + network.delay_s(*self.names) + extra_s)
        network.call_at(self._last_s, self._arrive)

    def _arrive(self) -> None:
        """Deliver the next packet in the order of sending."""
        if self._network.is_cut(*self.names):
            if self._packets[0] is _RESET:  # a reset is not retransmitted
                self._packets.popleft()
            else:
                self._held_back += 1
                self._network.held[self] = None
            return
        packet = self._packets.popleft()
        if isinstance(packet, bytes):
            self.under_way_bytes -= len(packet)
        self._receive(packet)

    def go_on(self) -> None:
        """Send the delayed packets again."""
        held_back, self._held_back = self._held_back, 0
        extra_s = self._network.draw.random() * RETRANSMISSION_S_MAX
        for _ in range(held_back):
            self._go(extra_s)


class _End(asyncio.Transport):
    """One side of a connection: the state of its kernel and of its transport."""

    peer: _End
    way: Way

    def __init__(self, host: SimulatedHost, port: int) -> None:
        super().__init__()
        self.host = host
        self.port = port
        self.is_gone = False
        """Whether the kernel has forgotten the connection."""
        self._loop = host.network.loop
        self._protocol: asyncio.BaseProtocol | None = None
        self._context = contextvars.Context()
        self._is_closing = False
        self._is_reading = True
        self._is_handing_over = False
        self._sends_no_more = False
        self._has_sent_all = False
        self._received: deque[Packet] = deque()
        self._received_bytes = 0
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._high_bytes = HIGH_WATER_BYTES
        self._low_bytes = HIGH_WATER_BYTES // 4
        self._is_writing_paused = False
        host.ends[self] = None

    def join(self, peer: _End) -> None:
        self.peer, peer.peer = peer, self
        network = self.host.network
        self.way = Way(network, self.host.name, peer.host.name, peer.receive)
        peer.way = Way(network, peer.host.name, self.host.name, self.receive)

    def begin(self, protocol: P, context: contextvars.Context) -> tuple[asyncio.Transport, P]:
        """Give the connection to a process. Raises ConnectionResetError if it is broken already."""
        if self.is_gone:
            raise ConnectionResetError(errno.ECONNRESET, "the connection broke as soon as it was there")
        self._protocol, self._context = protocol, context
        protocol.connection_made(self)
        self._hand_over_soon()
        return self, protocol

    # --- the kernel ---------------------------------------------------------------------------------

    def receive(self, packet: Packet) -> None:
        """Handle a packet that has arrived."""
        if not self.host.has_power:
            return
        if self.is_gone:
            if isinstance(packet, bytes):
                self.way.send(_RESET)
        elif packet is _RESET:
            self.break_off()
        elif not self._is_closing:
            self._received.append(packet)
            self._received_bytes += len(packet) if isinstance(packet, bytes) else 0
            self._hand_over_soon()

    def break_off(self) -> None:
        """Break the connection; its process is informed if it still uses it."""
        if not self.is_gone:
            self._forget()
            self._tell_lost(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))

    def vanish(self) -> None:
        """Like `break_off`, when no process is left to be informed."""
        self._forget()
        self._protocol = None

    def _forget(self) -> None:
        self.is_gone = self._is_closing = True
        self._received.clear()
        self._unsent.clear()
        self._unsent_bytes = 0
        self.host.ends.pop(self, None)

    def _tell_lost(self, error: OSError | None) -> None:
        protocol = self._protocol
        if protocol is not None:
            self._loop.call_soon(protocol.connection_lost, error, context=self._context)

    @property
    def has_room(self) -> bool:
        """Whether this side has room for more bytes, besides its received ones and those in flight to it."""
        return self.peer.way.under_way_bytes + self._received_bytes < WINDOW_BYTES

    def _send_what_can_be_sent(self) -> None:
        draw = self.host.network.draw
        while self._unsent and self.peer.has_room:
            data = self._unsent.popleft()
            size = min(len(data), CHUNK_BYTES_MAX)
            if size > 1 and draw.random() < SPLIT_PROBABILITY:
                size = draw.randrange(1, size)
            if size < len(data):
                self._unsent.appendleft(data[size:])
            self._unsent_bytes -= size
            self.way.send(data[:size])
        if self._is_writing_paused and self._unsent_bytes <= self._low_bytes:
            self._is_writing_paused = False
            assert self._protocol is not None
            self._loop.call_soon(self._protocol.resume_writing, context=self._context)
        if self._unsent or self.is_gone:
            return
        if (self._is_closing or self._sends_no_more) and not self._has_sent_all:
            self._has_sent_all = True
            self.way.send(_FIN)
        if self._is_closing:
            self._forget()
            self._tell_lost(None)

    # --- from the kernel to the protocol ------------------------------------------------------------

    def _hand_over_soon(self) -> None:
        if self._received and self._is_reading and self._protocol is not None and not self._is_handing_over:
            self._is_handing_over = True
            self._loop.call_soon(self._hand_over, context=self._context)

    def _hand_over(self) -> None:
        """Pass on the result of one read of a socket."""
        self._is_handing_over = False
        if not self._received or not self._is_reading or self._is_closing:
            return
        if self._received[0] is _FIN:
            self._received.popleft()
            assert isinstance(self._protocol, (asyncio.Protocol, asyncio.BufferedProtocol))
            if not self._protocol.eof_received():
                self.close()
            return
        data = b"".join(self._take())
        try:
            self._give(data)
        except Exception as error:  # noqa: BLE001 - like asyncio: the connection ends, the loop gets the error
            self._loop.call_exception_handler({"message": "a protocol failed to take bytes", "exception": error})
            self.abort()
            return
        self.peer._send_what_can_be_sent()
        self._hand_over_soon()

    def _take(self) -> Iterator[bytes]:
        while self._received and isinstance(self._received[0], bytes):
            packet = cast(bytes, self._received.popleft())
            self._received_bytes -= len(packet)
            yield packet

    def _give(self, data: bytes) -> None:
        protocol = self._protocol
        if isinstance(protocol, asyncio.Protocol):
            protocol.data_received(data)
            return
        assert isinstance(protocol, asyncio.BufferedProtocol)
        view = memoryview(data)
        while view and not self._is_closing:
            if not self._is_reading:
                self._received.appendleft(bytes(view))
                self._received_bytes += len(view)
                return
            buffer = memoryview(protocol.get_buffer(-1))
            size = min(len(buffer), len(view))
            buffer[:size] = view[:size]
            view = view[size:]
            protocol.buffer_updated(size)

    # --- the transport, as documented by asyncio ----------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        match name:
            case "peername":
                return (self.peer.host.address, self.peer.port)
            case "sockname":
                return (self.host.address, self.port)
        return default

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def is_closing(self) -> bool:
        return self._is_closing

    def is_reading(self) -> bool:
        return self._is_reading and not self._is_closing

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self._hand_over_soon()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_bytes = HIGH_WATER_BYTES if high is None else high
        self._low_bytes = self._high_bytes // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return (self._low_bytes, self._high_bytes)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing or self._sends_no_more or not data:
            return
        self._unsent.append(bytes(data))
        self._unsent_bytes += len(data)
        self._send_what_can_be_sent()
        if self._unsent_bytes > self._high_bytes and not self._is_writing_paused:
            self._is_writing_paused = True
            assert self._protocol is not None
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._is_closing and not self._sends_no_more:
            self._sends_no_more = True
            self._send_what_can_be_sent()

    def close(self) -> None:
        """Close the connection after all written data was sent."""
        if not self._is_closing:
            self._is_closing = True
            self._received.clear()
            self._received_bytes = 0
            self._send_what_can_be_sent()

    def abort(self) -> None:
        if not self.is_gone:
            self._forget()
            self.way.send(_RESET)
            self._tell_lost(None)
