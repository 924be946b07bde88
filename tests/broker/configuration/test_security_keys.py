"""Every key of security: it is read, or its values that ask for something else are refused, or the start says that it
has no effect."""

from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from barnabas.broker.configuration.config import BrokerConfig, load, resolve
from barnabas.broker.configuration.definitions import PASSWORD, TYPE_NAMES, to_text
from barnabas.broker.configuration.keys import BROKER_KEYS, KRAFT_PREFIXES
from barnabas.broker.configuration.security_values import ABSENT, JAVA_NAMES, KAFKA_CLASSES, WITHOUT_EFFECT
from barnabas.broker.configuration.tables.security import SECURITY_ROWS
from barnabas.broker.security.sasl import jaas
from barnabas.broker.security.sasl.making import Sources, make_listener
from barnabas.broker.security.sasl.making_clients import ClientSources, make_client
from barnabas.broker.security.tls.contexts import TlsSettings

HOME: Final = {"HOME": "/home/somebody"}
NAMES: Final = frozenset(str(row[0]) for row in SECURITY_ROWS)
REFUSED: Final = sorted(KAFKA_CLASSES.keys() | JAVA_NAMES.keys() | ABSENT.keys())
ODD_VALUES: Final = {"INT": "77", "BOOLEAN": "true", "LIST": "a", "STRING": "x.Y", "CLASS": "x.Y", "PASSWORD": "secret"}
READ_ELSEWHERE: Final = {
    "allow.everyone.if.no.acl.found": "parts.py",
    "authorizer.class.name": "parts.py",
    "security.inter.broker.protocol": "configuration/listeners.py",
    "sasl.server.max.receive.size": "network/listener.py",
    "super.users": "parts.py",
    "password.encoder.old.secret": "configuration/stored_passwords.py",
    **{
        f"password.encoder.{name}": "configuration/stored_passwords.py"
        for name in ("secret", "keyfactory.algorithm", "cipher.algorithm", "key.length", "iterations")
    },
}
"""Keys that are no setting of a listener's TLS or SASL, and the file of `broker/` that reads them."""

EVERY_MECHANISM: Final = {
    "listeners": "SASL_SSL://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,OAUTHBEARER,GSSAPI",
    "sasl.kerberos.service.name": "kafka",
    "sasl.oauthbearer.jwks.endpoint.url": "file:///x",
    **{
        f"listener.name.sasl_ssl.{name.lower()}.sasl.jaas.config": jaas.LoginModule(
            jaas.LOGIN_MODULES[name],
            options={
                "username": "x",
                "password": "y",
                "useKeyTab": "true",
                "storeKey": "true",
                "keyTab": "/x",
                "principal": "kafka/h@R",
            },
        ).line()
        for name in ("PLAIN", "SCRAM-SHA-256", "OAUTHBEARER", "GSSAPI")
    },
}


def configured(**keys: str) -> BrokerConfig:
    """A configuration that nobody has checked, for keys with values that a start would refuse."""
    loaded = load(environ=HOME)
    raw = {**EVERY_MECHANISM, **keys}
    return BrokerConfig({}, raw=raw, sources={}, defaults=loaded.defaults, warnings=())


def keys_that_are_read() -> set[str]:
    """The keys that are looked up for a listener with TLS and all mechanisms, and for a broker that logs in."""
    read: set[str] = set()
    nothing: Any = None
    endpoint = "sasl.oauthbearer.token.endpoint.url"

    def look(config: BrokerConfig, listener: str, key: str, mechanism: str = "") -> Any:
        read.add(key)
        return config.value_for_listener(listener, key, mechanism)

    TlsSettings.read(partial(look, configured(), "SASL_SSL"), "", None)
    look_up = partial(look, configured())
    make_listener("SASL_SSL", look_up, Sources(nothing, nothing, bytes, nothing, find_gssapi=lambda: nothing))
    clients = {f"{endpoint}": "https://x/", "sasl.oauthbearer.client.credentials.client.id": "x"}
    clients["sasl.oauthbearer.client.credentials.client.secret"] = "y"
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "OAUTHBEARER", "GSSAPI"):
        config = configured(**{**clients, "sasl.mechanism.inter.broker.protocol": mechanism})
        make_client("SASL_SSL", partial(look, config), ClientSources(nothing, nothing, bytes, lambda: nothing))
    return read


def test_every_key_is_read_or_refused() -> None:
    """Keys of delegation tokens are apart."""
    read = keys_that_are_read() | READ_ELSEWHERE.keys()
    kraft = {name for name in NAMES if name.startswith(KRAFT_PREFIXES)}
    tokens = {name for name in NAMES if name.startswith("delegation.token.")}
    assert NAMES - read - set(REFUSED) - WITHOUT_EFFECT - kraft == tokens
    assert not WITHOUT_EFFECT & read
    broker = Path(__file__).parents[3] / "broker"
    for name, file in READ_ELSEWHERE.items():
        assert name.removeprefix("password.encoder.").replace(".", "_") in (broker / file).read_text().replace(".", "_")


@pytest.mark.parametrize("prefix", ["", "listener.name.plaintext.", "listener.name.plaintext.plain."])
@pytest.mark.parametrize("name", REFUSED)
def test_refused_values(name: str, prefix: str) -> None:
    """One line, which names the key as it was set, and shows no password."""
    definition = BROKER_KEYS[name]
    value = ODD_VALUES[TYPE_NAMES[definition.type]] if name != "sasl.oauthbearer.assertion.algorithm" else "ES256"
    (error,) = resolve(environ=HOME, properties={f"{prefix}{name}": value}).errors
    assert f" for configuration {prefix}{name}: " in error
    assert "\n" not in error
    assert (value in error) == (definition.type != PASSWORD)


@pytest.mark.parametrize("name", REFUSED)
def test_accepted_values(name: str) -> None:
    """Kafka's own, and the default."""
    default = to_text(BROKER_KEYS[name].default)
    for value in (*KAFKA_CLASSES.get(name, ()), *JAVA_NAMES.get(name, ()), *([] if default is None else [default])):
        resolution = resolve(environ=HOME, properties={name: value})
        assert (resolution.errors, resolution.warnings, resolution.notes) == ((), (), ())


@pytest.mark.parametrize("name", sorted(WITHOUT_EFFECT))
def test_keys_without_effect(name: str) -> None:
    """The start says so."""
    (note,) = resolve(environ=HOME, properties={name: str(to_text(BROKER_KEYS[name].default))}).notes
    assert note == f"accepted, without effect in Barnabas: {name}"
