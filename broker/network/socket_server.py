"""The network side of a broker, Kafka's SocketServer: its listeners, and their connections.

Addresses are bound before the broker registers itself (port 0 becomes a real port), and accept connections only when it
is ready.
"""

import asyncio
import logging
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Final

from barnabas.broker.configuration.config import DEFAULT, BrokerConfig
from barnabas.broker.configuration.listeners import SASL_PLAINTEXT, SASL_SSL, SSL, Endpoint, Listener
from barnabas.broker.network.connection import Connection, RequestServer, SharedResources
from barnabas.broker.network.connections import Connections
from barnabas.broker.network.listener import ListenerContext, PrincipalSource
from barnabas.inflight_budget import InflightBudget
from barnabas.network import BoundSocket, Network, NewProtocol
from barnabas.timers import Timers
from barnabas.wire.framing import ReceiveBuffer

if TYPE_CHECKING:
    from barnabas.broker.network.listener_tls import TlsListeners

logger = logging.getLogger(__name__)

DEFAULT_INFLIGHT_BYTES_MAX: Final = 128 * 1024 * 1024
"""The limit of unfinished requests where `queued.max.request.bytes` is Kafka's default (-1, no limit at all)."""

_STRANGERS: Final = {
    SASL_PLAINTEXT: "unencrypted: who can see the network can read passwords and records (SASL_PLAINTEXT)",
    SSL: "encrypted, and without a certificate unauthenticated (SSL, ssl.client.auth)",
}

_OTHER_ADDRESS: Final = "Listen elsewhere (--listen, listeners; port 0 takes a free one), or stop what uses it"


class BoundListener:
    """A listener with a bound port, and its advertised address."""

    def __init__(self, listener: Listener, bound: BoundSocket, host_name: str) -> None:
        self.listener = listener
        self.bound = bound
        self.is_listening = False
        self.advertised = Endpoint(
            listener.advertised_host or listener.host or host_name,
            bound.port if listener.advertised_port is None else listener.advertised_port,
        )

    @property
    def name(self) -> str:
        return self.listener.name

    def __str__(self) -> str:
        host = f"[{self.advertised.host}]" if ":" in self.advertised.host else self.advertised.host
        return f"{self.name}://{host}:{self.advertised.port}"


