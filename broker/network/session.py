"""What is known of the client at the other end of a connection; every request's context has it."""

import re
import sys
from typing import Final, Protocol

ANONYMOUS: Final = "User:ANONYMOUS"
"""Kafka's principal of whoever has not authenticated."""

PLAINTEXT: Final = "PLAINTEXT"

_SOFTWARE_LENGTH_MAX: Final = 100
"""How much is remembered of what a client says of itself; the rest is not remembered, since a connection may stay for
ever."""

_CLIENT_ID_OF_BROKER: Final = re.compile(r"broker-(\d{1,10})-", re.ASCII)


def client_id_of_broker(broker_id: int, purpose: str) -> str:
    """What a broker that asks another one calls itself, as Kafka's do ("broker-1-txn-marker-sender")."""
    return f"broker-{broker_id}-{purpose}"


def broker_of_client_id(client_id: str | None) -> int:
    """The broker that a client id names; -1 where it names none."""
    named = _CLIENT_ID_OF_BROKER.match(client_id or "")
    return -1 if named is None else int(named[1])


class Restrained(Protocol):
    """What a session needs of its connection."""

    def throttle(self, throttle_time_ms: int) -> None:
        """Begin no other request for so long."""
        ...

    def exempt(self) -> None:
        """Hold this connection to none of the bounds for clients any more."""
        ...


class Session:
    """One client's connection, as handlers see it; lives as long as the connection.

    `listener_name` decides which advertised addresses a reply carries. `client_host` is the peer's address as text.
    `client_software_name` and `client_software_version` are what the client said of itself in ApiVersions, empty before
    (KIP-511). (The client id is the request's, in `RequestContext`: it may be another one each time.) `is_broker` is
    whether another broker of the cluster is at the other end, and `broker_id` which one; -1 if none is. `principal` is
    Kafka's ANONYMOUS for whoever has not authenticated; `sasl_mechanism` the one that was agreed on for that.
    """

    __slots__ = (
        "_connection",
        "broker_id",
        "client_host",
        "client_software_name",
        "client_software_version",
        "connection_id",
        "is_broker",
        "listener_name",
        "principal",
        "sasl_mechanism",
        "security_protocol",
    )

    def __init__(
        self,
        connection: Restrained | None,
        listener_name: str,
        connection_id: int,
        *,
        client_host: str = "",
        security_protocol: str = PLAINTEXT,
        principal: str = ANONYMOUS,
    ) -> None:
        self._connection = connection
        self.listener_name = listener_name
        self.connection_id = connection_id
        self.client_host = client_host
        self.security_protocol = security_protocol
        self.principal = principal
        self.client_software_name = ""
        self.client_software_version = ""
        self.sasl_mechanism: str | None = None
        self.is_broker = False
        self.broker_id = -1

    def introduce(self, client_software_name: str, client_software_version: str) -> None:
        """The client has said what it is; thousands of connections are often of the same."""
        self.client_software_name = sys.intern(client_software_name[:_SOFTWARE_LENGTH_MAX])
        self.client_software_version = sys.intern(client_software_version[:_SOFTWARE_LENGTH_MAX])

    def throttle(self, throttle_time_ms: int) -> None:
        """The client is beyond its quota: the reply, which says `throttle_time_ms`, leaves at once, and the next
        request is begun when that has passed (KIP-219). Of several times the one that ends last counts."""
        if self._connection is not None and throttle_time_ms > 0:
            self._connection.throttle(throttle_time_ms)

    @property
    def is_authenticated(self) -> bool:
        """Whether the client has shown who it is."""
        return self.principal != ANONYMOUS

    def belongs_to_broker(self, broker_id: int) -> None:
        """The client has turned out to be a broker: what bounds how much clients ask for, leave unread or send at the
        same time does not hold it up, or slow clients would keep replicas from being in sync."""
        if not self.is_broker:
            self.is_broker = True
            self.broker_id = broker_id
            if self._connection is not None:
                self._connection.exempt()

    def close(self) -> None:
        """Let go of the connection, which has gone."""
        self._connection = None
