"""What a set of ACLs allows. Pure.

An ACL applies if it names the principal or all of them, the host or all of them, the operation or all of them, and a
pattern of the resource: its name, a prefix of it, or "*". One that denies has precedence. Being allowed to read, write,
delete or alter includes to describe, and to alter configs includes to describe them; being denied does not. If a
resource has no ACL at all, also none of other principals, only super users may use it, or everybody
(`allow.everyone.if.no.acl.found`).

Source: `AclAuthorizer.scala` of 3.9.1; `StandardAuthorizerData.java` of 4.3.0 decides the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from barnabas.broker.security.acls.bindings import (
    WILDCARD,
    WILDCARD_PRINCIPAL,
    AccessControlEntry,
    PatternType,
    PermissionType,
    ResourcePattern,
)
from barnabas.broker.security.operations import Operation, ResourceType

_ALLOWED_BY: Final[Mapping[int, frozenset[int]]] = MappingProxyType(
    {
        Operation.DESCRIBE: frozenset(
            (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER, Operation.DESCRIBE)
        ),
        Operation.DESCRIBE_CONFIGS: frozenset((Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS)),
    }
)
"""The operations whose permission includes that of another operation."""

_ByPrincipal = Mapping[str, tuple[AccessControlEntry, ...]]


class _Grant(NamedTuple):
    """Everything of an ACL except the name of its resources (AclAuthorizer's ResourceTypeKey)."""

    resource_type: ResourceType
    pattern_type: PatternType
    entry: AccessControlEntry


class _OfType:
    """The ACLs of one resource type, by the names of their patterns."""

    def __init__(self) -> None:
        self.literal: dict[str, _ByPrincipal] = {}
        self.prefixed: dict[str, _ByPrincipal] = {}
        self.lengths: tuple[int, ...] = ()
        """The lengths of the prefixes, in ascending order: as many prefixes of a name are looked up, however many ACLs
        there are."""
        self._counts: Counter[int] = Counter()

    def replace(self, pattern_type: PatternType, name: str, entries: _ByPrincipal) -> None:
        patterns = self.prefixed if pattern_type is PatternType.PREFIXED else self.literal
        is_new = name not in patterns
        if entries:
            patterns[name] = entries
        else:
            patterns.pop(name, None)
        if pattern_type is PatternType.PREFIXED and is_new == bool(entries):
            self._counts[len(name)] += 1 if entries else -1
            self.lengths = tuple(sorted((+self._counts).keys()))

    def applying_to(self, name: str) -> Iterator[_ByPrincipal]:
        """The ACLs of each pattern that a name matches."""
        for pattern in (WILDCARD, name):
            if (found := self.literal.get(pattern)) is not None:
                yield found
        for length in self.lengths:
            if length > len(name):
                return
            if (found := self.prefixed.get(name[:length])) is not None:
                yield found


class AclIndex:
    """All ACLs, and the decisions by them.

    `allows_everyone` is `allow.everyone.if.no.acl.found`.
    """

    def __init__(self, *, allows_everyone: bool = False) -> None:
        self._allows_everyone = allows_everyone
        self._entries: dict[ResourcePattern, frozenset[AccessControlEntry]] = {}
        self._types: dict[ResourceType, _OfType] = {each: _OfType() for each in ResourceType}
        self._names: dict[_Grant, set[str]] = {}

    @property
    def entries(self) -> Mapping[ResourcePattern, frozenset[AccessControlEntry]]:
        """All ACLs, by resource pattern, read-only; none is empty."""
        return MappingProxyType(self._entries)

    def replace(self, pattern: ResourcePattern, entries: frozenset[AccessControlEntry]) -> None:
        """Replace the ACLs of a resource pattern."""
        former = self._entries.pop(pattern, frozenset())
        if entries:
            self._entries[pattern] = entries
        by_principal: dict[str, list[AccessControlEntry]] = {}
        for entry in entries:
            by_principal.setdefault(entry.principal, []).append(entry)
        self._types[pattern.resource_type].replace(
            pattern.pattern_type, pattern.name, {each: tuple(listed) for each, listed in by_principal.items()}
        )
        for entry in former - entries:
            grant = _Grant(pattern.resource_type, pattern.pattern_type, entry)
            names = self._names[grant]
            names.discard(pattern.name)
            if not names:
                del self._names[grant]
        for entry in entries - former:
            grant = _Grant(pattern.resource_type, pattern.pattern_type, entry)
            self._names.setdefault(grant, set()).add(pattern.name)

    def allows(self, principal: str, host: str, operation: int, resource_type: ResourceType, name: str) -> bool:
        """Whether an operation on a resource is allowed to a principal that is no super user."""
        allowing = _ALLOWED_BY.get(operation, (operation,))
        has_acls = is_allowed = False
        for by_principal in self._types[resource_type].applying_to(name):
            has_acls = True
            for each in (principal, WILDCARD_PRINCIPAL):
                for entry in by_principal.get(each, ()):
                    if entry.host not in (host, WILDCARD):
                        continue
                    if entry.permission_type is PermissionType.DENY:
                        if entry.operation in (operation, Operation.ALL):
                            return False
                    elif entry.operation is Operation.ALL or entry.operation in allowing:
                        is_allowed = True
        return is_allowed or (self._allows_everyone and not has_acls)

    def allows_some(self, principal: str, host: str, operation: int, resource_type: ResourceType) -> bool:
        """Whether an operation may be allowed on some resource of a type (KIP-679): no ACL denies it on all, and one
        allows it on names that none denies. Operations that include others do not count, as in Kafka."""

        def names(permission_type: PermissionType, pattern_type: PatternType) -> list[set[str]]:
            return self._names_of(principal, host, operation, resource_type, permission_type, pattern_type)

        denied = names(PermissionType.DENY, PatternType.LITERAL)
        if any(WILDCARD in each for each in denied):
            return False
        if self._allows_everyone:
            return True
        denied_prefixes = names(PermissionType.DENY, PatternType.PREFIXED)
        if any(
            not _begins_with_one_of(denied_prefixes, prefix)
            for each in names(PermissionType.ALLOW, PatternType.PREFIXED)
            for prefix in each
        ):
            return True
        return any(
            name == WILDCARD
            or not (any(name in other for other in denied) or _begins_with_one_of(denied_prefixes, name))
            for each in names(PermissionType.ALLOW, PatternType.LITERAL)
            for name in each
        )

    def _names_of(
        self,
        principal: str,
        host: str,
        operation: int,
        resource_type: ResourceType,
        permission_type: PermissionType,
        pattern_type: PatternType,
    ) -> list[set[str]]:
        """The names of the patterns with an ACL that applies."""
        grants = (
            _Grant(resource_type, pattern_type, AccessControlEntry(who, where, Operation(what), permission_type))
            for who in {principal, WILDCARD_PRINCIPAL}
            for where in {host, WILDCARD}
            for what in {operation, Operation.ALL}
        )
        return [self._names[grant] for grant in grants if grant in self._names]


def _begins_with_one_of(prefixes: Iterable[set[str]], name: str) -> bool:
    return any(name[:length] in each for each in prefixes for length in range(1, len(name) + 1))
