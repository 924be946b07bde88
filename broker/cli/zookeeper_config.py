"""The configuration file of `barnabas zookeeper`: the keys of ZooKeeper's `zoo.cfg` that it knows.

The names are ZooKeeper's, those of properties of its JVM without `zookeeper.`. Others, such as `tickTime`, have no
effect. Source: ZooKeeper's Administrator's Guide (encryption, authentication), X509Util.java.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from barnabas.broker.configuration.config import parse_address
from barnabas.broker.configuration.properties import decode_properties, parse_properties
from barnabas.controller.coordination.acl import Identity

if TYPE_CHECKING:
    from barnabas.broker.security.tls.contexts import TlsSettings
    from barnabas.broker.security.tls.key_stores import StoreSettings

LOGIN_CONFIG: Final = "java.security.auth.login.config"
LOGIN_MODULE: Final = "org.apache.zookeeper.server.auth.DigestLoginModule"
SERVER_SECTION: Final = "Server"

_CLIENT_AUTH: Final = {"none": "none", "want": "requested", "need": "required"}
_SUPERUSERS: Final = {
    "superUser": "sasl",
    "DigestAuthenticationProvider.superDigest": "digest",
    "X509AuthenticationProvider.superUser": "x509",
}
_USER: Final = "user_"
_PREFIX: Final = "zookeeper."


class ZooKeeperConfigError(ValueError):
    """A configuration that cannot be used; the text is one sentence."""


@dataclass(frozen=True, slots=True)
class ZooKeeperConfig:
    """What the file says: addresses, HOST:PORT, without TLS and with it, and `tls` for the latter; the passwords of the
    users of SASL, None without any; the identities that may do everything."""

    address: str | None = None
    secure_address: str | None = None
    tls: TlsSettings | None = None
    passwords: Mapping[str, str] | None = field(default=None, repr=False)
    superusers: frozenset[Identity] = field(default=frozenset(), repr=False)

    @property
    def requires_certificates(self) -> bool:
        """Whether nobody connects to the port with TLS without a certificate that the trust store accepts."""
        return self.tls is not None and self.tls.client_auth == "required" and self.tls.trust_store.location is not None


def read(path: Path) -> ZooKeeperConfig:
    """The configuration of a file. Blocking. Raises ZooKeeperConfigError."""
    try:
        found = parse_properties(decode_properties(path.read_bytes()))
    except (OSError, ValueError) as error:
        raise ZooKeeperConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    return of({name.removeprefix(_PREFIX): value.strip() for name, value in found.items() if value.strip()})


def of(values: Mapping[str, str]) -> ZooKeeperConfig:
    """The configuration of these keys and values. Blocking. Raises ZooKeeperConfigError."""
    secure_address = _address(values, "secureClientPort")
    return ZooKeeperConfig(
        _address(values, "clientPort"),
        secure_address,
        None if secure_address is None else _tls(values),
        _passwords(values),
        frozenset(Identity(scheme, values[key]) for key, scheme in _SUPERUSERS.items() if key in values),
    )


def _address(values: Mapping[str, str], key: str) -> str | None:
    port = values.get(key)
    if port is None:
        return None
    host = values.get(f"{key}Address", "127.0.0.1")
    address = f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
    try:
        parse_address(address)
    except ValueError as error:
        raise ZooKeeperConfigError(f"{key}: {error}") from error
    return address


def _tls(values: Mapping[str, str]) -> TlsSettings:
    from barnabas.broker.security.tls.contexts import TlsSettings

    client_auth = values.get("ssl.clientAuth", "need").lower()
    if client_auth not in _CLIENT_AUTH:
        raise ZooKeeperConfigError(f"ssl.clientAuth: {client_auth} is not one of {', '.join(_CLIENT_AUTH)}")
    protocols = values.get("ssl.enabledProtocols", values.get("ssl.protocol", ""))

    def value(key: str) -> Any:
        lists = {"ssl.enabled.protocols": protocols, "ssl.cipher.suites": values.get("ssl.ciphersuites", "")}
        return tuple(filter(None, (name.strip() for name in lists[key].split(",")))) if key in lists else None

    settings = TlsSettings.read(value, "", _CLIENT_AUTH[client_auth])
    return settings.with_stores(_store(values, "keyStore"), _store(values, "trustStore"))


def _store(values: Mapping[str, str], kind: str) -> StoreSettings:
    from barnabas.broker.security.tls.key_stores import StoreSettings, as_in_zookeeper

    location, password, type = (values.get(f"ssl.{kind}.{name}") for name in ("location", "password", "type"))
    return as_in_zookeeper(StoreSettings(kind, "", type or "", location, password))


def _passwords(values: Mapping[str, str]) -> dict[str, str] | None:
    """The users of the section `Server` of the JAAS file."""
    from barnabas.broker.cluster.login_file import LoginFileError, read_login_module

    path = values.get(LOGIN_CONFIG)
    if path is None:
        return None
    try:
        module = read_login_module(path, SERVER_SECTION, LOGIN_CONFIG)
    except LoginFileError as error:
        raise ZooKeeperConfigError(str(error)) from error
    if module is None or module.class_name != LOGIN_MODULE:
        raise ZooKeeperConfigError(f"{LOGIN_CONFIG}: {path} needs a section {SERVER_SECTION} with {LOGIN_MODULE}")
    return {name.removeprefix(_USER): value for name, value in module.options.items() if name.startswith(_USER)}
