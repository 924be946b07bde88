"""Brokers whose clients connect by TLS, and by SASL where a workload asks for it.

Both systems get the same certificates, as PEM, from an authority that is made for the one broker, and the same users.
"""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from barnabas.broker.cli.authority import Authority
from barnabas.broker.security.sasl.jaas import PLAIN_LOGIN_MODULE, SCRAM_LOGIN_MODULE, LoginModule
from barnabas.broker.security.sasl.plain import Credentials
from barnabas.clock import SystemClock
from benchmarks.clients import TIMEOUT_S, admin_of
from benchmarks.system import Secured, System

USER: Final = Credentials("benchmark", "only-for-the-benchmark")
MECHANISM: Final = "SCRAM-SHA-512"

_LISTENER: Final = "PLAINTEXT"
"""The name of the listener for clients, on both systems, whatever its protocol is."""
_ADDRESS: Final = "127.0.0.1"


@contextlib.contextmanager
def over_tls(system: System) -> Iterator[Secured]:
    """A broker with TLS 1.3, whose clients need no login."""
    with tempfile.TemporaryDirectory() as folder, _serving(system, Path(folder), "SSL", {}) as server:
        yield server


@contextlib.contextmanager
def with_logins(system: System) -> Iterator[Secured]:
    """A broker with SASL_SSL by TLS 1.3, whose clients log in as `USER` by SCRAM."""
    modules = {
        "plain": LoginModule(PLAIN_LOGIN_MODULE, options={f"user_{USER.username}": USER.password}),
        MECHANISM.lower(): LoginModule(SCRAM_LOGIN_MODULE),
    }
    settings = {
        "sasl.enabled.mechanisms": f"PLAIN,{MECHANISM}",
        **{f"{_prefix()}{name}.sasl.jaas.config": module.line() for name, module in modules.items()},
    }
    with tempfile.TemporaryDirectory() as folder, _serving(system, Path(folder), "SASL_SSL", settings) as server:
        _add_user(server)
        login = {"sasl.mechanisms": MECHANISM, "sasl.username": USER.username, "sasl.password": USER.password}
        yield server.with_properties(librdkafka=login)


def _prefix() -> str:
    return f"listener.name.{_LISTENER.lower()}."


@contextlib.contextmanager
def _serving(system: System, folder: Path, protocol: str, settings: Mapping[str, str]) -> Iterator[Secured]:
    authority = Authority.new("Benchmarks", SystemClock().now_ms())
    issued = authority.issue("broker", ["localhost", _ADDRESS])
    trusted, key_store = folder / "ca.pem", folder / "broker.pem"
    trusted.write_bytes(authority.certificate)
    key_store.write_bytes(issued.key + issued.certificate + authority.certificate)
    trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(trusted)}
    keys = {
        "listener.security.protocol.map": f"{_LISTENER}:{protocol},CONTROLLER:PLAINTEXT",
        "ssl.enabled.protocols": "TLSv1.3",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(key_store),
        **trust,  # Kafka does a handshake with itself when it starts
    }
    java = {"security.protocol": protocol, **trust}
    librdkafka = {"security.protocol": protocol, "ssl.ca.location": str(trusted)}
    with system.running({**keys, **settings}) as server:
        yield Secured(server, java, librdkafka, trusted)


def _add_user(server: Secured) -> None:
    """Give the user a password for SCRAM; it logs in by PLAIN for that."""
    by_plain = {"sasl.mechanisms": "PLAIN", "sasl.username": USER.username, "sasl.password": USER.password}
    admin = admin_of(server.with_properties(librdkafka=by_plain))
    credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    upsertion = UserScramCredentialUpsertion(USER.username, credential, USER.password.encode())
    admin.alter_user_scram_credentials([upsertion])[USER.username].result(TIMEOUT_S)
