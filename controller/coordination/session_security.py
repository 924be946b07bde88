"""How a session with ZooKeeper is protected: encryption, logins, and the ACLs of the znodes that it creates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from barnabas.controller.coordination.acl import Acl
    from barnabas.controller.coordination.digest_md5 import DigestMd5Client, DigestMd5Login


@dataclass(frozen=True, slots=True)
class SessionSecurity:
    """The protection of a session. All of it applies to each of its connections.

    `encrypt` turns a connected socket to a host into an encrypted one, in the client's thread; it raises OSError with
    the reason as its text. `login` is a user of SASL, and `digest` one of the scheme of this name, as USER:PASSWORD.
    `acls_of` returns the ACL of a new znode, by its path; without it, znodes are open to everyone. `random_bytes` makes
    nonces.
    """

    encrypt: Callable[[Any, str], Any] | None = None
    login: DigestMd5Login | None = None
    digest: str | None = field(default=None, repr=False)
    acls_of: Callable[[str], Sequence[Acl]] | None = None
    random_bytes: Callable[[int], bytes] | None = None

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

    def new_login(self) -> DigestMd5Client | None:
        """A login by SASL, for one connection; None without a user."""
        if self.login is None:
            return None
        assert self.random_bytes is not None, "a login needs nonces"
        from barnabas.controller.coordination.digest_md5 import DigestMd5Client

        return DigestMd5Client(self.login, self.random_bytes)


UNPROTECTED: Final = SessionSecurity()
