"""AlterPartitionReassignments (key 45): reassign partitions to other brokers, or cancel that.   Versions 0-1.

Behaviour: served by the controller (KIP-455). Every partition succeeds or fails by itself. The response is sent once
the target replicas are stored; the partitions move after that, while clients use them. Null for the replicas cancels a
reassignment in progress; other replicas replace it.
Errors per partition: UNKNOWN_TOPIC_OR_PARTITION, NO_REASSIGNMENT_IN_PROGRESS, INVALID_REPLICA_ASSIGNMENT (no replicas,
a duplicate, an adding replica on a broker that is not registered, or no replica in sync would be left),
INVALID_REPLICATION_FACTOR, REQUEST_TIMED_OUT (nothing was stored in time; it may be later). For the whole request:
NOT_CONTROLLER, KAFKA_STORAGE_ERROR.
Authorization: Alter on Cluster: CLUSTER_AUTHORIZATION_FAILED, and for each partition.
Deviations: throttle_time_ms is always 0.
Versions: 1 allow_replication_factor_change (KIP-860).
"""

from __future__ import annotations

from barnabas.broker.api.authorization import check_on_cluster
from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler, WaitsFor
from barnabas.broker.security.operations import Operation
from barnabas.turns import Turns
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)


async def handle(
    request: AlterPartitionReassignmentsRequest, context: RequestContext
) -> AlterPartitionReassignmentsResponse:
    try:
        check_on_cluster(context, Operation.ALTER)
    except ApiError as error:
        return _refused(request, error)
    if not request.topics:
        return AlterPartitionReassignmentsResponse()
    turns = Turns()
    wanted: dict[tuple[str, int], list[int] | None] = {}
    for topic in request.topics:
        for each in topic.partitions:
            wanted[topic.name, each.partition_index] = each.replicas
            await turns.after_one()
    response = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change, error_message=None
    )
    try:
        results = await context.services.controller.alter_reassignments(
            wanted,
            request.timeout_ms,
            allow_replication_factor_change=request.allow_replication_factor_change,
        )
    except ApiError as error:
        response.error_code, response.error_message = error.error, error.message
        return response
    for topic in request.topics:
        answer = ReassignableTopicResponse(name=topic.name)
        response.responses.append(answer)
        for each in topic.partitions:
            answer.partitions.append(_result(each.partition_index, results[topic.name, each.partition_index]))
            await turns.after_one()
    return response


def _refused(request: AlterPartitionReassignmentsRequest, error: ApiError) -> AlterPartitionReassignmentsResponse:
    """The response to a client that may not reassign partitions."""
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=error.error,
        error_message=error.message,
        responses=[
            ReassignableTopicResponse(
                name=topic.name, partitions=[_result(each.partition_index, error) for each in topic.partitions]
            )
            for topic in request.topics
        ],
    )


def _result(index: int, error: ApiError | None) -> ReassignablePartitionResponse:
    """Kafka sends no message with NO_REASSIGNMENT_IN_PROGRESS."""
    code, message = (ErrorCode.NONE, None) if error is None else (error.error, error.message)
    if code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS:
        message = None
    return ReassignablePartitionResponse(partition_index=index, error_code=code, error_message=message)


HANDLER: Handler[AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse] = Handler(
    key=45, min_version=0, max_version=1, handle=handle, waits_for=WaitsFor.CONTROLLER
)
