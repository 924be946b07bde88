"""Sockets to listen on: bound before the broker registers itself (port 0 becomes a real port), listening only when it
is ready."""

import socket
from collections.abc import Mapping

from barnabas.broker.configuration.config import DEFAULT, BrokerConfig
from barnabas.broker.configuration.listeners import Endpoint, Listener


class BoundListener:
    """A bound socket and the address that clients of this listener are told.

    `options` are set on the socket (option of SOL_SOCKET: value), and so on every socket that it accepts.
    """

    def __init__(self, listener: Listener, options: Mapping[int, int]) -> None:
        self.listener = listener
        self.socket = _bind(listener)
        for option, value in options.items():
            self.socket.setsockopt(socket.SOL_SOCKET, option, value)
        bound_port: int = self.socket.getsockname()[1]
        self.bound = Endpoint(listener.host or "0.0.0.0", bound_port)
        self.advertised = Endpoint(
            listener.advertised_host or listener.host or socket.gethostname(),
            bound_port if listener.advertised_port is None else listener.advertised_port,
        )

    @property
    def name(self) -> str:
        return self.listener.name

    def __str__(self) -> str:
        host = f"[{self.advertised.host}]" if ":" in self.advertised.host else self.advertised.host
        return f"{self.name}://{host}:{self.advertised.port}"


def socket_options(config: BrokerConfig) -> dict[int, int]:
    """Buffer sizes of accepted sockets that somebody asked for; else the system adapts them, which is faster than
    Kafka's default of 100 KiB."""
    wanted = (
        ("socket.receive.buffer.bytes", socket.SO_RCVBUF, config.socket_receive_buffer_bytes),
        ("socket.send.buffer.bytes", socket.SO_SNDBUF, config.socket_send_buffer_bytes),
    )
    return {option: size for key, option, size in wanted if config.source(key) != DEFAULT and size != -1}


def _bind(listener: Listener) -> socket.socket:
    """Bind without listening: until then the port is ours and clients are refused. Raises OSError with the address in
    its text."""
    everywhere = listener.host is None
    dual_stack = everywhere and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual_stack or ":" in (listener.host or "") else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if dual_stack else 1)
        bound.bind((listener.host or ("::" if dual_stack else "0.0.0.0"), listener.port))
    except OSError as error:
        bound.close()
        raise OSError(
            error.errno, f"cannot listen on {listener.name}://{listener.host or ''}:{listener.port}: {error.strerror}"
        ) from error
    bound.setblocking(False)
    return bound
