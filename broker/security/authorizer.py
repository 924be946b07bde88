"""What an authorizer decides (Kafka's Authorizer, KIP-504).

The decision is a function of the principal, the host of the client, the operation and the resource. Implementation:
`acls/`. A broker without `authorizer.class.name` has no authorizer, and asks none.
"""

from __future__ import annotations

from typing import Protocol

from barnabas.broker.security.operations import Operation, ResourceType


class Authorizer(Protocol):
    """Decides what a client may do; owned by the event loop, and never waits."""

    def authorize(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        """Whether `principal` ("User:alice"), connected from the address `host`, may do this with the resource."""
        ...

    def authorize_by_resource_type(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """Whether there may be a resource of this type with which the principal may do this (KIP-679)."""
        ...