class SocketServer:
    """Listens on every listener of `config`, and keeps the accepted connections in `connections`; owned by the event
    loop. `timers` end the throttling of clients; `tls` has the settings of the listeners with TLS.
    """

    def __init__(
        self,
        config: BrokerConfig,
        network: Network,
        connections: Connections,
        timers: Timers,
        tls: "TlsListeners | None" = None,
    ) -> None:
        self._config = config
        self._tls = tls
        self._network = network
        self._connections = connections
        limit_bytes = config.queued_max_request_bytes
        self._shared = SharedResources(
            connections,
            ReceiveBuffer(),
            InflightBudget(limit_bytes if limit_bytes > 0 else DEFAULT_INFLIGHT_BYTES_MAX),
            timers,
            config.socket_request_max_bytes,
        )
        self._listeners: list[BoundListener] = []
        self._connection_count = 0

    @property
    def advertised(self) -> list[BoundListener]:
        """The listeners that are advertised to clients, in the order of the configuration."""
        return [listener for listener in self._listeners if listener.listener.advertised]

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT of the first listener."""
        endpoint = self._listeners[0].advertised
        return f"{endpoint.host}:{endpoint.port}"

    @property
    def ports(self) -> dict[str, int]:
        """The port that each listener is bound to, by its name."""
        return {listener.name: listener.bound.port for listener in self._listeners}

    def bind(self) -> None:
        """Bind the ports without listening. Raises OSError with the address in its text; call `close` then, too."""
        config = self._config
        receive_buffer_bytes = self._asked_for("socket.receive.buffer.bytes", config.socket_receive_buffer_bytes)
        send_buffer_bytes = self._asked_for("socket.send.buffer.bytes", config.socket_send_buffer_bytes)
        for listener in config.listeners:
            try:
                bound = self._network.bind(
                    listener.host,
                    listener.port,
                    receive_buffer_bytes=receive_buffer_bytes,
                    send_buffer_bytes=send_buffer_bytes,
                )
            except OSError as error:
                raise _refused(listener, error) from error
            self._listeners.append(BoundListener(listener, bound, self._network.host_name()))

    def _asked_for(self, key: str, size: int) -> int | None:
        """The configured size of buffers; by default None: the system adapts them, which is faster than Kafka's default
        of 100 KiB."""
        return None if self._config.source(key) == DEFAULT or size == -1 else size

    async def listen(
        self,
        requests: RequestServer,
        names: Collection[str] | None = None,
        principal_source: PrincipalSource | None = None,
    ) -> None:
        """Accept connections on the listeners of these names, by default on all that do not listen yet, and have
        `requests` serve their requests. Raises OSError as `bind` does."""
        for listener in self._listeners:
            if listener.is_listening or (names is not None and listener.name not in names):
                continue
            listener.is_listening = True
            if not listener.listener.is_loopback:
                self._warn_of_strangers(listener.listener)
            new_protocol = self._new_protocol(listener.listener, requests, principal_source)
            try:
                await listener.bound.listen(new_protocol, self._config.socket_listen_backlog_size)
            except OSError as error:  # another process had bound the port as well, and listened first
                raise _refused(listener.listener, error) from error

    def _warn_of_strangers(self, listener: Listener) -> None:
        """Warn of what a listener beyond this machine lacks. With an authorizer, clients that have not authenticated
        may do what ACLs permit to everybody."""
        if listener.security_protocol != SASL_PLAINTEXT and self._config.value("authorizer.class.name"):
            return
        client_auth = self._config.value_for_listener(listener.name, "ssl.client.auth")
        told = _STRANGERS.get(listener.security_protocol, "unencrypted and unauthenticated (PLAINTEXT)")
        if listener.security_protocol == SASL_SSL or (listener.security_protocol == SSL and client_auth == "required"):
            return
        logger.warning("listener %s accepts connections from other machines, %s", listener.name, told)

    def _new_protocol(
        self, listener: Listener, requests: RequestServer, principal_source: PrincipalSource | None
    ) -> NewProtocol:
        """Makes the protocol of accepted connections: with TLS, that of the handshake before it."""
        context = ListenerContext.of(self._config, listener.name, principal_source)
        if not listener.has_tls:
            return partial(self._new_connection, requests, context)
        assert self._tls is not None, "a listener with TLS has no settings"
        tls = self._tls[listener.name]
        context = context._replace(principal_of=tls.principal_of)
        return self._tls.handshakes.before(partial(self._new_connection, requests, context), tls)

    def _new_connection(self, requests: RequestServer, listener: ListenerContext) -> Connection:
        self._connection_count += 1
        return Connection(requests, self._shared, listener, self._connection_count)

    async def stop(self, *, cuts: bool = False) -> None:
        """Accept no more connections, and close all: after the responses on their way have been sent, or at once."""
        self.close()
        self._connections.is_over = True
        for connection in self._connections:
            with self._connections.set_aside.attempt(connection):
                if cuts:
                    connection.abort()
                else:
                    connection.close()
        await asyncio.sleep(0)  # lets transports flush and protocols be notified
        await asyncio.gather(*self._connections.sending, return_exceptions=True)

    def close(self) -> None:
        """Close the listening sockets; connections stay."""
        for listener in self._listeners:
            listener.bound.close()


def _refused(listener: Listener, error: OSError) -> OSError:
    address = f"{listener.name}://{listener.host or ''}:{listener.port}"
    return OSError(error.errno, f"cannot listen on {address}: {error.strerror}. {_OTHER_ADDRESS}")
