"""What AlterConfigs may change of a broker's SASL.

Source: DynamicListenerConfig of Kafka (KIP-226). The keys may change for the broker, and for listeners that it does not
have yet; those of a listener keep their values as long as it exists. A change applies at the next start. Neither
classes nor commands are taken: a line of `sasl.jaas.config` must name a login module of Kafka's, which stands for what
happens here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from barnabas.broker.configuration.definitions import PER_BROKER
from barnabas.broker.configuration.keys import LISTENER_PREFIX, broker_key
from barnabas.broker.configuration.tables.sasl import SASL_ROWS
from barnabas.wire.errors import ApiError, ErrorCode

SASL_DYNAMIC_KEYS: Final = frozenset(str(row[0]) for row in SASL_ROWS if row[5] == PER_BROKER) - {
    "sasl.kerberos.kinit.cmd"
}
"""The keys of SASL that may change, with the prefix of a listener or without."""

JAAS: Final = "sasl.jaas.config"


def is_dynamic(name: str) -> bool:
    """Whether a key is one of these."""
    key = broker_key(name)
    return key is not None and key.name in SASL_DYNAMIC_KEYS


def check(before: Mapping[str, str], after: Mapping[str, str], listeners: Iterable[str]) -> None:
    """Check a change of the dynamic keys of a broker that has these listeners. Raises ApiError(INVALID_REQUEST)."""
    changed = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    names = sorted(filter(is_dynamic, changed))
    for name in names:
        listener = _listener_of(name)
        if listener is not None and listener in (each.lower() for each in listeners):
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"Configs cannot be updated dynamically for existing listener {listener.upper()}, restart broker or"
                f" create a new listener for update: [{name}]",
            )
        if name in after and name.endswith(JAAS):
            _check_line(name, after[name])


def _listener_of(name: str) -> str | None:
    """The listener whose prefix a key has, in lower case."""
    return name.removeprefix(LISTENER_PREFIX).partition(".")[0].lower() if name.startswith(LISTENER_PREFIX) else None


def _check_line(name: str, line: str) -> None:
    """Check the login module of a line: that of the mechanism, if the key has one. Errors contain no password."""
    from barnabas.broker.security.sasl import jaas

    mechanism = name.removesuffix(f".{JAAS}").removeprefix(LISTENER_PREFIX).partition(".")[2].upper()
    try:
        if mechanism in jaas.LOGIN_MODULES:
            jaas.parse_for(mechanism, line)
        elif jaas.parse(line).class_name not in jaas.LOGIN_MODULES.values():
            raise jaas.JaasError("other login modules than Kafka's cannot be loaded")
    except jaas.JaasError as error:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{name}: {error}") from error
