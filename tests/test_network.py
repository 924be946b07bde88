"""The machine's network, as a broker is handed it."""

import asyncio
import gc
import socket
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest
import uvloop

from barnabas.network import OsNetwork, peer_host
from tools.waiting import PATIENCE_S


class Greeter(asyncio.Protocol):
    """Says hello to whoever connects."""

    def connection_made(self, transport: Any) -> None:
        own: socket.socket = transport.get_extra_info("socket")
        self.receive_buffer_bytes = own.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        self.send_buffer_bytes = own.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        transport.write(b"hello")
        transport.close()


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


async def greeting(host: str, port: int) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_one_of_two_processes_gets_a_port(run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    """Both may bind as long as nobody listens (SO_REUSEADDR); uvloop's server says nothing of the second one."""

    async def listen() -> None:
        first = OsNetwork().bind("127.0.0.1", 0)
        second = OsNetwork().bind("127.0.0.1", first.port)
        await first.listen(Greeter)
        with pytest.raises(OSError, match="in use"):
            await second.listen(Greeter)
        assert await greeting("127.0.0.1", first.port) == b"hello"
        first.close()
        second.close()

    run(listen())


@in_loop
async def test_a_port_accepts_connections_between_listen_and_close() -> None:
    network = OsNetwork()
    bound = network.bind("127.0.0.1", 0)
    with pytest.raises(ConnectionRefusedError):
        await greeting("127.0.0.1", bound.port)
    await bound.listen(Greeter)
    with pytest.raises(OSError, match="in use"):
        network.bind("127.0.0.1", bound.port)
    assert await greeting("127.0.0.1", bound.port) == b"hello"
    bound.close()
    bound.close()
    with pytest.raises(ConnectionRefusedError):
        await greeting("127.0.0.1", bound.port)
    network.bind("127.0.0.1", bound.port).close()


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
@in_loop
async def test_no_host_means_every_address() -> None:
    everywhere = OsNetwork().bind(None, 0)
    await everywhere.listen(Greeter)
    assert await greeting("127.0.0.1", everywhere.port) == await greeting("::1", everywhere.port) == b"hello"
    everywhere.close()
    of_ipv6 = OsNetwork().bind("::1", 0)
    await of_ipv6.listen(Greeter)
    assert await greeting("::1", of_ipv6.port) == b"hello"
    with pytest.raises(ConnectionRefusedError):
        await greeting("127.0.0.1", of_ipv6.port)
    of_ipv6.close()


@in_loop
async def test_accepted_sockets_have_the_buffers_that_were_asked_for() -> None:
    bound = OsNetwork().bind("127.0.0.1", 0, receive_buffer_bytes=20_000, send_buffer_bytes=40_000)
    greeters: list[Greeter] = []

    def greeter() -> Greeter:
        greeters.append(Greeter())
        return greeters[-1]

    await bound.listen(greeter)
    await greeting("127.0.0.1", bound.port)
    bound.close()
    assert [greeters[0].receive_buffer_bytes, greeters[0].send_buffer_bytes] in ([20_000, 40_000], [40_000, 80_000])


@in_loop
async def test_a_name_has_addresses_and_an_unknown_one_is_refused() -> None:
    assert "127.0.0.1" in await OsNetwork().addresses("localhost")
    assert await OsNetwork().addresses("127.0.0.1") == ("127.0.0.1",)
    with pytest.raises(OSError, match=r".+"):
        await OsNetwork().addresses("no-such-host.invalid")


@pytest.mark.parametrize(
    ("peername", "host"),
    [
        (("10.0.0.1", 4711), "10.0.0.1"),
        (("::ffff:10.0.0.1", 4711, 0, 0), "10.0.0.1"),
        (("2001:db8::1", 4711, 0, 0), "2001:db8::1"),
        (None, ""),
        ("", ""),
    ],
)
def test_the_host_of_a_peer(peername: Any, host: str) -> None:
    assert peer_host(asyncio.Transport({"peername": peername})) == host


@pytest.mark.slow
@pytest.mark.parametrize("turns", range(5))
def test_a_connection_accepted_during_the_close_is_reported(turns: int) -> None:
    async def close_meanwhile() -> bytes:
        bound = OsNetwork().bind("127.0.0.1", 0)
        await bound.listen(Greeter)
        with socket.create_connection(("127.0.0.1", bound.port)) as client:  # before the event loop has a turn
            client.setblocking(False)
            for _ in range(turns):
                await asyncio.sleep(0)
            bound.close()
            try:
                return await asyncio.get_running_loop().sock_recv(client, 100)
            except ConnectionResetError:
                return b"not accepted yet"

    answer = asyncio.run(asyncio.wait_for(close_meanwhile(), PATIENCE_S))
    gc.collect()  # what was left open says so now, which fails the test
    assert answer in (b"hello", b"not accepted yet")
