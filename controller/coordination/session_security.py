"""How a session with ZooKeeper is protected: encryption, logins, and the ACLs of the znodes that it creates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from barnabas.controller.coordination.acl import Acl


class LoginFailed(Exception):
    """A server's message does not belong to this login, or proves that it is not the right server. The text has no
    secret."""


class LoginExchange(Protocol):
    """One login by SASL, on one connection. Its methods may block: the client's thread calls them."""

    is_complete: bool
    """Whether nothing is left to be sent."""

    def first(self) -> bytes:
        """The first message. Raises OSError if there can be none at the moment."""
        ...

    def respond(self, message: bytes) -> bytes:
        """The response to the server's message; what is returned with the completion is not sent. Raises
        LoginFailed."""
        ...


class Login(Protocol):
    """A user of SASL, by one of its mechanisms."""

    @property
    def username(self) -> str:
        """The name, for messages."""
        ...

    def begin(self, host: str) -> LoginExchange:
        """A login on a new connection to this host."""
        ...


@dataclass(frozen=True, slots=True)
class SessionSecurity:
    """The protection of a session. All of it applies to each of its connections.

    `encrypt` turns a connected socket to a host into an encrypted one, in the client's thread; it raises OSError with
    the reason as its text. `login` is a user of SASL, and `digest` one of the scheme of this name, as USER:PASSWORD.
    `acls_of` returns the ACL of a new znode, by its path; without it, znodes are open to everyone.
    """

    encrypt: Callable[[Any, str], Any] | None = None
    login: Login | None = None
    digest: str | None = field(default=None, repr=False)
    acls_of: Callable[[str], Sequence[Acl]] | None = None

    @property
    def user(self) -> str:
        """The name with which the session logs in, for messages."""
        if self.login is not None:
            return self.login.username
        return "" if self.digest is None else self.digest.partition(":")[0]

    @property
    def has_login(self) -> bool:
        """Whether there is a login that a server may refuse."""
        return self.login is not None or self.digest is not None


UNPROTECTED: Final = SessionSecurity()
