"""An authorizer that allows what a test says."""

from collections.abc import Iterable

from barnabas.broker.security.operations import Operation, ResourceType

Triple = tuple[Operation, ResourceType, str]
"""An operation on a resource."""


class FakeAuthorizer:
    """Allows `allowed`, whoever asks. `asked` are the decisions so far, in order."""

    def __init__(self, allowed: Iterable[Triple] = ()) -> None:
        self.allowed = set(allowed)
        self.asked: list[Triple] = []

    def authorize(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        self.asked.append((operation, resource_type, name))
        return (operation, resource_type, name) in self.allowed

    def authorize_by_resource_type(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        return any(allowed[:2] == (operation, resource_type) for allowed in self.allowed)
