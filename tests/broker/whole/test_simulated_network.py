"""The network in memory and the processes on one loop: which of TCP's and the kernel's promises they keep, and what
their faults do (tools/simulation/world/network.py, processes.py).
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from tools.simulation.world.network import HIGH_WATER_BYTES, WINDOW_BYTES, SimulatedNetwork
from tools.simulation.world.processes import Process, run_processes

SEEDS = range(20)


class World:
    """Two hosts, a and b, each with a process; what b's server has got, by connection."""

    def __init__(self, seed: int) -> None:
        self.network = SimulatedNetwork(seed)
        self.loop = asyncio.get_running_loop()
        self.a, self.b = (Process(name, self.network.host(name)) for name in "ab")
        self.servers: list[Receiver] = []
        self.streams: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def listen(self) -> None:
        assert self.b.host is not None
        bound = self.b.host.bind("b", 9092)
        await self.b.start(bound.listen(self.new_server))

    def new_server(self) -> "Receiver":
        self.servers.append(Receiver())
        return self.servers[-1]

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]
        streams = await self.a.start(asyncio.open_connection("b", 9092))
        self.streams.append(streams)
        return streams


class Receiver(asyncio.Protocol):
    """Takes what comes; says what happened to its connection."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.lost: list[Exception | None] = []
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


def in_world(seeds: range = SEEDS) -> Callable[[Callable[[World], Coroutine[Any, Any, None]]], Callable[[], None]]:
    def decorate(test: Callable[[World], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        async def run(seed: int) -> None:
            world = World(seed)
            await world.listen()
            try:
                await test(world)
            finally:
                world.network.close()

        def run_all() -> None:
            for seed in seeds:
                print(f"seed {seed}")
                run_processes(seed, run(seed))

        run_all.__name__ = test.__name__
        return run_all

    return decorate


def some_bytes(draw: random.Random) -> list[bytes]:
    return [draw.randbytes(draw.randrange(1, 40_000)) for _ in range(30)]


@in_world()
async def test_bytes_arrive_once_in_order_despite_delays_and_cuts(world: World) -> None:
    draw = world.network.draw
    _, writer = await world.connect()
    sent = some_bytes(draw)

    async def send() -> None:
        for data in sent:
            writer.write(data)
            await asyncio.sleep(draw.random() * 0.01)
        writer.close()

    sending = world.a.start(send())
    while not sending.done():
        await asyncio.sleep(draw.random() * 0.02)
        match draw.randrange(4):
            case 0:
                world.network.cut("a", "b")
            case 1:
                world.network.heal_all()
            case 2:
                world.servers[0].transport.pause_reading()
            case 3:
                world.servers[0].transport.resume_reading()
    world.network.heal_all()
    world.servers[0].transport.resume_reading()
    await asyncio.sleep(10)
    assert bytes(world.servers[0].data) == b"".join(sent)
    assert world.servers[0].lost == [None]


@in_world()
async def test_a_receiver_that_does_not_read_holds_the_sender_back(world: World) -> None:
    _, writer = await world.connect()
    await asyncio.sleep(1)
    server = world.servers[0]
    server.transport.pause_reading()
    sent = 0

    async def send() -> None:
        nonlocal sent
        for _ in range(100):
            writer.write(bytes(10_000))
            await writer.drain()
            sent += 10_000

    sending = world.a.start(send())
    await asyncio.sleep(10)
    assert not sending.done()
    assert sent <= WINDOW_BYTES + HIGH_WATER_BYTES + 10_000
    server.transport.resume_reading()
    await sending
    await asyncio.sleep(10)
    assert len(server.data) == 1_000_000


@in_world(range(3))
async def test_a_connection_without_a_listener_is_refused(world: World) -> None:
    with pytest.raises(ConnectionRefusedError):
        await world.a.start(asyncio.open_connection("b", 9093))
    with pytest.raises(OSError, match="no host is called c"):
        await world.a.start(asyncio.open_connection("c", 9092))


@in_world()
async def test_a_connection_across_a_cut_waits_for_its_end(world: World) -> None:
    world.network.cut("b", "a")
    connecting = world.a.start(asyncio.open_connection("b", 9092))
    await asyncio.sleep(20)
    assert not connecting.done()
    world.network.heal("b", "a")
    world.streams.append(await connecting)


@in_world(range(3))
async def test_a_host_that_does_not_answer_is_given_up(world: World) -> None:
    world.network.cut("a", "b")
    began_s = world.loop.time()
    with pytest.raises(TimeoutError):
        await world.a.start(asyncio.open_connection("b", 9092))
    assert 100 < world.loop.time() - began_s < 150


@in_world()
async def test_a_cut_is_one_way(world: World) -> None:
    reader, writer = await world.connect()
    await asyncio.sleep(1)
    world.network.cut("a", "b")
    writer.write(b"held")
    world.servers[0].transport.write(b"through")
    assert await reader.readexactly(7) == b"through"
    await asyncio.sleep(100)
    assert not world.servers[0].data
    world.network.heal("a", "b")
    await asyncio.sleep(5)
    assert world.servers[0].data == b"held"


@in_world()
async def test_a_reset_is_heard_of_on_both_sides(world: World) -> None:
    reader, _ = await world.connect()
    await asyncio.sleep(1)
    assert world.network.reset("b", "a") == 1
    with pytest.raises(ConnectionResetError):
        await reader.read()
    assert [type(each) for each in world.servers[0].lost] == [ConnectionResetError]


@in_world()
async def test_peers_learn_of_a_killed_process(world: World) -> None:
    """The process does nothing more."""
    reader, writer = await world.connect()
    ticks: list[float] = []
    cleaned_up: list[str] = []

    async def tick() -> None:
        try:
            while True:
                await asyncio.sleep(1)
                ticks.append(world.loop.time())
                world.loop.call_soon(ticks.append, 0.0)
        finally:
            cleaned_up.append("the coroutine's own")
            asyncio.get_running_loop().call_soon(ticks.append, -1.0)

    world.b.start(tick())
    await asyncio.sleep(5.5)
    assert len(ticks) == 10
    world.b.kill()
    assert world.b.host is not None
    world.b.host.end_process()
    with suppress(ConnectionResetError):
        assert await reader.read() == b""
    with suppress(OSError):
        writer.write(b"x")
        await writer.drain()
    with pytest.raises(ConnectionRefusedError):
        await world.connect()
    await asyncio.sleep(5)
    assert len(ticks) == 10
    assert world.servers[0].lost == []


@in_world()
async def test_a_power_loss_is_noticed_by_the_next_request(world: World) -> None:
    reader, writer = await world.connect()
    assert world.b.host is not None
    world.b.kill()
    world.b.host.lose_power()
    writer.write(b"lost")
    reading = world.a.start(reader.read())
    await asyncio.sleep(60)
    assert not reading.done()
    world.b.host.power_up()
    await asyncio.sleep(60)
    assert not reading.done()
    writer.write(b"x")
    with pytest.raises(ConnectionResetError):
        await reading


@in_world()
async def test_a_paused_process_does_its_work_later_in_order(world: World) -> None:
    _, writer = await world.connect()
    done: list[int] = []

    async def count() -> None:
        for number in range(10):
            await asyncio.sleep(1)
            done.append(number)

    world.b.start(count())
    await asyncio.sleep(3.5)
    world.b.pause()
    for _ in range(5):
        writer.write(b"0123456789")
        await asyncio.sleep(1)
    assert done == [0, 1, 2]
    assert not world.servers[0].data
    world.b.resume()
    await asyncio.sleep(0.5)
    assert done == [0, 1, 2, 3]
    assert world.servers[0].data == b"0123456789" * 5
    await asyncio.sleep(10)
    assert done == list(range(10))


def test_a_seed_tells_the_same_story_again() -> None:
    async def story(seed: int) -> list[Any]:
        world = World(seed)
        await world.listen()
        told: list[Any] = []

        async def talk(number: int) -> None:
            reader, writer = await asyncio.open_connection("b", 9092)
            for _ in range(5):
                writer.write(b"%d" % number)
                await asyncio.sleep(0.001)
                told.append((world.loop.time(), number, [bytes(server.data) for server in world.servers]))
            writer.close()
            with suppress(OSError):
                await reader.read()

        await asyncio.gather(*(world.a.start(talk(number)) for number in range(5)))
        return told

    stories = [[run_processes(seed, story(seed)) for seed in range(5)] for _ in range(2)]
    assert stories[0] == stories[1]
    assert len({str(each) for each in stories[0]}) == 5
