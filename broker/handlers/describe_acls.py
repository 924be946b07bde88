"""DescribeAcls (key 29): the ACLs that a filter matches (KIP-140, KIP-290).   Versions 1-3.

Behaviour: pattern type ANY compares names as they are, MATCH finds each pattern that applies to a resource of the name.
A code that is not known matches nothing. Resource patterns and their ACLs are in order. The ACLs are those that this
broker has heard of.
Authorization: Describe on Cluster: CLUSTER_AUTHORIZATION_FAILED.
Errors: SECURITY_DISABLED without an authorizer. A code of 0, UNKNOWN, closes the connection, as in Kafka.
Versions: 1 pattern types (KIP-290); 2 flexible; 3 resource type USER (KIP-373).
"""

from barnabas.broker.api.authorization import may_on_cluster
from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.network.outcome import CloseConnection
from barnabas.broker.security.acls.bindings import UNKNOWN, AclBindingFilter, ResourcePatternFilter
from barnabas.broker.security.operations import Operation
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)


async def handle(request: DescribeAclsRequest, context: RequestContext) -> DescribeAclsResponse:
    codes = (request.resource_type_filter, request.pattern_type_filter, request.operation, request.permission_type)
    if UNKNOWN in codes:
        raise CloseConnection(f"DescribeAcls with unknown elements: {codes}")
    if not may_on_cluster(context, Operation.DESCRIBE):
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return DescribeAclsResponse(error_code=error, error_message=error.message)
    acls = context.services.acls
    if acls is None:
        message = "No Authorizer is configured on the broker"
        return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=message)
    wanted = AclBindingFilter(
        ResourcePatternFilter(request.resource_type_filter, request.pattern_type_filter, request.resource_name_filter),
        request.principal_filter,
        request.host_filter,
        request.operation,
        request.permission_type,
    )
    return DescribeAclsResponse(
        resources=[
            DescribeAclsResource(
                resource_type=pattern.resource_type,
                resource_name=pattern.name,
                pattern_type=pattern.pattern_type,
                acls=[
                    AclDescription(
                        principal=entry.principal,
                        host=entry.host,
                        operation=entry.operation,
                        permission_type=entry.permission_type,
                    )
                    for entry in entries
                ],
            )
            for pattern, entries in (await acls.describe(wanted)).items()
        ],
    )


HANDLER: Handler[DescribeAclsRequest, DescribeAclsResponse] = Handler(
    key=29, min_version=1, max_version=3, handle=handle, has_large_replies=True
)
