"""CreateAcls (key 30): add ACLs (KIP-140, KIP-290).   Versions 1-3.

Behaviour: each ACL succeeds or fails by itself, but those of one resource pattern are written together. An ACL that
exists is no error. On return this broker obeys them; the others hear of them at once.
Authorization: Alter on Cluster: CLUSTER_AUTHORIZATION_FAILED per ACL.
Errors per ACL: SECURITY_DISABLED without an authorizer; INVALID_REQUEST (codes that are for filters or not known, a
name of a cluster other than kafka-cluster, an empty name, one that cannot be in ZooKeeper, a principal without a type,
too long texts, too many ACLs); REQUEST_TIMED_OUT and KAFKA_STORAGE_ERROR if the metadata store cannot be written. A
code of 0, UNKNOWN, closes the connection, as in Kafka.
Deviations: names with a slash are refused, as Kafka in ZooKeeper mode does.
Versions: 1 pattern types (KIP-290); 2 flexible; 3 resource type USER (KIP-373).
"""

from barnabas.broker.api.authorization import may_on_cluster
from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler, WaitsFor
from barnabas.broker.network.outcome import CloseConnection
from barnabas.broker.security.acls.bindings import (
    UNKNOWN,
    AccessControlEntry,
    AclBinding,
    AclCodes,
    PatternType,
    PermissionType,
    ResourcePattern,
)
from barnabas.broker.security.operations import Operation, ResourceType
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_acls import AclCreation, AclCreationResult, CreateAclsRequest, CreateAclsResponse


async def handle(request: CreateAclsRequest, context: RequestContext) -> CreateAclsResponse:
    creations = request.creations
    if any(UNKNOWN in _codes(creation) for creation in creations):
        raise CloseConnection("CreateAcls with unknown elements")
    if not may_on_cluster(context, Operation.ALTER):
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return CreateAclsResponse(results=[_result(error, error.message) for _ in creations])
    acls = context.services.acls
    if acls is None:
        message = "No Authorizer is configured."
        return CreateAclsResponse(results=[_result(ErrorCode.SECURITY_DISABLED, message) for _ in creations])
    unknown = [_codes(creation).unknown for creation in creations]
    bindings = [_binding(creation) for creation, reason in zip(creations, unknown, strict=True) if not reason]
    errors = iter(await acls.create(bindings))
    response = CreateAclsResponse()
    for reason in unknown:
        if reason:
            response.results.append(_result(ErrorCode.INVALID_REQUEST, f"Invalid {reason}"))
        elif (failure := next(errors)) is None:
            response.results.append(AclCreationResult())
        else:
            response.results.append(_result(failure.error, failure.message))
    return response


def _codes(creation: AclCreation) -> AclCodes:
    return AclCodes(
        creation.resource_type, creation.resource_pattern_type, creation.operation, creation.permission_type
    )


def _binding(creation: AclCreation) -> AclBinding:
    return AclBinding(
        ResourcePattern(
            ResourceType(creation.resource_type),
            PatternType(creation.resource_pattern_type),
            creation.resource_name,
        ),
        AccessControlEntry(
            creation.principal,
            creation.host,
            Operation(creation.operation),
            PermissionType(creation.permission_type),
        ),
    )


def _result(error: ErrorCode, message: str) -> AclCreationResult:
    return AclCreationResult(error_code=error, error_message=message)


HANDLER: Handler[CreateAclsRequest, CreateAclsResponse] = Handler(
    key=30, min_version=1, max_version=3, handle=handle, waits_for=WaitsFor.CONTROLLER
)
