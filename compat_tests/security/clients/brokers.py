"""Barnabas and Apache Kafka with the same configuration: a listener for each security protocol, all mechanisms, and an
authorizer; their users, tokens and certificates."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from joserfc import jwt
from joserfc.jwk import RSAKey

from barnabas.broker.cli import authority
from barnabas.broker.security.sasl import jaas
from barnabas.clock import SystemClock
from tools.foreign.kafka import SMALL_BROKER_JVM, KafkaServer
from tools.processes.barnabas import BarnabasProcess
from tools.processes.server import free_ports
from tools.waiting import PATIENCE_S

TOPIC: Final = "letters"
GROUP_PREFIX: Final = "readers-"
ALLOWED: Final = "alice"
NOT_ALLOWED: Final = "eve"
"""A user without any ACL."""
UNKNOWN: Final = "nobody"
PASSWORD: Final = "of-the-user"
WRONG_PASSWORD: Final = "of-nobody"

GOOD: Final = "good"
WRONG: Final = "wrong"
STRANGE: Final = "unknown"
OVERDUE: Final = "expired"
NO_ACL: Final = "no ACL"

ADMIN: Final = "ADMIN"
EXPIRED: Final = "EXPIRED"
"""The listener whose certificate has expired."""
PROTOCOLS: Final[Mapping[str, str]] = {
    ADMIN: "PLAINTEXT",
    "SASL_PLAINTEXT": "SASL_PLAINTEXT",
    "SASL_SSL": "SASL_SSL",
    EXPIRED: "SASL_SSL",
    "SSL": "SSL",
}
"""The security protocol of each listener."""

_OAUTH: Final = "org.apache.kafka.common.security.oauthbearer"
_ISSUER: Final = "issuer"
_AUDIENCE: Final = "kafka"
_HOSTS: Final = ("localhost", "127.0.0.1")
_TWO_DAYS_MS: Final = 2 * 86_400_000
_HOUR_S: Final = 3600


class Identities:
    """Certificates and tokens, by what is right or wrong with them. A certificate is the path of a file in PEM, which
    has its key, too."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        now_ms = SystemClock().now_ms()
        own, stranger = (authority.Authority.new(name, now_ms) for name in ("Authority", "Stranger"))
        self.ca = self._write(authority.CA_FILE, own.certificate)
        self._write(authority.CA_KEY_FILE, own.key)
        before = authority.Authority.load(directory, now_ms - _TWO_DAYS_MS)
        self.broker = self._write("broker.pem", own.issue("broker", _HOSTS), own)
        self.expired_broker = self._write("expired-broker.pem", before.issue("broker", _HOSTS, days=1), own)
        self.certificates: Final[Mapping[str, str]] = {
            GOOD: self._write("alice.pem", own.issue(ALLOWED), own),
            WRONG: self._write("stranger.pem", stranger.issue(ALLOWED), stranger),
            STRANGE: "",
            OVERDUE: self._write("expired.pem", before.issue(ALLOWED, days=1), own),
            NO_ACL: self._write("eve.pem", own.issue(NOT_ALLOWED), own),
        }
        key, forger = (RSAKey.generate_key(2048, {"kid": "1", "alg": "RS256", "use": "sig"}) for _ in range(2))
        self.jwks = directory / "jwks.json"
        self.jwks.write_text(json.dumps({"keys": [key.as_dict(private=False)]}))
        self.tokens: Final[Mapping[str, str]] = {
            GOOD: _token(key, ALLOWED),
            WRONG: _token(forger, ALLOWED),
            STRANGE: _token(key, ALLOWED, issuer="another"),
            OVERDUE: _token(key, ALLOWED, valid_s=-_HOUR_S),
            NO_ACL: _token(key, NOT_ALLOWED),
        }

    def _write(self, name: str, content: bytes | authority.Issued, issuer: authority.Authority | None = None) -> str:
        path = self._directory / name
        if isinstance(content, authority.Issued):
            assert issuer is not None
            content = content.certificate + issuer.certificate + content.key
        path.write_bytes(content)
        return str(path)


def _token(key: RSAKey, name: str, *, issuer: str = _ISSUER, valid_s: int = _HOUR_S) -> str:
    now_s = SystemClock().now_ms() // 1000
    claims = {"sub": name, "iss": issuer, "aud": _AUDIENCE, "iat": now_s - 2 * _HOUR_S, "exp": now_s + valid_s}
    return jwt.encode({"alg": "RS256", "kid": "1"}, claims, key)


