"""This broker's connections to the other brokers of its cluster, by broker and by what they are used for."""

from collections.abc import Callable, Iterator
from functools import partial

from barnabas.broker.cluster.metadata import MetadataCache
from barnabas.broker.network.peer_connection import PeerConnection
from barnabas.broker.network.session import client_id_of_broker
from barnabas.broker.security.sasl_plain import Credentials
from barnabas.network import Network
from barnabas.timers import Timers
from barnabas.wire.framing import ReceiveBuffer


class Peers:
    """Connections to live brokers, at the addresses of their inter-broker listener; owned by the event loop.

    What is used for different things has connections of its own (`purpose`: "controller", "fetcher-0", "markers"), so
    that a request which waits, as a long poll does, holds up nothing but its like.

    Args:
        network: what opens connections.
        metadata: knows who is alive, and where.
        listener_name: the inter-broker listener (`inter.broker.listener.name`).
        timers: end the wait for answers.
        node_id: this broker's id, which client ids name.
        request_timeout_ms: how long an answer may take where the request says nothing else.
        credentials: what shows the others who this broker is.
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
    ) -> None:
        self._network = network
        self._metadata = metadata
        self._listener_name = listener_name
        self._timers = timers
        self._node_id = node_id
        self._request_timeout_ms = request_timeout_ms
        self._credentials = credentials
        self._receive_buffer = ReceiveBuffer()
        self._connections: dict[tuple[int, str], PeerConnection] = {}
        metadata.listeners[self._follow_addresses] = None

    def connection(
        self, broker_id: int, purpose: str, address: Callable[[], tuple[str, int] | None] | None = None
    ) -> PeerConnection:
        """The connection to a broker for a purpose, always the same one: it stays usable when the broker goes and comes
        back elsewhere, while what was under way to the former place fails at once.

        `address` tells where the broker is, for who knows better than the metadata (the controller, which is what feeds
        that).
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
            )
        return connection

    def connections(self) -> Iterator[tuple[int, str, PeerConnection]]:
        """All connections that were asked for so far: to which broker, for what."""
        for (broker_id, purpose), connection in self._connections.items():
            yield broker_id, purpose, connection

    def address(self, broker_id: int) -> tuple[str, int] | None:
        """Where a broker is reached by others; None when it is not alive."""
        endpoint = self._metadata.endpoint(broker_id, self._listener_name)
        return None if endpoint is None else (endpoint.host, endpoint.port)

    def close(self) -> None:
        """Close all connections; what is under way fails."""
        self._metadata.listeners.pop(self._follow_addresses, None)
        for connection in self._connections.values():
            connection.close()

    def _follow_addresses(self) -> None:
        for connection in self._connections.values():
            connection.follow_address()
