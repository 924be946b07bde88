"""Checks of the keys of ZooKeeper (`zookeeper.*`), which Kafka had until 3.9.

Files are read later, by `broker/cluster/zookeeper_security.py`. Source: kafka 3.9.1 ZkConfigs.java, KafkaZkClient.scala
(`createZkClient`).
"""

from __future__ import annotations

import re
from typing import Final, Protocol

from barnabas.broker.configuration.definitions import ConfigValue
from barnabas.broker.configuration.keys import BROKER_KEYS, ZOOKEEPER_KEYS

LOGIN_CONFIG: Final = "java.security.auth.login.config"
DIGEST: Final = "barnabas.zookeeper.digest"

_SERVER: Final = re.compile(r"(?:\[[0-9a-fA-F:.%]+\]|[^\s:\[\]/,]+)(?::[0-9]{1,5})?")
_NETTY: Final = "org.apache.zookeeper.ClientCnxnSocketNetty"
_NIO: Final = "org.apache.zookeeper.ClientCnxnSocketNIO"
_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
_SOCKETS: Final = ("", _NETTY, _NIO)


class Settings(Protocol):
    """A configuration that is being resolved; collects errors and warnings."""

    raw: dict[str, str]

    def value(self, key: str) -> ConfigValue: ...

    def text(self, key: str) -> str | None: ...

    def fail(self, key: str, reason: str) -> None: ...

    def warn(self, key: str, what: str) -> None: ...


def check_zookeeper(settings: Settings) -> bool:
    """Check the keys of ZooKeeper; returns whether there is a ZooKeeper."""
    key = "zookeeper.connect"
    text = settings.raw.get(key, "").strip()
    _check_security(settings)
    if not text:
        for each in sorted(settings.raw):
            if each.startswith(ZOOKEEPER_KEYS) and each in BROKER_KEYS and settings.raw[each].strip():
                settings.warn(each, "has no effect without zookeeper.connect")
        return False
    servers, slash, chroot = text.partition("/")
    if not all(_SERVER.fullmatch(server.strip()) for server in servers.split(",")):
        settings.fail(key, f"Invalid value {text} for configuration {key}: expected HOST:PORT,HOST:PORT/chroot")
    elif slash and chroot and not all(part not in ("", ".", "..") for part in chroot.rstrip("/").split("/")):
        settings.fail(key, f"Invalid value {text} for configuration {key}: the chroot must be a path")
    return True


def _check_security(settings: Settings) -> None:
    for key in ("zookeeper.ssl.crl.enable", "zookeeper.ssl.ocsp.enable"):
        if settings.value(key) is True:
            reason = "revoked certificates are not looked up; take the certificate's user its ACLs away"
            settings.fail(key, f"Invalid value true for configuration {key}: {reason}")
    key = "zookeeper.ssl.protocol"
    if (settings.text(key) or _VERSIONS[0]) not in _VERSIONS:
        reason = f"String must be one of: {', '.join(_VERSIONS)}"
        settings.fail(key, f"Invalid value {settings.text(key)} for configuration {key}: {reason}")
    key = "zookeeper.clientCnxnSocket"
    text = (settings.text(key) or "").strip()
    if text not in _SOCKETS:
        reason = f"other Java classes cannot be loaded. Allowed: {_NETTY}, {_NIO}"
        settings.fail(key, f"Invalid value {text} for configuration {key}: {reason}")
    elif text == _NIO and settings.value("zookeeper.ssl.client.enable") is True:
        settings.fail(key, f"Invalid value {text} for configuration {key}: with TLS it is {_NETTY}, or left out")
    _check_logins(settings)


def _check_logins(settings: Settings) -> None:
    digest = settings.raw.get(DIGEST)
    if digest is not None and not all(digest.partition(":")[::2]):
        settings.fail(DIGEST, f"Invalid value [hidden] for configuration {DIGEST}: expected USER:PASSWORD")
    has_key = settings.value("zookeeper.ssl.client.enable") is True and settings.text("zookeeper.ssl.keystore.location")
    if settings.value("zookeeper.set.acl") is True and not (has_key or digest or settings.text(LOGIN_CONFIG)):
        key = "zookeeper.set.acl"
        reason = (
            f"the broker has no login for ZooKeeper: set {LOGIN_CONFIG}, or zookeeper.ssl.client.enable and"
            f" zookeeper.ssl.keystore.location, or {DIGEST}"
        )
        settings.fail(key, f"Invalid value true for configuration {key}: {reason}")
