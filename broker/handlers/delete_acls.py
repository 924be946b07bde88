"""DeleteAcls (key 31): delete the ACLs that filters match, and list them (KIP-140, KIP-290).   Versions 1-3.

Behaviour: an ACL that several filters match is listed for each of them. A filter that names a resource pattern finds
each ACL of it, any other one those that this broker has heard of. On return this broker obeys the change; the others
hear of it at once.
Authorization: Alter on Cluster: CLUSTER_AUTHORIZATION_FAILED per filter.
Errors per filter: SECURITY_DISABLED without an authorizer; INVALID_REQUEST for codes that are not known, and for all
filters if they are, or match, too many. Per ACL: REQUEST_TIMED_OUT and KAFKA_STORAGE_ERROR if the metadata store cannot
be written. A code of 0, UNKNOWN, closes the connection, as in Kafka.
Versions: 1 pattern types (KIP-290); 2 flexible; 3 resource type USER (KIP-373).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from barnabas.broker.api.authorization import may_on_cluster
from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler, WaitsFor
from barnabas.broker.network.outcome import CloseConnection
from barnabas.broker.security.acls.bindings import UNKNOWN, AclBindingFilter, ResourcePatternFilter
from barnabas.broker.security.operations import Operation
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)

if TYPE_CHECKING:
    from barnabas.broker.security.acls.administration import Deletion


async def handle(request: DeleteAclsRequest, context: RequestContext) -> DeleteAclsResponse:
    for each in request.filters:
        if UNKNOWN in (each.resource_type_filter, each.pattern_type_filter, each.operation, each.permission_type):
            raise CloseConnection("DeleteAcls with unknown elements")
    if not may_on_cluster(context, Operation.ALTER):
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return DeleteAclsResponse(filter_results=[_failure(error, error.message) for _ in request.filters])
    acls = context.services.acls
    if acls is None:
        message = "No Authorizer is configured."
        failures = [_failure(ErrorCode.SECURITY_DISABLED, message) for _ in request.filters]
        return DeleteAclsResponse(filter_results=failures)
    filters = [_filter(each) for each in request.filters]
    try:
        deletions = iter(await acls.delete([wanted for wanted in filters if not wanted.is_unknown]))
    except ApiError as error:
        return DeleteAclsResponse(filter_results=[_failure(error.error, error.message) for _ in filters])
    response = DeleteAclsResponse()
    for wanted in filters:
        if wanted.is_unknown:
            response.filter_results.append(_failure(ErrorCode.INVALID_REQUEST, "The filter has an unknown code."))
        else:
            matching = [_matching(deletion) for deletion in next(deletions)]
            response.filter_results.append(DeleteAclsFilterResult(error_message=None, matching_acls=matching))
    return response


def _filter(each: DeleteAclsFilter) -> AclBindingFilter:
    return AclBindingFilter(
        ResourcePatternFilter(each.resource_type_filter, each.pattern_type_filter, each.resource_name_filter),
        each.principal_filter,
        each.host_filter,
        each.operation,
        each.permission_type,
    )


def _failure(error: ErrorCode, message: str) -> DeleteAclsFilterResult:
    return DeleteAclsFilterResult(error_code=error, error_message=message)


def _matching(deletion: Deletion) -> DeleteAclsMatchingAcl:
    (pattern, entry), error = deletion
    return DeleteAclsMatchingAcl(
        error_code=ErrorCode.NONE if error is None else error.error,
        error_message=None if error is None else error.message,
        resource_type=pattern.resource_type,
        resource_name=pattern.name,
        pattern_type=pattern.pattern_type,
        principal=entry.principal,
        host=entry.host,
        operation=entry.operation,
        permission_type=entry.permission_type,
    )


HANDLER: Handler[DeleteAclsRequest, DeleteAclsResponse] = Handler(
    key=31, min_version=1, max_version=3, handle=handle, has_large_replies=True, waits_for=WaitsFor.CONTROLLER
)
