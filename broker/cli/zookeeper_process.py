"""The process around a server of ZooKeeper's protocol: signals that end it, the ready line, the exit status."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import barnabas
from barnabas.broker.cli.ready import print_ready
from barnabas.broker.configuration.config import parse_address
from barnabas.broker.timers import Timers
from barnabas.clock import SystemClock
from barnabas.controller.coordination.stored_tree import StoredTree
from barnabas.controller.coordination.zookeeper_server.authentication import Authentication
from barnabas.controller.coordination.zookeeper_server.server import NEWCOMERS_MAX, ZooKeeperServer
from barnabas.network import OsNetwork
from barnabas.storage.descriptors import descriptor_reserve
from barnabas.storage.os_files import OsFiles
from barnabas.threads import OsThreads, Threads

if TYPE_CHECKING:
    from barnabas.broker.cli.zookeeper_config import ZooKeeperConfig
    from barnabas.broker.network.port_tls import PortTls

logger = logging.getLogger(__name__)

DEFAULT_ADDRESS = "127.0.0.1:2181"

MEMORY = ":memory:"

HANDSHAKES_MAX = NEWCOMERS_MAX
"""The limit of handshakes of TLS at once: that of connections without a session."""


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


def addresses(listen: str | None, config: ZooKeeperConfig | None) -> tuple[str | None, int]:
    """Host and port without TLS; no host if there is only a port with TLS. Errors: ValueError, also if others could
    connect to either port without showing a certificate."""
    if config is not None and config.secure_address is not None and not config.requires_certificates:
        _require_loopback("secureClientPortAddress", config.secure_address)
    if listen is not None:
        return _require_loopback("--listen", listen)
    if config is None or (config.address is None and config.secure_address is None):
        return _require_loopback("--listen", DEFAULT_ADDRESS)
    return (None, 0) if config.address is None else _require_loopback("clientPortAddress", config.address)


def _require_loopback(name: str, address: str) -> tuple[str, int]:
    try:
        return loopback_address(address)
    except ValueError as error:
        raise ValueError(f"{name} {address}: {error}") from None


def new_server(
    path: str,
    on_failure: Callable[[str], None],
    descriptors: int | None = None,
    config: ZooKeeperConfig | None = None,
) -> ZooKeeperServer:
    """A server over the file at `path`, with the machine's clock and network, for the running event loop. Its
    connections leave those of the process's `descriptors` free that are reserved for files; by default there are as
    many as the system allows. `config` has the users of SASL."""
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
        authentication=None if config is None else _authentication(config),
    )


def _authentication(config: ZooKeeperConfig) -> Authentication:
    from barnabas.broker.security.tls.principal_mapping import subject_of

    passwords = config.passwords
    return Authentication(os.urandom, None if passwords is None else passwords.get, subject_of, config.superusers)


def port_tls(config: ZooKeeperConfig, timers: Timers, threads: Threads) -> PortTls:
    """The TLS of the port that has it. Blocking. Raises TlsConfigError."""
    from barnabas.broker.network.port_tls import PortTls

    assert config.tls is not None, "a port with TLS has settings"
    return PortTls("secureClientPort", config.tls, timers, threads, HANDSHAKES_MAX)


async def run(host: str | None, port: int, file: Path | None, config: ZooKeeperConfig | None = None) -> int:
    """Serve until SIGTERM or SIGINT; returns the process's exit status (1 after the file failed). Without a host there
    is no port without TLS.

    Raises: StoreUnavailable, OSError, TlsConfigError.
    """
    end, failures = asyncio.Event(), list[str]()

    def fail(reason: str) -> None:
        failures.append(reason)
        end.set()

    for stop_signal in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(stop_signal, end.set)
    timers = Timers(SystemClock(), asyncio.get_running_loop())
    server = new_server(MEMORY if file is None else str(file), fail, config=config)
    try:
        server.open()
        addresses = [] if host is None else [_address(host, await server.listen(host, port))]
        if config is not None and config.secure_address is not None:
            addresses.append(f"secure={await _listen_with_tls(server, config, timers)}")
        logger.info(
            "znodes are kept in %s", "memory only, and are lost when this process ends" if file is None else file
        )
        print_ready(f"ready: {' '.join(addresses)}")
        await end.wait()
    finally:
        server.close()
        timers.close()
    return 1 if failures else 0


async def _listen_with_tls(server: ZooKeeperServer, config: ZooKeeperConfig, timers: Timers) -> str:
    """Accept connections on the port with TLS; returns its address."""
    host, port = parse_address(config.secure_address or "")
    assert host is not None, "there is a host by default"
    return _address(host, await server.listen(host, port, port_tls(config, timers, OsThreads()).before))


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
