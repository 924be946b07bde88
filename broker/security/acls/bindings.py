"""ACLs and filters of ACLs as values, with Kafka's codes, and their names in znodes.

Source: org.apache.kafka.common.acl and .resource of 4.3.0, `SecurityUtils.java`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from barnabas.broker.security.operations import Operation, ResourceType
from barnabas.controller.acl_znodes import AclResource, StoredAcl

UNKNOWN: Final = 0
"""The code of an unknown operation, permission, resource type or pattern type."""

ANY: Final = 1
"""The code that matches each operation, permission, resource type or pattern type in a filter."""

_NAMES_OF_NONE: Final = {ANY: "ANY", 2: "MATCH"}
"""Codes that filters alone have."""

WILDCARD: Final = "*"
"""The name of a literal resource pattern for all resources of its type, and the host for all hosts."""

WILDCARD_PRINCIPAL: Final = "User:*"


class PermissionType(IntEnum):
    """Kafka's AclPermissionType."""

    DENY = 2
    ALLOW = 3


class PatternType(IntEnum):
    """Kafka's PatternType. MATCH is for filters: each pattern that applies to a resource of that name."""

    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class ResourcePattern(NamedTuple):
    """The resources that an ACL is for. The pattern type is LITERAL or PREFIXED."""

    resource_type: ResourceType
    pattern_type: PatternType
    name: str


class AccessControlEntry(NamedTuple):
    """Who may do what, or may not, on whatever resource. The host is an address or "*"."""

    principal: str
    host: str
    operation: Operation
    permission_type: PermissionType


class AclBinding(NamedTuple):
    """One ACL."""

    pattern: ResourcePattern
    entry: AccessControlEntry


class AclCodes(NamedTuple):
    """The codes of an ACL that a request creates."""

    resource_type: int
    pattern_type: int
    operation: int
    permission_type: int

    @property
    def unknown(self) -> str:
        """The first code that no ACL can have, as Kafka's messages name it: "resourceType ANY"; or empty."""
        for name, code, known in (
            ("resourceType", self.resource_type, ResourceType),
            ("patternType", self.pattern_type, (PatternType.LITERAL, PatternType.PREFIXED)),
            ("operation", self.operation, Operation),
            ("permissionType", self.permission_type, PermissionType),
        ):
            if code == UNKNOWN or code not in list(known):
                return f"{name} {_NAMES_OF_NONE.get(code, 'UNKNOWN')}"
        return ""


class ResourcePatternFilter(NamedTuple):
    """Matches resource patterns. Types are codes, `ANY` and MATCH among them; a name of None is any name. An unknown
    code matches nothing."""

    resource_type: int
    pattern_type: int
    name: str | None

    def matches(self, pattern: ResourcePattern) -> bool:
        """Whether the filter matches a resource pattern."""
        if self.resource_type not in (ANY, pattern.resource_type):
            return False
        if self.pattern_type not in (ANY, PatternType.MATCH, pattern.pattern_type):
            return False
        if self.name is None:
            return True
        if self.pattern_type != PatternType.MATCH:
            return self.name == pattern.name
        if pattern.pattern_type == PatternType.PREFIXED:
            return self.name.startswith(pattern.name)
        return pattern.name in (self.name, WILDCARD)

    @property
    def patterns(self) -> list[ResourcePattern]:
        """The only resource patterns that may match; none if there may be any number of them."""
        if self.name is None:
            return []
        return [
            ResourcePattern(resource_type, pattern_type, self.name)
            for resource_type in ResourceType
            if resource_type == self.resource_type
            for pattern_type in (PatternType.LITERAL, PatternType.PREFIXED)
            if self.pattern_type in (ANY, pattern_type)
        ]


class AclBindingFilter(NamedTuple):
    """Matches ACLs. A principal or host of None is any."""

    pattern: ResourcePatternFilter
    principal: str | None
    host: str | None
    operation: int
    permission_type: int

    @property
    def is_unknown(self) -> bool:
        """Whether a code is unknown, so that nothing matches."""
        return not (
            self.pattern.resource_type in (ANY, *ResourceType)
            and self.pattern.pattern_type in (ANY, *PatternType)
            and self.operation in (ANY, *Operation)
            and self.permission_type in (ANY, *PermissionType)
        )

    def matches_entry(self, entry: AccessControlEntry) -> bool:
        """Whether the filter matches an ACL of a resource pattern that it matches."""
        return (
            self.principal in (None, entry.principal)
            and self.host in (None, entry.host)
            and self.operation in (ANY, entry.operation)
            and self.permission_type in (ANY, entry.permission_type)
        )


# --- znodes ----------------------------------------------------------------------------------------


def name_in_znodes(member: IntEnum) -> str:
    """The name of a code in znodes: "AlterConfigs"."""
    return member.name.title().replace("_", "")


_RESOURCE_TYPES: Final = {name_in_znodes(each): each for each in ResourceType}
_OPERATIONS: Final = {name_in_znodes(each).upper(): each for each in Operation}
_PERMISSION_TYPES: Final = {name_in_znodes(each): each for each in PermissionType}


def resource_of(pattern: ResourcePattern) -> AclResource:
    """A resource pattern as the repository of ACLs has it."""
    return AclResource(name_in_znodes(pattern.resource_type), pattern.pattern_type.name, pattern.name)


def pattern_of(resource: AclResource) -> ResourcePattern:
    """A resource pattern of the repository of ACLs."""
    return ResourcePattern(_RESOURCE_TYPES[resource.resource_type], PatternType[resource.pattern_type], resource.name)


def stored(entry: AccessControlEntry) -> StoredAcl:
    """An ACL as the repository has it."""
    permission_type, operation = name_in_znodes(entry.permission_type), name_in_znodes(entry.operation)
    return StoredAcl(entry.principal, permission_type, operation, entry.host)


def entry_of(acl: StoredAcl) -> AccessControlEntry:
    """An ACL of the repository."""
    operation = _OPERATIONS.get(acl.operation.upper(), Operation.UNKNOWN)
    return AccessControlEntry(acl.principal, acl.host, operation, _PERMISSION_TYPES[acl.permission_type])
