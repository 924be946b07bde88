"""Permissions, as Kafka's access control lists: APIs 29 to 31 (KIP-11, KIP-290)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from barnabas.broker.client.client import KafkaClient
from barnabas.broker.client.errors import ClientError, check
from barnabas.broker.security.acls.bindings import ANY, WILDCARD, PatternType, PermissionType
from barnabas.broker.security.operations import Operation, ResourceType
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from barnabas.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from barnabas.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

_NO_AUTHORIZER: Final = (
    "the cluster has no authorizer: set authorizer.class.name=kafka.security.authorizer.AclAuthorizer and super.users,"
    " or start it with `barnabas serve --secure`"
)


class Acl(NamedTuple):
    """One rule."""

    principal: str
    permission: PermissionType
    operation: int
    resource_type: ResourceType
    name: str
    pattern: int
    host: str = WILDCARD

    def as_document(self) -> dict[str, object]:
        """The rule as JSON, in Kafka's words."""
        return {
            "principal": self.principal,
            "permission": self.permission.name,
            "operation": operation_name(self.operation),
            "resource_type": _name_of(ResourceType, self.resource_type),
            "resource_name": self.name,
            "pattern_type": _name_of(PatternType, self.pattern),
            "host": self.host,
        }


class AclFilter(NamedTuple):
    """What rules have to have; None and `ANY` fit all."""

    principal: str | None = None
    permission: int = ANY
    operation: int = ANY
    resource_type: int = ANY
    name: str | None = None
    pattern: int = ANY
    host: str | None = None


def operation_name(code: int) -> str:
    """Kafka's name of an operation."""
    return _name_of(Operation, code)


def _name_of(names: type[IntEnum], code: int) -> str:
    return next((each.name for each in names if each == code), f"UNKNOWN({code})")


async def create_acls(client: KafkaClient, acls: Sequence[Acl]) -> list[str | None]:
    """Add rules; the value has for each the reason why it was not added, None where it was. Errors: ClientError."""
    request = CreateAclsRequest(
        creations=[
            AclCreation(
                resource_type=acl.resource_type,
                resource_name=acl.name,
                resource_pattern_type=acl.pattern,
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
            for acl in acls
        ]
    )
    response: CreateAclsResponse = await client.send_to_controller(request)
    for each in response.results:
        _check(each.error_code, "cannot add ACLs", each.error_message)
    return [
        (each.error_message or ErrorCode.of(each.error_code).message) if each.error_code else None
        for each in response.results
    ]


async def list_acls(client: KafkaClient, wanted: AclFilter) -> list[Acl]:
    """The rules that fit a filter, in the order of their resources. Errors: ClientError."""
    request = DescribeAclsRequest(
        resource_type_filter=wanted.resource_type,
        resource_name_filter=wanted.name,
        pattern_type_filter=wanted.pattern,
        principal_filter=wanted.principal,
        host_filter=wanted.host,
        operation=wanted.operation,
        permission_type=wanted.permission,
    )
    response: DescribeAclsResponse = await client.send(request)
    _check(response.error_code, "cannot list ACLs", response.error_message)
    check(response.error_code, "cannot list ACLs", response.error_message)
    return sorted(
        _acl(each.principal, each.permission_type, each.operation, found.resource_type, found.resource_name,
             found.pattern_type, each.host)
        for found in response.resources
        for each in found.acls
    )  # fmt: skip


async def delete_acls(client: KafkaClient, filters: Sequence[AclFilter]) -> list[Acl]:
    """Delete the rules that fit any of the filters, and return them. Errors: ClientError."""
    request = DeleteAclsRequest(
        filters=[
            DeleteAclsFilter(
                resource_type_filter=wanted.resource_type,
                resource_name_filter=wanted.name,
                pattern_type_filter=wanted.pattern,
                principal_filter=wanted.principal,
                host_filter=wanted.host,
                operation=wanted.operation,
                permission_type=wanted.permission,
            )
            for wanted in filters
        ]
    )
    response: DeleteAclsResponse = await client.send_to_controller(request)
    deleted = []
    for result in response.filter_results:
        _check(result.error_code, "cannot remove ACLs", result.error_message)
        check(result.error_code, "cannot remove ACLs", result.error_message)
        for each in result.matching_acls:
            check(each.error_code, f"cannot remove an ACL of {each.principal}", each.error_message)
            deleted.append(
                _acl(each.principal, each.permission_type, each.operation, each.resource_type, each.resource_name,
                     each.pattern_type, each.host)
            )  # fmt: skip
    return sorted(set(deleted))


def _check(code: int, what: str, message: str | None) -> None:
    """Raise ClientError for what concerns all rules alike."""
    if code == ErrorCode.SECURITY_DISABLED:
        raise ClientError(f"{what}: {_NO_AUTHORIZER}")
    if code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        check(code, what, message)


def _acl(
    principal: str, permission: int, operation: int, resource_type: int, name: str, pattern: int, host: str
) -> Acl:
    """A rule of a response. Raises: ValueError for codes that this program does not know."""
    return Acl(principal, PermissionType(permission), operation, ResourceType(resource_type), name, pattern, host)
