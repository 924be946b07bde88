"""This broker's connections to the other brokers of its cluster, by broker and purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from barnabas.broker.cluster.metadata import MetadataCache
from barnabas.broker.network.peer_connection import PeerConnection, PeerLogin
from barnabas.broker.network.session import client_id_of_broker
from barnabas.broker.security.sasl.plain import Credentials
from barnabas.network import Network
from barnabas.timers import Timers
from barnabas.wire.framing import ReceiveBuffer

if TYPE_CHECKING:
    from barnabas.broker.security.tls.contexts import Tls


class Peers:
    """Connections to live brokers, at the addresses of their inter-broker listener; owned by the event loop.

    Each `purpose` has connections of its own ("controller", "fetcher-0", "markers"), so that a waiting request, such as
    a long poll, delays only its like.

    Args:
        network: opens connections.
        metadata: has the live brokers and their addresses.
        listener_name: the inter-broker listener (`inter.broker.listener.name`).
        timers: end the wait for responses.
        node_id: this broker's id, which client ids contain.
        request_timeout_ms: the default timeout of a request.
        credentials: this broker's secret for the others.
        tls: the present TLS of the inter-broker listener, if that has any.
        login: how this broker logs in to the others, where their listener asks for SASL; called for each connection.
    """

    def __init__(
        self,
        network: Network,
        metadata: MetadataCache,
        listener_name: str,
        timers: Timers,
        node_id: int,
        request_timeout_ms: int,
        credentials: Credentials | None = None,
        tls: Callable[[], Tls] | None = None,
        login: Callable[[], PeerLogin | None] = lambda: None,
    ) -> None:
        self._tls = tls
        self._network = network
        self._metadata = metadata
        self._listener_name = listener_name
        self._timers = timers
        self._node_id = node_id
        self._request_timeout_ms = request_timeout_ms
        self._credentials = credentials
        self._login = login
        self._receive_buffer = ReceiveBuffer()
        self._connections: dict[tuple[int, str], PeerConnection] = {}
        metadata.listeners[self._follow_addresses] = None

    def connection(
        self, broker_id: int, purpose: str, address: Callable[[], tuple[str, int] | None] | None = None
    ) -> PeerConnection:
        """The connection to a broker for a purpose, always the same one: it stays usable when the broker restarts at
        another address; requests in flight to the former address fail at once.

        `address` returns the broker's address, for a caller that knows better than the metadata (the controller, which
        updates the metadata).
        """
        connection = self._connections.get((broker_id, purpose))
        if connection is None:
            connection = self._connections[broker_id, purpose] = PeerConnection(
                self._network,
                partial(self.address, broker_id) if address is None else address,
                self._timers,
                client_id_of_broker(self._node_id, purpose),
                self._request_timeout_ms,
                name=f"broker {broker_id}",
                receive_buffer=self._receive_buffer,
                credentials=self._credentials,
                tls=self._tls,
                login=self._login(),
            )
        return connection

    def connections(self) -> Iterator[tuple[int, str, PeerConnection]]:
        """All connections that were created so far: broker id, purpose, connection."""
        for (broker_id, purpose), connection in self._connections.items():
            yield broker_id, purpose, connection

    def address(self, broker_id: int) -> tuple[str, int] | None:
        """The address of a broker for other brokers; None when it is not alive."""
        endpoint = self._metadata.endpoint(broker_id, self._listener_name)
        return None if endpoint is None else (endpoint.host, endpoint.port)

    def close(self) -> None:
        """Close all connections; requests in flight fail."""
        self._metadata.listeners.pop(self._follow_addresses, None)
        for connection in self._connections.values():
            connection.close()

    def _follow_addresses(self) -> None:
        for connection in self._connections.values():
            connection.follow_address()
