"""The paths and payloads of the znodes of ACLs, as Apache Kafka 3.9 with AclAuthorizer has them.

One znode has all ACLs of one resource pattern: a literal one is /kafka-acl/TYPE/NAME, a prefixed one
/kafka-acl-extended/prefixed/TYPE/NAME. Notifications of changes name the pattern. Everything here is text as the znodes
have it ("TransactionalId", "Read", "Allow"): `broker/security/acls/` knows the meaning.

*Source*: kafka 3.9.1 `ZkData.scala` (ZkAclStore, ZkAclChangeStore), `AclEntry.java`, `SecurityUtils.java`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from barnabas.controller.coordination.interface import Create
from barnabas.controller.coordination.tree import BadArguments, validate_operation
from barnabas.controller.znodes import DamagedZnode, decode_object, encode_object, text_of

LITERAL: Final = "LITERAL"
PREFIXED: Final = "PREFIXED"

ACLS: Final[Mapping[str, str]] = MappingProxyType({LITERAL: "/kafka-acl", PREFIXED: "/kafka-acl-extended/prefixed"})
"""The parents of resource types, by pattern type."""

ACL_CHANGES: Final[Mapping[str, str]] = MappingProxyType(
    {LITERAL: "/kafka-acl-changes", PREFIXED: "/kafka-acl-extended-changes"}
)
"""The parents of notifications, by pattern type."""

ACL_CHANGE_PREFIX: Final = "acl_changes_"

RESOURCE_TYPES: Final = ("Topic", "Group", "Cluster", "TransactionalId", "DelegationToken", "User")

ALLOW: Final = "Allow"
DENY: Final = "Deny"

ACL_PATHS: Final = (
    *(f"{parent}/{resource_type}" for parent in ACLS.values() for resource_type in RESOURCE_TYPES),
    *ACL_CHANGES.values(),
)
"""Znodes that exist, with their parents, in each cluster with an authorizer (`KafkaZkClient.createAclPaths`)."""

_VERSION: Final = 1

_TYPES_IN_CAPITALS: Final = {name.upper(): name for name in RESOURCE_TYPES}


class AclResource(NamedTuple):
    """A resource pattern: the resource type, LITERAL or PREFIXED, and the name or the prefix of names."""

    resource_type: str
    pattern_type: str
    name: str

    @property
    def parent(self) -> str:
        """The path of the znode above."""
        return f"{ACLS[self.pattern_type]}/{self.resource_type}"

    @property
    def path(self) -> str:
        """The path of the znode."""
        return f"{self.parent}/{self.name}"


class StoredAcl(NamedTuple):
    """One ACL of a resource pattern. The permission type is `ALLOW` or `DENY`, the operation may be unknown."""

    principal: str
    permission_type: str
    operation: str
    host: str


def can_be_stored(resource: AclResource) -> bool:
    """Whether ZooKeeper accepts the name of a resource pattern in a path."""
    if not resource.name or "/" in resource.name:
        return False
    try:
        validate_operation(Create(resource.path))
    except BadArguments:
        return False
    return True


def encode_acls(acls: Iterable[StoredAcl]) -> bytes:
    """The payload with the ACLs of a resource pattern, version 1."""
    listed = [
        {
            "principal": acl.principal,
            "permissionType": acl.permission_type,
            "operation": acl.operation,
            "host": acl.host,
        }
        for acl in sorted(acls)
    ]
    return encode_object({"version": _VERSION, "acls": listed})


def decode_acls(resource: AclResource, payload: bytes) -> frozenset[StoredAcl]:
    """The ACLs of a resource pattern. An empty payload has none, as for Kafka. An ACL whose permission type is neither
    to allow nor to deny damages the znode: it may be meant to deny.
    """
    if not payload:
        return frozenset()

    def read(fields: dict[str, Any]) -> frozenset[StoredAcl]:
        _check_version(fields)
        return frozenset(map(_decoded_acl, fields["acls"]))

    return decode_object(resource.path, payload, read)


def _check_version(fields: dict[str, Any]) -> None:
    if fields["version"] != _VERSION:
        raise ValueError(f"unsupported version {fields['version']!r}")


def _decoded_acl(fields: dict[str, Any]) -> StoredAcl:
    permission_type = text_of(fields["permissionType"]).capitalize()
    if permission_type not in (ALLOW, DENY):
        raise ValueError(f"unknown permission type {permission_type!r}")
    principal = text_of(fields["principal"])
    if ":" not in principal:
        raise ValueError(f"{principal!r} is not a principal")
    # Thousands of ACLs have the same few texts.
    operation, host = sys.intern(text_of(fields["operation"])), sys.intern(text_of(fields["host"]))
    return StoredAcl(sys.intern(principal), sys.intern(permission_type), operation, host)


def encode_acl_change(resource: AclResource) -> bytes:
    """The payload of a notification that the ACLs of a resource pattern have changed: "TOPIC:name" for a literal one,
    JSON of version 1 for a prefixed one.
    """
    resource_type = _with_underscores(resource.resource_type)
    if resource.pattern_type == LITERAL:
        return f"{resource_type}:{resource.name}".encode()
    fields = {
        "version": _VERSION,
        "resourceType": resource_type,
        "name": resource.name,
        "patternType": resource.pattern_type,
    }
    return encode_object(fields)


def decode_acl_change(path: str, payload: bytes) -> AclResource | None:
    """The resource pattern in a notification; None if its type is unknown."""
    if path.startswith(f"{ACL_CHANGES[LITERAL]}/"):
        try:
            resource_type, separator, name = payload.decode().partition(":")
        except UnicodeDecodeError as error:
            raise DamagedZnode(path, payload, str(error)) from error
        if not separator:
            raise DamagedZnode(path, payload, "expected a resource type, a colon and a name")
        return _known(path, payload, resource_type, LITERAL, name)

    def read(fields: dict[str, Any]) -> tuple[str, str, str]:
        _check_version(fields)
        return text_of(fields["resourceType"]), text_of(fields["patternType"]), text_of(fields["name"])

    return _known(path, payload, *decode_object(path, payload, read))


def _known(path: str, payload: bytes, resource_type: str, pattern_type: str, name: str) -> AclResource | None:
    known_type = _TYPES_IN_CAPITALS.get(resource_type.upper().replace("_", ""))
    if known_type is None or pattern_type not in ACLS:
        return None
    resource = AclResource(known_type, pattern_type, name)
    if not can_be_stored(resource):
        raise DamagedZnode(path, payload, f"{name!r} is not the name of a znode")
    return resource


def _with_underscores(name: str) -> str:
    """The name of Kafka's constant: "TRANSACTIONAL_ID" of "TransactionalId"."""
    return "".join(f"_{letter}" if letter.isupper() and index else letter for index, letter in enumerate(name)).upper()
