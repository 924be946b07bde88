"""What the ACL of a znode permits a client of our server of ZooKeeper's protocol (pure).

A client has identities: its address (`ip`), the subject of its certificate (`x509`), its logins (`sasl`, `digest`). An
entry of an ACL permits what it says to the client that has the entry's identity.

*Source*: ZooKeeper's `ZooKeeperServer.java` (`checkACL`), `PrepRequestProcessor.java` (`fixupACL`), and the providers
of `org.apache.zookeeper.server.auth`.
"""

import base64
import hashlib
import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from barnabas.controller.coordination.acl import ADMIN, WORLD_ANYONE, Acl, Identity
from barnabas.controller.coordination.interface import CoordinationError

ENTRIES_MAX: Final = 100
"""The limit of entries of an ACL: each operation of a transaction may look at all of them."""

IDENTITY_BYTES_MAX: Final = 1024
IDENTITIES_MAX: Final = 20
"""The limits of a client's identities: it adds as many as it likes by the scheme `digest`."""

SUPERUSER: Final = Identity("super", "")
"""Who may do everything, besides the identities by which the client is known."""

_OPEN: Final = (WORLD_ANYONE,)
_SASL_SUPER: Final = Identity("sasl", "super")
"""The user of SASL for whom each entry of the scheme `sasl` is (`SASLAuthenticationProvider.matches`)."""
_PRINCIPAL: Final = re.compile(r"[^/@]*(?:/[^/@]*)?@[^/@]*")
"""A name of Kerberos with a realm; names without one may be any text (`KerberosName`)."""


class NoAuth(CoordinationError):
    """An ACL does not permit an operation to this client."""


class InvalidAcl(CoordinationError):
    """An ACL with entries that name nobody, or without entries."""


@dataclass(frozen=True, slots=True)
class Access:
    """Who executes a transaction: `identities`, and the ACLs that its creations ask for, by the index of the
    operation."""

    identities: frozenset[Identity]
    requested: Mapping[int, Sequence[Acl]] = field(default_factory=dict)

    def check(self, acl: Sequence[Acl], permission: int, path: str) -> None:
        """Raises: NoAuth."""
        if not is_permitted(acl, permission, self.identities):
            raise NoAuth(path)

    def stored_acl(self, requested: Iterable[Acl], path: str) -> tuple[Acl, ...]:
        """The ACL to store: entries of the scheme `auth` are for the client's own identities. Raises: InvalidAcl."""
        requested = tuple(requested)
        if requested == _OPEN:
            return _OPEN
        found: dict[Acl, None] = {}
        for entry in dict.fromkeys(requested):
            if entry.scheme == "auth":
                own = [each for each in sorted(self.identities) if each.scheme not in ("ip", SUPERUSER.scheme)]
                if not own:
                    raise InvalidAcl(path)
                found |= dict.fromkeys(Acl(entry.permissions, *identity) for identity in own)
            elif _is_valid(entry):
                found[entry] = None
            else:
                raise InvalidAcl(path)
            if len(found) > ENTRIES_MAX:
                raise InvalidAcl(path)
        if not found:
            raise InvalidAcl(path)
        return _shared(tuple(found))


def is_permitted(acl: Sequence[Acl], permissions: int, identities: frozenset[Identity]) -> bool:
    """Whether an ACL gives one of these permissions to a client with these identities."""
    if SUPERUSER in identities:
        return True
    for entry in acl:
        if entry.permissions & permissions:
            if entry.scheme == "world" or (entry.scheme, entry.identity) in identities:
                return True
            if entry.scheme == "sasl" and _SASL_SUPER in identities:
                return True
            if entry.scheme == "ip" and any(_is_in(each, entry.identity) for each in identities):
                return True
    return False


def visible_to(acl: Sequence[Acl], identities: frozenset[Identity]) -> Sequence[Acl]:
    """The ACL as this client may see it: without the hashes of passwords, unless it may set the ACL."""
    if is_permitted(acl, ADMIN, identities):
        return acl
    return [
        entry._replace(identity=f"{entry.identity.partition(':')[0]}:x") if entry.scheme == "digest" else entry
        for entry in acl
    ]


def digest_identity(credentials: bytes) -> Identity | None:
    """The identity of `USER:PASSWORD`; None if it is too long, or not text."""
    if len(credentials) > IDENTITY_BYTES_MAX // 2:
        return None
    try:
        user = credentials.decode().partition(":")[0]
    except UnicodeDecodeError:
        return None
    digest = base64.b64encode(hashlib.sha1(credentials, usedforsecurity=False).digest()).decode()
    return Identity("digest", f"{user}:{digest}")


def _is_valid(entry: Acl) -> bool:
    if len(entry.identity) > IDENTITY_BYTES_MAX:
        return False
    if entry.scheme == "world":
        return entry.identity == "anyone"
    if entry.scheme == "digest":
        return len(entry.identity.rstrip(":").split(":")) == 2
    if entry.scheme == "ip":
        return _network(entry.identity) is not None
    if entry.scheme == "sasl":
        return "@" not in entry.identity or _PRINCIPAL.fullmatch(entry.identity) is not None
    return entry.scheme == "x509" and "=" in entry.identity


def _is_in(identity: Identity, network: str) -> bool:
    found = _network(network)
    if identity.scheme != "ip" or found is None:
        return False
    try:
        return ipaddress.ip_address(identity.name) in found
    except ValueError:
        return False


@lru_cache(maxsize=1000)
def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """The addresses of `ADDRESS` or `ADDRESS/BITS`; None if it is neither."""
    _, slash, bits = text.partition("/")
    if slash and not bits.isdecimal():
        return None
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


@lru_cache(maxsize=1000)
def _shared(acl: tuple[Acl, ...]) -> tuple[Acl, ...]:
    """One object for equal lists: most znodes have one of a few."""
    return acl
