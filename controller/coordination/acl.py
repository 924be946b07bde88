"""Access control lists of znodes, for the client and for the server.

An ACL is a list of entries: permissions, and whom they are for, as a scheme and an identity in it. A list of the scheme
`auth` stands for all identities of its creator; the server replaces it.

*Source*: ZooKeeper's `ZooDefs.java`, Programmer's Guide (access control using ACLs).
"""

from typing import Final, NamedTuple

READ: Final = 1
WRITE: Final = 2
CREATE: Final = 4
DELETE: Final = 8
ADMIN: Final = 16
ALL: Final = 31
"""Permissions: to read data and children, to write data, to create and to delete children, to set the ACL."""


class Identity(NamedTuple):
    """Whom an entry is for, or who a client is: `sasl` and a user, `x509` and a subject, `digest` and user:hash."""

    scheme: str
    name: str


class Acl(NamedTuple):
    """One entry of an access control list."""

    permissions: int
    scheme: str
    identity: str


WORLD_ANYONE: Final = Acl(ALL, "world", "anyone")
"""Everyone may do everything."""

WORLD_READS: Final = Acl(READ, "world", "anyone")
"""Everyone may read."""

CREATOR: Final = Acl(ALL, "auth", "")
"""The creator may do everything; InvalidACL for one that has not logged in."""
