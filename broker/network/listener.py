"""The properties of a listener that its connections know: name, security protocol, source of principals."""

from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple

from barnabas.broker.configuration.config import BrokerConfig
from barnabas.broker.configuration.listeners import PLAINTEXT, SASL_PLAINTEXT, SASL_SSL, SSL

ANONYMOUS: Final = "User:ANONYMOUS"
"""Kafka's principal of a client that has not authenticated."""

UNAUTHENTICATED_BYTES_MAX: Final = 512 * 1024
"""Kafka's default of `sasl.server.max.receive.size`."""


class PrincipalSource(Enum):
    """The source of a client's identity."""

    NOTHING = 1
    """Clients are anonymous; a broker may show its secret by SASL on the inter-broker listener."""
    SASL = 2
    """SaslAuthenticate; nothing else is served before it."""
    CERTIFICATE = 3
    """The certificate that the client shows in the handshake of TLS, if it shows one."""


class ListenerContext(NamedTuple):
    """One for each listener; every session has that of its connection.

    `name` selects the advertised addresses in responses, `security_protocol` is Kafka's. A listener that
    `is_inter_broker` takes requests of other brokers, one that `is_for_brokers_alone` none of clients: these have
    another. `principal_of(certificate)` is the principal of a client that has shown a certificate (DER). Where clients
    authenticate by SASL, requests have at most `unauthenticated_bytes_max` before.
    """

    name: str
    security_protocol: str = PLAINTEXT
    principal_source: PrincipalSource = PrincipalSource.NOTHING
    is_inter_broker: bool = False
    is_for_brokers_alone: bool = False
    principal_of: Callable[[bytes], str] = lambda certificate: ANONYMOUS
    unauthenticated_bytes_max: int = UNAUTHENTICATED_BYTES_MAX

    @classmethod
    def of(cls, config: BrokerConfig, name: str, principal_source: PrincipalSource | None = None) -> "ListenerContext":
        """The context of the listener of this name; without `principal_source` the security protocol tells it."""
        protocol = next((each.security_protocol for each in config.listeners if each.name == name), PLAINTEXT)
        source = principal_source or _SOURCES[protocol]
        is_inter_broker = name == config.inter_broker_listener_name
        is_for_brokers_alone = is_inter_broker and len(config.listeners) > 1
        bytes_max = config.value_for_listener(name, "sasl.server.max.receive.size")
        assert isinstance(bytes_max, int)
        if bytes_max < 0:  # NetworkReceive.UNLIMITED
            bytes_max = config.socket_request_max_bytes
        return cls(name, protocol, source, is_inter_broker, is_for_brokers_alone, unauthenticated_bytes_max=bytes_max)


_SOURCES = {
    PLAINTEXT: PrincipalSource.NOTHING,
    SSL: PrincipalSource.CERTIFICATE,
    SASL_PLAINTEXT: PrincipalSource.SASL,
    SASL_SSL: PrincipalSource.SASL,
}
