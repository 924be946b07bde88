"""The entities that have quotas: users, client ids, pairs of these, and addresses, or the default of each. Pure.

The most specific entity that has a quota of the type counts (KIP-55, KIP-257):

1. the user and the client id (/config/users/U/clients/C)
2. the user and the default client id (/config/users/U/clients/<default>)
3. the user (/config/users/U)
4. the default user and the client id (/config/users/<default>/clients/C)
5. the default user and the default client id (/config/users/<default>/clients/<default>)
6. the default user (/config/users/<default>)
7. the client id (/config/clients/C)
8. the default client id (/config/clients/<default>)

Each client that an entity stands for has the whole quota: with 1, 2, 4 and 5 each pair of user and client id, with 3
and 6 each user, with 7 and 8 each client id.

Source: kafka 3.9.1 ClientQuotaManager (its DefaultQuotaCallback), QuotaConfigs, DynamicConfig.
"""

from collections.abc import Mapping
from enum import Enum
from ipaddress import ip_address
from typing import Final, NamedTuple

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
"""The types of entities in requests (ClientQuotaEntity)."""


class ValueType(Enum):
    """The type of a quota's value, by the name that Kafka's messages have; the value is the limit."""

    DOUBLE = float("inf")
    LONG = 2**63 - 1
    INT = 2**31 - 1


CLIENT_QUOTAS: Final[Mapping[str, ValueType]] = {
    PRODUCER_BYTE_RATE: ValueType.LONG,
    CONSUMER_BYTE_RATE: ValueType.LONG,
    REQUEST_PERCENTAGE: ValueType.DOUBLE,
    CONTROLLER_MUTATION_RATE: ValueType.DOUBLE,
}
"""The quotas of users and client ids."""

IP_QUOTAS: Final[Mapping[str, ValueType]] = {CONNECTION_CREATION_RATE: ValueType.INT}
"""The quotas of addresses (KIP-612)."""

QUOTAS_OF: Final[Mapping[str, Mapping[str, ValueType]]] = {
    "users": CLIENT_QUOTAS,
    "clients": CLIENT_QUOTAS,
    "ips": IP_QUOTAS,
}
"""The quotas of an entity by its type below /config."""


class Default(Enum):
    """Stands for all users, client ids or addresses without a quota of their own."""

    DEFAULT = "<default>"


DEFAULT: Final = Default.DEFAULT

Name = str | Default


class QuotaEntity(NamedTuple):
    """A user, a client id, or both; None for one that the entity does not name."""

    user: Name | None = None
    client_id: Name | None = None


class ClientKey(NamedTuple):
    """The client whose usage is counted together: a user, a client id, or a pair; empty for the other one."""

    user: str
    client_id: str


class QuotaLimits:
    """The bounds of one type of quota, by entity."""

    def __init__(self) -> None:
        self._bounds: dict[QuotaEntity, float] = {}

    def set(self, entity: QuotaEntity, bound: float | None) -> None:
        """Set the bound of an entity, or remove it with None."""
        if bound is None:
            self._bounds.pop(entity, None)
        else:
            self._bounds[entity] = bound

    def find(self, user: str, client_id: str) -> tuple[ClientKey, float] | None:
        """The client that a request of a user and a client id counts for, and its bound; None if no quota applies. No
        quota of client ids applies to an empty one.
        """
        bounds = self._bounds
        if not bounds:
            return None
        for name in (user, DEFAULT):
            if client_id:
                for client in (client_id, DEFAULT):
                    bound = bounds.get(QuotaEntity(name, client))
                    if bound is not None:
                        return ClientKey(user, client_id), bound
            bound = bounds.get(QuotaEntity(name))
            if bound is not None:
                return ClientKey(user, ""), bound
        if client_id:
            for client in (client_id, DEFAULT):
                bound = bounds.get(QuotaEntity(None, client))
                if bound is not None:
                    return ClientKey("", client_id), bound
        return None


def normal_address(host: str) -> str | None:
    """An address in the form in which addresses are compared; None if it is none. An IPv4 address that a socket of IPv6
    reports is the IPv4 address."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def bound_of(overrides: Mapping[str, str], key: str) -> float | None:
    """The bound under a key of an entity's configs, None if there is none. Raises ValueError for a text that is no
    number."""
    text = overrides.get(key)
    if text is None:
        return None
    bound = float(text)
    if bound != bound:
        raise ValueError(f"{key} is not a number")
    return bound
