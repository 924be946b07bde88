"""This broker's logins to ZooKeeper by Kerberos: SASL's mechanism GSSAPI, as `controller/coordination` uses it.

Each server is the principal `zookeeper/HOST`, with the host as in `zookeeper.connect`. This file is imported only where
the JAAS file asks for it.

Source: ZooKeeper's ZooKeeperSaslClient.java, SaslServerPrincipal.java, ZKClientConfig.java.
"""

from __future__ import annotations

from typing import Final, Self

from barnabas.broker.cluster.login_file import LoginFileError
from barnabas.broker.security.sasl import kerberos
from barnabas.broker.security.sasl.jaas import LoginModule
from barnabas.broker.security.sasl.kerberos_client import Client, SystemClientLibrary
from barnabas.broker.security.sasl.mechanism import AuthenticationFailed, ClientMechanism
from barnabas.controller.coordination.session_security import LoginFailed

SERVICE: Final = "zookeeper"
"""The first component of the principal of each server (`ZK_SASL_CLIENT_USERNAME_DEFAULT`)."""


class KerberosLogin:
    """A principal of Kerberos; `mechanism` makes its logins."""

    def __init__(self, username: str, mechanism: ClientMechanism) -> None:
        self.username = username
        self._mechanism = mechanism

    @classmethod
    def of(cls, module: LoginModule, where: str) -> Self:
        """The principal and the key table of a login module; `where` is its place, for errors. Raises
        LoginFileError."""
        principal, key_table = module.options.get("principal"), module.options.get("keyTab")
        if not principal or not key_table:
            raise LoginFileError(f"{where}: {module.class_name} needs a principal and a keyTab")
        try:
            package = kerberos.find_package()
        except ImportError as error:
            raise LoginFileError(
                f"{where}: Kerberos needs the Python package gssapi: pip install 'barnabas[kerberos]' ({error})"
            ) from error
        return cls(principal, Client(SystemClientLibrary(package, principal, key_table), SERVICE))

    def begin(self, host: str) -> KerberosExchange:
        return KerberosExchange(self._mechanism, host)


class KerberosExchange:
    """One login at a server. Without a ticket, as when the key distribution center is away, it cannot begin."""

    def __init__(self, mechanism: ClientMechanism, host: str) -> None:
        self._exchange = mechanism.start(host)
        self.is_complete = False

    def first(self) -> bytes:
        try:
            return self._exchange.first()
        except AuthenticationFailed as error:
            raise OSError(str(error)) from error

    def respond(self, message: bytes) -> bytes:
        try:
            response = self._exchange.answer(message)
        except AuthenticationFailed as error:
            raise LoginFailed(str(error)) from error
        self.is_complete = response is None
        return response or b""