class Secured:
    """A broker with a topic, and permissions for ALLOWED alone."""

    def __init__(self, identities: Identities, addresses: Mapping[str, str]) -> None:
        self.identities = identities
        self.addresses = addresses
        """HOST:PORT of each listener."""

    def prepare(self) -> None:
        """Make the topic, the users of SCRAM and the permissions."""
        admin = AdminClient({"bootstrap.servers": self.addresses[ADMIN], "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(PATIENCE_S)
        for name in (ALLOWED, NOT_ALLOWED):
            for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
                credential = ScramCredentialInfo(mechanism, 4096)
                upsertion = UserScramCredentialUpsertion(name, credential, PASSWORD.encode())
                admin.alter_user_scram_credentials([upsertion])[name].result(PATIENCE_S)
        allowed = [
            AclBinding(
                kind, name, ResourcePatternType.PREFIXED, f"User:{ALLOWED}", "*", operation, AclPermissionType.ALLOW
            )
            for kind, name, operation in (
                (ResourceType.TOPIC, TOPIC, AclOperation.WRITE),
                (ResourceType.TOPIC, TOPIC, AclOperation.READ),
                (ResourceType.GROUP, GROUP_PREFIX, AclOperation.READ),
            )
        ]
        for done in admin.create_acls(allowed).values():
            done.result(PATIENCE_S)

    def forgive(self) -> None:
        """Log in, after which the delays of failures from this address begin anew."""
        login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": "PLAIN", "log_level": 0}
        login |= {"sasl.username": ALLOWED, "sasl.password": PASSWORD}
        admin = AdminClient({"bootstrap.servers": self.addresses["SASL_PLAINTEXT"], **login})
        admin.list_topics(timeout=PATIENCE_S)


class _Barnabas(BarnabasProcess):
    """With the listeners of its configuration."""

    def _command(self) -> list[str]:
        file = self._folder / "server.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in self._overrides.items()))
        return [*self._serve, str(file), "--data-dir", str(self.log_dir)]

    def _is_ready(self, printed: list[str], logged: list[str]) -> bool:
        return any(line.startswith("ready: ") for line in printed)


@contextmanager
def barnabas(directory: Path) -> Iterator[Secured]:
    """The real command. `directory` is for the files of identities."""
    identities = Identities(directory)
    addresses = dict(zip(PROTOCOLS, (f"127.0.0.1:{port}" for port in free_ports(len(PROTOCOLS))), strict=True))
    with _Barnabas(_configs(identities, addresses)):
        yield _prepared(identities, addresses)


@contextmanager
def kafka(directory: Path) -> Iterator[Secured]:
    """Apache Kafka 4.3.0."""
    identities = Identities(directory)
    *ports, controller_port = free_ports(1 + len(PROTOCOLS))
    addresses = dict(zip(PROTOCOLS, (f"127.0.0.1:{port}" for port in ports), strict=True))
    configs = _configs(identities, addresses)
    configs["advertised.listeners"] = configs["listeners"]
    configs["listeners"] += f",CONTROLLER://127.0.0.1:{controller_port}"
    configs["listener.security.protocol.map"] += ",CONTROLLER:PLAINTEXT"
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={identities.jwks.as_uri()}"
    options = [*SMALL_BROKER_JVM, allowed]
    with KafkaServer(overrides=configs, ports=(ports[0], controller_port), jvm_options=options):
        yield _prepared(identities, addresses)


def _prepared(identities: Identities, addresses: Mapping[str, str]) -> Secured:
    secured = Secured(identities, addresses)
    secured.prepare()
    return secured


def _configs(identities: Identities, addresses: Mapping[str, str]) -> dict[str, str]:
    """The configuration of both."""
    users = {f"user_{name}": PASSWORD for name in (ALLOWED, NOT_ALLOWED)}
    configs = {
        "listeners": ",".join(f"{name}://{address}" for name, address in addresses.items()),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in PROTOCOLS.items()),
        "inter.broker.listener.name": ADMIN,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "auto.create.topics.enable": "false",
        "connection.failed.authentication.delay.ms": "10",
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.num.partitions": "1",
        "sasl.enabled.mechanisms": ",".join(jaas_lines := _jaas_lines(users)),
        "sasl.oauthbearer.jwks.endpoint.url": identities.jwks.as_uri(),
        "sasl.oauthbearer.expected.audience": _AUDIENCE,
        "sasl.oauthbearer.expected.issuer": _ISSUER,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": identities.broker,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": identities.ca,
        "listener.name.expired.ssl.keystore.type": "PEM",
        "listener.name.expired.ssl.keystore.location": identities.expired_broker,
        "listener.name.ssl.ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=([^,]*).*$/$1/",
    }
    for listener in ("sasl_plaintext", "sasl_ssl", EXPIRED.lower()):
        for mechanism, line in jaas_lines.items():
            configs[f"listener.name.{listener}.{mechanism.lower()}.sasl.jaas.config"] = line
        configs[f"listener.name.{listener}.oauthbearer.sasl.server.callback.handler.class"] = (
            f"{_OAUTH}.OAuthBearerValidatorCallbackHandler"
        )
    return configs


def _jaas_lines(users: Mapping[str, str]) -> dict[str, str]:
    """The JAAS line of each mechanism."""
    return {
        mechanism: jaas.LoginModule(jaas.LOGIN_MODULES[mechanism], options=users if mechanism == "PLAIN" else {}).line()
        for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
    }
