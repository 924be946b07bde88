"""A client's request for tests: for matching with faults, and for recordings."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from barnabas.broker.api.dispatch import BROKER_ELEMENTS_MAX
from barnabas.testing.interception import entries
from barnabas.testing.interception.api_entries import GROUP, PARTITION, TOPIC, TOPIC_ID, TRANSACTIONAL_ID
from barnabas.wire import codec, headers, messages
from barnabas.wire.errors import ProtocolError
from barnabas.wire.names import TopicId
from barnabas.wire.reader_source import ELEMENTS_MAX

if TYPE_CHECKING:
    from barnabas.broker.network.connection import Connection
    from barnabas.broker.server import Broker as Server

WRITE_TXN_MARKERS: Final = 27
BETWEEN_BROKERS: Final = frozenset({4, 5, 6, 7, 17, WRITE_TXN_MARKERS, 36, 56, 67})
"""LeaderAndIsr, StopReplica, UpdateMetadata, ControlledShutdown, SaslHandshake, WriteTxnMarkers, SaslAuthenticate,
AlterPartition, AllocateProducerIds."""

OF_BROKERS_ALONE: Final = BETWEEN_BROKERS - {WRITE_TXN_MARKERS}
"""APIs that tools do not use either; WriteTxnMarkers is one that they use, to end hanging transactions."""


class Request:
    """A client's request: `api` is Kafka's name ("Produce"), `message` the decoded request with all its fields.

    `connection` is the number of the connection at its broker, `principal` its authenticated principal
    ("User:ANONYMOUS"), `broker` the id of the broker that received it.
    """

    def __init__(
        self,
        server: Server,
        connection: Connection,
        frame: bytes | bytearray | memoryview,
        header: headers.RequestHeader,
    ) -> None:
        self._server = server
        self._session = connection.session
        self._api = messages.api(header.api_key)
        self.api = self._api.name
        self.version = header.api_version
        self.correlation_id = header.correlation_id
        self.client_id = header.client_id
        self.connection = self._session.connection_id
        self.client_host = self._session.client_host
        self.principal = self._session.principal
        self.broker = server.node_id
        self._is_session_broker = self._session.is_broker
        elements_max = BROKER_ELEMENTS_MAX if self._is_session_broker else ELEMENTS_MAX
        decode = codec.decoder(self._api.request_class, self.version)
        self.message: Any = decode(frame, header.body_position, elements_max)[0]
        self.taken: list[Callable[[entries.Subject], bool]] = []
        """The entries that each fault has taken over, which later faults ignore."""

    def __repr__(self) -> str:
        about = ", ".join(
            [
                *(f"{topic}-{partition}" for topic, partition in sorted(self.partitions)),
                *sorted(self.topics - {topic for topic, _ in self.partitions}),
                *(f"group {group}" for group in sorted(self.groups)),
                *(f"transactional id {name}" for name in sorted(self.transactional_ids)),
            ][:5]
        )
        return f"<{self.api} v{self.version} of {self.client_id}{': ' if about else ''}{about}>"

    @cached_property
    def subjects(self) -> list[entries.Subject]:
        """The subjects of the request: for each of its entries the topic, group and so on that it names."""
        found = entries.subjects(self.message, self.version, self.topic_name)
        if self.api == "Fetch":
            found += self._of_session()
        return found

    def look_up(self) -> None:
        """Determine the subjects while topic names and sessions are those at the time of the request."""
        _ = self.subjects

    def topic_name(self, topic_id: bytes) -> str | None:
        """The name of the topic with this id at the broker."""
        return self._server.metadata.topic_name(TopicId(topic_id))

    def _of_session(self) -> list[entries.Subject]:
        """The partitions of a Fetch that are only in its session (KIP-227)."""
        if not self.message.session_id or self.message.session_epoch <= 0:
            return []
        services = self._server.services
        sessions = services.replica_fetch_sessions if self.is_of_broker else services.fetch_sessions
        return [
            {
                TOPIC: self.topic_name(known.topic_id) if known.topic is None else known.topic,
                TOPIC_ID: bytes(known.topic_id),
                PARTITION: known.partition,
            }
            for known in sessions.partitions(self.message.session_id)
        ]

    @property
    def topics(self) -> frozenset[str]:
        """The names of all its topics."""
        return frozenset(subject[TOPIC] for subject in self.subjects if TOPIC in subject)

    @property
    def partitions(self) -> frozenset[tuple[str, int]]:
        """Its partitions."""
        return frozenset(
            (subject[TOPIC], subject[PARTITION])
            for subject in self.subjects
            if TOPIC in subject and PARTITION in subject
        )

    @property
    def groups(self) -> frozenset[str]:
        """Its consumer groups."""
        return frozenset(subject[GROUP] for subject in self.subjects if GROUP in subject)

    @property
    def transactional_ids(self) -> frozenset[str]:
        """Its transactional ids."""
        name = TRANSACTIONAL_ID
        return frozenset(subject[name] for subject in self.subjects if name in subject)

    @property
    def is_of_broker(self) -> bool:
        """Whether another broker of the cluster sent it, not a client."""
        is_known = self._is_session_broker or self.message.API_KEY in BETWEEN_BROKERS
        return is_known or self.replica_id is not None

    @property
    def replica_id(self) -> int | None:
        """The broker that fetches as a follower; None for all other requests."""
        if self.api != "Fetch":
            return None
        number = int(max(self.message.replica_id, self.message.replica_state.replica_id))
        return number if number >= 0 else None


def read_request(server: Server, connection: Connection, frame: bytes | bytearray | memoryview) -> Request | None:
    """The request in a frame; None if the broker will not be able to parse it either."""
    try:
        return Request(server, connection, frame, headers.parse_request_header(frame))
    except (ProtocolError, KeyError, ValueError):
        return None
