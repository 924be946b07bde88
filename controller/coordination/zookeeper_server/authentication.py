"""Who the client of a connection is: its address, the subject of its certificate, and its logins.

Logins are of a connection, not of a session: a client logs in again when it connects again. One that fails ends the
connection.

*Source*: ZooKeeper's `ZooKeeperServer.java` (`processPacket`, `processSasl`), `DigestAuthenticationProvider.java`,
`X509AuthenticationProvider.java`.
"""

from collections.abc import Callable, Collection

from barnabas.controller.coordination.access import (
    IDENTITIES_MAX,
    IDENTITY_BYTES_MAX,
    SUPERUSER,
    digest_identity,
)
from barnabas.controller.coordination.acl import Identity
from barnabas.controller.coordination.digest_md5 import DigestMd5Error, DigestMd5Server


class AuthFailed(Exception):
    """A login that is refused; the connection has to be closed."""


class ClientLogins:
    """The identities of one connection's client, and its login by SASL while that goes on."""

    __slots__ = ("exchange", "identities")

    def __init__(self) -> None:
        self.identities: frozenset[Identity] = frozenset()
        self.exchange: DigestMd5Server | None = None

    def add(self, identity: Identity) -> None:
        """Raises: AuthFailed, if there are too many, or if it is too long."""
        identities = self.identities | {identity}
        if len(identities) > IDENTITIES_MAX or len(identity.name.encode()) > IDENTITY_BYTES_MAX:
            raise AuthFailed
        self.identities = identities


class Authentication:
    """The logins that the server accepts. `password_of` returns the password of a user of SASL, or None; without it no
    user can log in. `random_bytes` makes nonces, and `subject_of` returns the subject of a certificate (DER). A client
    with one of the identities `superusers` may do everything."""

    def __init__(
        self,
        random_bytes: Callable[[int], bytes],
        password_of: Callable[[str], str | None] | None = None,
        subject_of: Callable[[bytes], str] | None = None,
        superusers: Collection[Identity] = (),
    ) -> None:
        self._random_bytes = random_bytes
        self._password_of = password_of
        self._subject_of = subject_of
        self._superusers = frozenset(superusers)

    def meet(self, logins: ClientLogins, host: str, certificate: bytes | None) -> None:
        """Note a new connection's address, and the certificate of its client. Raises: AuthFailed."""
        logins.add(Identity("ip", host))
        if certificate is not None and self._subject_of is not None:
            try:
                subject = self._subject_of(certificate)
            except ValueError as error:
                raise AuthFailed from error
            self._add(logins, Identity("x509", subject))

    def _add(self, logins: ClientLogins, identity: Identity) -> None:
        logins.add(identity)
        if identity in self._superusers:
            logins.add(SUPERUSER)

    def log_in(self, logins: ClientLogins, scheme: str, credentials: bytes) -> None:
        """A request AUTH (`addauth`). Raises: AuthFailed."""
        if scheme == "digest":
            if (identity := digest_identity(credentials)) is None:
                raise AuthFailed
            self._add(logins, identity)
        elif scheme not in {each.scheme for each in logins.identities} - {"sasl", "super"}:
            raise AuthFailed  # `ip` and `x509` are known already

    def negotiate(self, logins: ClientLogins, token: bytes) -> bytes | None:
        """The response to a message of SASL; None if there are no users, as in ZooKeeper. Raises: AuthFailed."""
        if self._password_of is None:
            return None
        if logins.exchange is None:
            logins.exchange = DigestMd5Server(self._password_of, self._random_bytes)
        try:
            response = logins.exchange.respond(token)
        except DigestMd5Error as error:
            raise AuthFailed from error
        if (username := logins.exchange.username) is not None:
            self._add(logins, Identity("sasl", username))
        return response
