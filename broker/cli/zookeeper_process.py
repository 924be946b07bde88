"""The process around a server of ZooKeeper's protocol: signals that end it, the ready line, the exit status."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path

import barnabas
from barnabas.broker.cli.ready import print_ready
from barnabas.broker.configuration.config import parse_address
from barnabas.broker.timers import Timers
from barnabas.clock import SystemClock
from barnabas.controller.coordination.stored_tree import StoredTree
from barnabas.controller.coordination.zookeeper_server.server import ZooKeeperServer
from barnabas.network import OsNetwork
from barnabas.storage.descriptors import descriptor_reserve
from barnabas.storage.os_files import OsFiles

logger = logging.getLogger(__name__)

MEMORY = ":memory:"


def loopback_address(address: str) -> tuple[str, int]:
    """Host and port of a loopback address. Errors: ValueError."""
    host, port = parse_address(address)
    if host == "localhost":
        return "127.0.0.1", port
    try:
        is_loopback = host is not None and ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if host is None or not is_loopback:
        raise ValueError(
            "only this machine may connect, so it has to be a loopback address (127.0.0.1, [::1]);"
            " across machines, use a real ZooKeeper ensemble"
        )
    return host, port


def new_server(path: str, on_failure: Callable[[str], None], descriptors: int | None = None) -> ZooKeeperServer:
    """A server over the file at `path`, with the machine's clock and network, for the running event loop. Its
    connections leave those of the process's `descriptors` free that are reserved for files; by default there are as
    many as the system allows."""
    clock = SystemClock()
    if descriptors is None:
        descriptors = OsFiles().descriptor_limit()  # as a broker does
    return ZooKeeperServer(
        StoredTree(path, clock, is_durable=True),
        OsNetwork(),
        clock,
        Timers(clock, asyncio.get_running_loop()),
        os.urandom,
        on_failure,
        version=f"3.9 (barnabas {barnabas.__version__})",
        connections_max=descriptors - descriptor_reserve(descriptors),
    )


async def run(host: str, port: int, file: Path | None) -> int:
    """Serve until SIGTERM or SIGINT; returns the process's exit status (1 after the file failed).

    Raises: StoreUnavailable, OSError.
    """
    end, failures = asyncio.Event(), list[str]()

    def fail(reason: str) -> None:
        failures.append(reason)
        end.set()

    for stop_signal in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(stop_signal, end.set)
    server = new_server(MEMORY if file is None else str(file), fail)
    try:
        server.open()
        number = await server.listen(host, port)
        logger.info(
            "znodes are kept in %s", "memory only, and are lost when this process ends" if file is None else file
        )
        print_ready(f"ready: {f'[{host}]' if ':' in host else host}:{number}")
        await end.wait()
    finally:
        server.close()
    return 1 if failures else 0
