"""What AlterConfigs may change of a broker's SASL.

Source: DynamicListenerConfig of Kafka (KIP-226). The keys may change for the broker, and with the prefix of a listener;
a change applies at the next start. Neither classes nor commands are taken: a line of `sasl.jaas.config` must name a
login module of Kafka's, which stands for what happens here.
"""

from __future__ import annotations

from collections.abc import Mapping
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


def check(before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Check a change of the dynamic keys of a broker. Raises ApiError(INVALID_REQUEST)."""
    for name in sorted(after):
        if name.endswith(JAAS) and after[name] != before.get(name):
            _check_line(name, after[name])


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
