"""The state of the client at the other end of a connection; every request's context has it."""

import re
import sys
from typing import TYPE_CHECKING, Final, Protocol

from barnabas.broker.network.listener import ANONYMOUS, ListenerContext

if TYPE_CHECKING:
    from barnabas.broker.security.sasl.login import Login

_SOFTWARE_LENGTH_MAX: Final = 100
"""The length to which a client's name and version are shortened, since a connection may stay for ever."""

_CLIENT_ID_OF_BROKER: Final = re.compile(r"broker-(\d{1,10})-", re.ASCII)


def client_id_of_broker(broker_id: int, purpose: str) -> str:
    """The client id of a broker's requests to another one, as in Kafka ("broker-1-txn-marker-sender")."""
    return f"broker-{broker_id}-{purpose}"


def broker_of_client_id(client_id: str | None) -> int:
    """The broker that a client id names; -1 if it names none."""
    named = _CLIENT_ID_OF_BROKER.match(client_id or "")
    return -1 if named is None else int(named[1])


class Restrained(Protocol):
    """The session's interface to its connection."""

    def throttle(self, throttle_time_ms: int) -> None:
        """Begin no other request for so long."""
        ...

    def exempt(self) -> None:
        """Exempt this connection from the limits for clients."""
        ...

    def unbound_frames(self) -> None:
        """End the limit of requests before authentication."""
        ...


class Session:
    """One client's connection, for handlers; lives as long as the connection.

    `listener` is the one that accepted it. `client_host` is the client's address as text.
    `client_software_name` and `client_software_version` come from the client's ApiVersions request, empty before
    (KIP-511). (The client id is the request's, in `RequestContext`: it may differ each time.) `is_broker` is whether
    the client is another broker of the cluster, and `broker_id` its id, else -1. `principal` is Kafka's ANONYMOUS
    before authentication; `sasl_mechanism` is the mechanism by which it has authenticated. `login` is the state of
    SASL, None before the first request of it.
    """

    __slots__ = (
        "_connection",
        "broker_id",
        "client_host",
        "client_software_name",
        "client_software_version",
        "connection_id",
        "is_broker",
        "listener",
        "login",
        "principal",
        "sasl_mechanism",
    )

    def __init__(
        self,
        connection: Restrained | None,
        listener: ListenerContext,
        connection_id: int,
        *,
        client_host: str = "",
        principal: str = ANONYMOUS,
    ) -> None:
        self._connection = connection
        self.listener = listener
        self.connection_id = connection_id
        self.client_host = client_host
        self.principal = principal
        self.client_software_name = ""
        self.client_software_version = ""
        self.sasl_mechanism: str | None = None
        self.login: Login | None = None
        self.is_broker = False
        self.broker_id = -1

    def introduce(self, client_software_name: str, client_software_version: str) -> None:
        """Set the client's name and version; thousands of connections often have the same."""
        self.client_software_name = sys.intern(client_software_name[:_SOFTWARE_LENGTH_MAX])
        self.client_software_version = sys.intern(client_software_version[:_SOFTWARE_LENGTH_MAX])

    def throttle(self, throttle_time_ms: int) -> None:
        """The client has exceeded its quota: the response, with `throttle_time_ms`, is sent at once, and the next
        request begins after that time (KIP-219). Of several times the one that ends last counts."""
        if self._connection is not None and throttle_time_ms > 0:
            self._connection.throttle(throttle_time_ms)

    @property
    def is_authenticated(self) -> bool:
        """Whether the client has authenticated."""
        return self.principal != ANONYMOUS

    def log_in(self, principal: str, sasl_mechanism: str) -> None:
        """The client has authenticated by SASL."""
        self.principal = principal
        self.sasl_mechanism = sasl_mechanism
        if self._connection is not None:
            self._connection.unbound_frames()

    def belongs_to_broker(self, broker_id: int) -> None:
        """The client is a broker: the limits of requests in progress, unread responses and unfinished requests no
        longer apply to it, or slow clients would keep replicas from being in sync."""
        if not self.is_broker:
            self.is_broker = True
            self.broker_id = broker_id
            if self._connection is not None:
                self._connection.exempt()

    def close(self) -> None:
        """Release the connection, which is closed."""
        self._connection = None
