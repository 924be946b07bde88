"""The authorizer of a broker: what ACLs allow, and to super users everything. Decisions are remembered until an ACL
changes: a decision that is remembered costs one call.

Source: `AclAuthorizer.scala` of 3.9.1, `StandardAuthorizer.java` of 4.3.0.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final

from barnabas.broker.security.acls.bindings import entry_of, name_in_znodes, pattern_of
from barnabas.broker.security.acls.decision import AclIndex
from barnabas.broker.security.operations import Operation, ResourceType
from barnabas.controller.acl_znodes import AclResource, StoredAcl

logger = logging.getLogger("kafka.authorizer.logger")
"""Kafka's name of the log of decisions."""

DECISIONS_MAX: Final = 10_000
"""The number of decisions that are remembered."""

REMEMBERED_LENGTH_MAX: Final = 500
"""The length of a principal and a name whose decision is remembered; those of topics are far shorter."""


def super_users_in(text: str) -> frozenset[str]:
    """The principals in `super.users`, separated by semicolons: names of certificates contain commas. Raises:
    ValueError with the part that is not TYPE:NAME."""
    parts = [part.strip() for part in text.split(";") if part.strip()]
    for part in parts:
        if ":" not in part:
            raise ValueError(part)
    return frozenset(parts)


class AclAuthorizer:
    """Implements `Authorizer`; owned by the event loop. `index` may be read; `replace` changes it.

    Decisions are logged at DEBUG when they are made, not each time that they are used.
    """

    def __init__(self, super_users: Collection[str] = (), *, allows_everyone: bool = False) -> None:
        self._super_users = frozenset(super_users)
        self._decisions: dict[tuple[str, str, int, int, str | None], bool] = {}
        self.index = AclIndex(allows_everyone=allows_everyone)

    def replace(self, resource: AclResource, acls: frozenset[StoredAcl]) -> None:
        """The ACLs of a resource pattern have changed."""
        self.index.replace(pattern_of(resource), frozenset(map(entry_of, acls)))
        self._decisions.clear()

    def authorize(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        try:
            return self._decisions[principal, host, operation, resource_type, name]
        except KeyError:
            pass
        is_allowed = principal in self._super_users or self.index.allows(
            principal, host, operation, resource_type, name
        )
        return self._decided(is_allowed, principal, host, operation, resource_type, name)

    def authorize_by_resource_type(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        try:
            return self._decisions[principal, host, operation, resource_type, None]
        except KeyError:
            pass
        is_allowed = principal in self._super_users or self.index.allows_some(principal, host, operation, resource_type)
        return self._decided(is_allowed, principal, host, operation, resource_type, None)

    def _decided(
        self,
        is_allowed: bool,
        principal: str,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str | None,
    ) -> bool:
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug(
                "principal %s from host %s is %s %s on %s",
                principal,
                host,
                "allowed" if is_allowed else "denied",
                name_in_znodes(operation),
                f"{name_in_znodes(resource_type)} {name!r}"
                if name is not None
                else f"some {name_in_znodes(resource_type)}",
            )
        if len(self._decisions) >= DECISIONS_MAX:
            self._decisions.clear()
        if len(principal) + len(name or "") <= REMEMBERED_LENGTH_MAX:
            self._decisions[principal, host, operation, resource_type, name] = is_allowed
        return is_allowed
