"""The protection of this broker's sessions with ZooKeeper, from its configuration: TLS, logins, ACLs of znodes.

Stores and the JAAS file are read before the first connection, and the stores again whenever their files have changed;
what cannot be used then is refused with a line in the log, and the former certificate stays.

Source: kafka 3.9.1 KafkaConfig.scala (`zkClientConfigViaSystemProperties`), JaasUtils.java (`isZkSaslEnabled`);
ZooKeeper's X509Util.java (types of stores, the password of a key in PEM), DigestLoginModule.java.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from barnabas.broker.cluster.login_file import LoginFileError, read_login_module
from barnabas.broker.configuration.config import BrokerConfig, ConfigError
from barnabas.broker.configuration.zookeeper import LOGIN_CONFIG
from barnabas.controller.coordination.digest_md5 import DigestMd5Login
from barnabas.controller.coordination.session_security import SessionSecurity
from barnabas.controller.znode_acls import acls_of
from barnabas.threads import Threads

if TYPE_CHECKING:
    from barnabas.broker.security.tls.contexts import TlsSettings
    from barnabas.broker.security.tls.key_stores import Stamp
    from barnabas.controller.coordination.interface import ProcessSession, SessionCredentials
    from barnabas.controller.coordination.session_security import Login

logger = logging.getLogger(__name__)

LOGIN_MODULE: Final = "org.apache.zookeeper.server.auth.DigestLoginModule"
CLIENT_SECTION: Final = "Client"

_PREFIX: Final = "zookeeper."
_DEFAULTS: Final = {"ssl.client.auth": "none", "ssl.principal.mapping.rules": "DEFAULT"}
"""Of what a client of ZooKeeper has no keys for."""


def problems(config: BrokerConfig) -> list[str]:
    """The errors of the files that `ProtectedSessions` would find. Blocking."""
    try:
        read(config, lambda _count: b"")
    except ConfigError as error:
        return list(error.problems)
    return []


def read(config: BrokerConfig, random_bytes: Callable[[int], bytes]) -> SessionSecurity:
    """The protection of sessions. Blocking, some milliseconds. Raises ConfigError."""
    from barnabas.broker.security.tls.errors import TlsConfigError

    try:
        login = _login(config, random_bytes)
        encrypt = Encryption(_tls_settings(config)) if config.zookeeper_ssl_client_enable else None
    except (LoginFileError, TlsConfigError) as error:
        raise ConfigError([str(error)]) from error
    has_key = encrypt is not None and config.zookeeper_ssl_keystore_location is not None
    if config.zookeeper_set_acl and login is None and not has_key and config.barnabas_zookeeper_digest is None:
        path = config.java_security_auth_login_config
        raise ConfigError([f"zookeeper.set.acl needs a login, but {path} has no section {CLIENT_SECTION}"])
    return SessionSecurity(
        encrypt=encrypt,
        login=login,
        digest=config.barnabas_zookeeper_digest,
        acls_of=acls_of if config.zookeeper_set_acl else None,
    )


class ProtectedSessions:
    """Begins sessions with ZooKeeper, as `OpenSession` does, with what the configuration says of their protection."""

    def __init__(self, config: BrokerConfig, threads: Threads, random_bytes: Callable[[int], bytes]) -> None:
        self._config = config
        self._threads = threads
        self._random_bytes = random_bytes
        self._security: SessionSecurity | None = None

    async def __call__(
        self,
        connect_string: str,
        /,
        *,
        session_timeout_ms: int,
        connection_timeout_ms: int | None,
        in_flight_max: int,
        former: SessionCredentials | None = None,
    ) -> ProcessSession:
        from barnabas.controller.coordination.zookeeper import ZooKeeperSession

        if self._security is None:
            self._security = await self._threads.call(read, self._config, self._random_bytes)
        return await ZooKeeperSession.open(
            connect_string,
            session_timeout_ms=session_timeout_ms,
            connection_timeout_ms=connection_timeout_ms,
            in_flight_max=in_flight_max,
            former=former,
            security=self._security,
        )


# --- logins -------------------------------------------------------------------------------------------


def _login(config: BrokerConfig, random_bytes: Callable[[int], bytes]) -> Login | None:
    """The user of the JAAS file; None without a file, or without the section. Raises LoginFileError."""
    path = config.java_security_auth_login_config
    if path is None:
        return None
    module = read_login_module(path, CLIENT_SECTION, LOGIN_CONFIG)
    if module is None:
        logger.info("%s has no section %s: the broker logs in to ZooKeeper without it", path, CLIENT_SECTION)
        return None
    where = f"{LOGIN_CONFIG}: section {CLIENT_SECTION} of {path}"
    if module.class_name.endswith(".Krb5LoginModule"):
        from barnabas.broker.cluster.zookeeper_kerberos import KerberosLogin

        return KerberosLogin.of(module, where)
    if module.class_name != LOGIN_MODULE:
        raise LoginFileError(f"{where}: {module.class_name} is not supported: use {LOGIN_MODULE}")
    username, password = module.options.get("username"), module.options.get("password")
    if not username or password is None:
        raise LoginFileError(f"{where}: {LOGIN_MODULE} needs a username and a password")
    return DigestMd5Login(username, password, random_bytes)


# --- TLS ----------------------------------------------------------------------------------------------


def _tls_settings(config: BrokerConfig) -> TlsSettings:
    from barnabas.broker.security.tls.contexts import TlsSettings
    from barnabas.broker.security.tls.key_stores import as_in_zookeeper

    def value(key: str) -> Any:
        if key == "ssl.enabled.protocols":
            protocol = config.zookeeper_ssl_protocol
            return config.zookeeper_ssl_enabled_protocols or (None if protocol is None else (protocol,))
        name = f"{_PREFIX}{key}"
        return getattr(config, name.replace(".", "_"), _DEFAULTS.get(key))

    settings = TlsSettings.read(value, _PREFIX)
    return settings.with_stores(as_in_zookeeper(settings.key_store), as_in_zookeeper(settings.trust_store))


class Encryption:
    """Encrypts connections to ZooKeeper, in the thread of the client, which has their sockets. Raises
    TlsConfigError."""

    def __init__(self, settings: TlsSettings) -> None:
        self._settings = settings
        self._stamps: tuple[Stamp | None, ...] = settings.stamps()
        self._context = self._load()

    def _load(self) -> Any:
        from barnabas.broker.security.tls.contexts import load_client

        return load_client(self._settings)

    def __call__(self, connection: Any, host: str) -> Any:
        """The encrypted connection to this host, after the handshake. Raises OSError with the reason."""
        from barnabas.broker.security.tls.contexts import reason_of

        self._read_changed_files()
        try:
            return self._context.wrap_socket(connection, server_hostname=host)
        except (OSError, ValueError) as error:  # ValueError: the name of a host that no certificate can have
            raise OSError(reason_of(error)) from error

    def _read_changed_files(self) -> None:
        from barnabas.broker.security.tls.errors import TlsConfigError

        stamps = self._settings.stamps()
        if stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            self._context = self._load()
        except TlsConfigError as error:
            logger.error("connections to ZooKeeper keep their former key and trusted certificates: %s", error)
        else:
            logger.info("connections to ZooKeeper have another key or other trusted certificates from now on")
