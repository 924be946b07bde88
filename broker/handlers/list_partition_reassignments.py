"""ListPartitionReassignments (key 46): the reassignments in progress.   Version 0.

Behaviour: served by the controller (KIP-455). All of them with null for the topics; else those of the named partitions
that exist.
Errors of the whole request: NOT_CONTROLLER.
Authorization: Describe on Cluster: CLUSTER_AUTHORIZATION_FAILED, beside the partitions of the request.
Deviations: throttle_time_ms is always 0.
"""

from __future__ import annotations

from collections.abc import Iterable

from barnabas.broker.api.authorization import check_on_cluster
from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.security.operations import Operation
from barnabas.controller.state import ClusterState
from barnabas.turns import Turns
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)


async def handle(
    request: ListPartitionReassignmentsRequest, context: RequestContext
) -> ListPartitionReassignmentsResponse:
    try:
        check_on_cluster(context, Operation.DESCRIBE)
    except ApiError as refusal:
        return _refused(request, refusal)
    controller = context.services.controller
    if not controller.is_active:
        error = ErrorCode.NOT_CONTROLLER
        return ListPartitionReassignmentsResponse(error_code=error, error_message=error.message)
    cluster = controller.cluster
    asked: Iterable[tuple[str, Iterable[int]]]
    if request.topics is None:
        asked = [(topic.name, topic.assignments) for topic in cluster.topics.values()]
    else:
        asked = [(topic.name, topic.partition_indexes) for topic in request.topics]
    response = ListPartitionReassignmentsResponse(error_message=None)
    turns = Turns()
    for name, partitions in asked:
        topic = OngoingTopicReassignment(name=name, partitions=_ongoing(cluster, name, partitions))
        if topic.partitions:
            response.topics.append(topic)
        await turns.after_one()
    return response


def _refused(request: ListPartitionReassignmentsRequest, error: ApiError) -> ListPartitionReassignmentsResponse:
    """The response to a client that may not describe the cluster."""
    return ListPartitionReassignmentsResponse(
        error_code=error.error,
        error_message=error.message,
        topics=[
            OngoingTopicReassignment(
                name=topic.name,
                partitions=[OngoingPartitionReassignment(partition_index=index) for index in topic.partition_indexes],
            )
            for topic in request.topics or ()
        ],
    )


def _ongoing(cluster: ClusterState, name: str, partitions: Iterable[int]) -> list[OngoingPartitionReassignment]:
    topic = cluster.topics.get(name)
    if topic is None or name in cluster.deleting:
        return []
    found = ((index, topic.assignments.get(index)) for index in partitions)
    return [
        OngoingPartitionReassignment(
            partition_index=index,
            replicas=list(assignment.replicas),
            adding_replicas=list(assignment.adding_replicas),
            removing_replicas=list(assignment.removing_replicas),
        )
        for index, assignment in found
        if assignment is not None and assignment.is_being_reassigned
    ]


HANDLER: Handler[ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse] = Handler(
    key=46, min_version=0, max_version=0, handle=handle
)
