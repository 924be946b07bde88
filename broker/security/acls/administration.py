"""ACLs as administrators list, create and delete them.

All ACLs of a resource pattern are in one znode, and are changed together. An ACL that is refused does not keep the
others of its request from being created.

Source: `AclAuthorizer.scala` of 3.9.1 (createAcls, deleteAcls), `AclControlManager.java` and `AclApis.scala` of 4.3.0
(checks and their messages).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

from barnabas.broker.security.acls.authorizer import AclAuthorizer
from barnabas.broker.security.acls.bindings import (
    AccessControlEntry,
    AclBinding,
    AclBindingFilter,
    ResourcePattern,
    entry_of,
    resource_of,
    stored,
)
from barnabas.broker.security.operations import CLUSTER_NAME, Operation, ResourceType
from barnabas.controller.acl_znodes import AclResource, StoredAcl, can_be_stored, encode_acls
from barnabas.controller.acls import AclRepository
from barnabas.turns import Turns
from barnabas.wire.errors import ApiError, ErrorCode

NAME_BYTES_MAX: Final = 1_024
"""The length of the name of a resource pattern."""

PRINCIPAL_BYTES_MAX: Final = 1_024
"""The length of a principal."""

HOST_BYTES_MAX: Final = 256
"""The length of a host."""

_PATTERNS_PER_TURN: Final = 2_000
"""The number of resource patterns that are compared with a filter before others have a turn."""


class AclLimits(NamedTuple):
    """What can be created: the number of ACLs and the memory that they may take, the number of those of one resource
    pattern and the size of its znode (ZooKeeper accepts a megabyte). What other programs write to ZooKeeper is not
    refused. One deletion has a number of `filters`, and lists a number of ACLs."""

    acls: int = 50_000
    bytes: int = 48 * 1024 * 1024
    acls_of_pattern: int = 2_000
    payload_bytes: int = 512 * 1024
    filters: int = 1_000
    listed: int = 100_000


LIMITS: Final = AclLimits()


class Deletion(NamedTuple):
    """An ACL that a filter matches; `error` is why it was not deleted."""

    binding: AclBinding
    error: ApiError | None


class AclAdministration:
    """Lists and changes ACLs; owned by the event loop. `authorizer` decides by them, and hears of each change."""

    def __init__(self, repository: AclRepository, authorizer: AclAuthorizer, limits: AclLimits = LIMITS) -> None:
        self.repository = repository
        self.authorizer = authorizer
        self._limits = limits
        repository.subscribe(self._changed)

    def _changed(self, resource: AclResource) -> None:
        self.authorizer.replace(resource, self.repository.acls_of(resource))

    async def describe(self, wanted: AclBindingFilter) -> dict[ResourcePattern, list[AccessControlEntry]]:
        """The ACLs that a filter matches, in order, by resource pattern."""
        found, turns = {}, Turns(_PATTERNS_PER_TURN)
        for pattern in sorted(await self._matching(wanted, turns)):
            entries = self._known(pattern)
            await turns.after(len(entries))
            matching = sorted(each for each in entries if _is_shown(each) and wanted.matches_entry(each))
            if matching:
                found[pattern] = matching
        return found

    async def _matching(self, wanted: AclBindingFilter, turns: Turns) -> list[ResourcePattern]:
        """The resource patterns that a filter matches: those that it names, or all known ones of them."""
        if patterns := wanted.pattern.patterns:
            return patterns
        found = []
        for pattern in list(self.authorizer.index.entries):
            if turns.is_over():
                await asyncio.sleep(0)
            if wanted.pattern.matches(pattern):
                found.append(pattern)
        return found

    async def create(self, bindings: Sequence[AclBinding]) -> list[ApiError | None]:
        """Create ACLs; returns the error of each one, None if it exists now."""
        errors: list[ApiError | None] = [_error_of(binding) for binding in bindings]
        by_pattern: dict[ResourcePattern, list[int]] = {}
        for index, (binding, error) in enumerate(zip(bindings, errors, strict=True)):
            if error is None:
                by_pattern.setdefault(binding.pattern, []).append(index)
        failure = None
        for pattern, indexes in by_pattern.items():
            if not _is_time_out(failure):
                failure = await self._create_of(pattern, {bindings[index].entry for index in indexes})
            for index in indexes:
                errors[index] = failure
        return errors

    async def _create_of(self, pattern: ResourcePattern, entries: Iterable[AccessControlEntry]) -> ApiError | None:
        """Create ACLs of one resource pattern, all or none; returns the error."""

        def add(current: frozenset[StoredAcl]) -> frozenset[StoredAcl]:
            existing = set(map(entry_of, current))
            new = [stored(entry) for entry in entries if entry not in existing]
            acls = current.union(new)
            if new:
                self._check_room(acls, len(new))
            return acls

        try:
            await self.repository.change(resource_of(pattern), add)
        except ApiError as error:
            return error
        return None

    def _check_room(self, acls: frozenset[StoredAcl], new: int) -> None:
        """Raises: ApiError if a resource pattern may not have so many ACLs, or if there would be too many in all."""
        limits, count = self._limits, self.repository.count
        if len(acls) > limits.acls_of_pattern or len(encode_acls(acls)) > limits.payload_bytes:
            message = f"A resource pattern has at most {limits.acls_of_pattern} ACLs, of {limits.payload_bytes} bytes."
            raise ApiError(ErrorCode.INVALID_REQUEST, message)
        if count + new > limits.acls or self.repository.held_bytes > limits.bytes:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"There are {count} ACLs: no more can be created.")

    async def delete(self, filters: Sequence[AclBindingFilter]) -> list[list[Deletion]]:
        """Delete the ACLs that each filter matches; returns them in order, by filter. An ACL that several filters match
        is listed for each of them.

        A resource pattern that a filter names is read again: its ACLs may have been created at another broker.

        Raises: ApiError if there are too many filters, or if the ACLs of the patterns that they match are too many:
        nothing is deleted.
        """
        by_pattern = await self._by_pattern(filters)
        deletions: list[list[Deletion]] = [[] for _ in filters]
        failure = None
        for pattern in sorted(by_pattern):
            if not can_be_stored(resource_of(pattern)):
                continue
            indexes = by_pattern[pattern]
            entries = self._known(pattern)
            if not _is_time_out(failure):
                entries, failure = await self._delete_of(pattern, [filters[index] for index in indexes])
            for index in indexes:
                matching = sorted(each for each in entries if _is_shown(each) and filters[index].matches_entry(each))
                deletions[index] += [Deletion(AclBinding(pattern, entry), failure) for entry in matching]
        return deletions

    async def _by_pattern(self, filters: Sequence[AclBindingFilter]) -> dict[ResourcePattern, list[int]]:
        """The indexes of the filters that match each resource pattern. Raises: ApiError, as `delete`."""
        limits = self._limits
        if len(filters) > limits.filters:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"A request has at most {limits.filters} filters.")
        by_pattern: dict[ResourcePattern, list[int]] = {}
        listed, turns = 0, Turns(_PATTERNS_PER_TURN)
        for index, each in enumerate(filters):
            for pattern in await self._matching(each, turns):
                by_pattern.setdefault(pattern, []).append(index)
                listed += len(self._known(pattern))
            if listed > limits.listed:
                message = f"The filters match resources with more than {limits.listed} ACLs: delete fewer at once."
                raise ApiError(ErrorCode.INVALID_REQUEST, message)
        return by_pattern

    async def _delete_of(
        self, pattern: ResourcePattern, filters: Sequence[AclBindingFilter]
    ) -> tuple[Collection[AccessControlEntry], ApiError | None]:
        """Delete the ACLs of one resource pattern that one of the filters matches; returns the deleted ones. If they
        could not be deleted, returns the known ones, which the filters may match, and the error."""
        deleted: set[AccessControlEntry] = set()

        def remove(current: frozenset[StoredAcl]) -> frozenset[StoredAcl]:
            entries = {acl: entry_of(acl) for acl in current}
            deleted.clear()
            deleted.update(entry for entry in entries.values() if any(each.matches_entry(entry) for each in filters))
            return frozenset(acl for acl, entry in entries.items() if entry not in deleted)

        try:
            await self.repository.change(resource_of(pattern), remove)
        except ApiError as error:
            return self._known(pattern), error
        return deleted, None

    def _known(self, pattern: ResourcePattern) -> Collection[AccessControlEntry]:
        """The ACLs of a resource pattern that this broker has heard of."""
        return self.authorizer.index.entries.get(pattern, frozenset())


def _is_time_out(error: ApiError | None) -> bool:
    """Whether the metadata store was unreachable: the rest of the request would wait as long."""
    return error is not None and error.error is ErrorCode.REQUEST_TIMED_OUT


def _is_shown(entry: AccessControlEntry) -> bool:
    """Whether clients can decode an ACL."""
    return entry.operation is not Operation.UNKNOWN


def _error_of(binding: AclBinding) -> ApiError | None:
    """The error of an ACL that cannot be created."""
    pattern, entry = binding
    detail = None
    if pattern.resource_type is ResourceType.CLUSTER and pattern.name != CLUSTER_NAME:
        detail = f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    elif not pattern.name:
        detail = "Invalid empty resource name"
    elif ":" not in entry.principal:
        detail = (
            f"Could not parse principal from `{entry.principal[:PRINCIPAL_BYTES_MAX]}` (no colon is present separating"
            " the principal type from the principal name)"
        )
    elif not can_be_stored(resource_of(pattern)):
        detail = "The resource name has a slash, or characters that ZooKeeper refuses, or is . or .."
    else:
        lengths = (
            ("resource name", pattern.name, NAME_BYTES_MAX),
            ("principal", entry.principal, PRINCIPAL_BYTES_MAX),
            ("host", entry.host, HOST_BYTES_MAX),
        )
        for what, text, length_max in lengths:
            if len(text.encode()) > length_max:
                detail = f"A {what} has at most {length_max} bytes."
    return None if detail is None else ApiError(ErrorCode.INVALID_REQUEST, detail)
