"""ElectLeaders (key 43): make the preferred replicas leaders, or elect uncleanly.   Versions 0-2.

Behaviour: served by the controller. Every partition succeeds or fails by itself; with null for the topics, all
partitions are checked, and the response lists those that got another leader or should have. The response is sent once
this broker knows the leaders. An unclean election loses the records that the new leader lacks (KIP-460).
Errors per partition: UNKNOWN_TOPIC_OR_PARTITION, ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE,
ELIGIBLE_LEADERS_NOT_AVAILABLE, REQUEST_TIMED_OUT (the leader is elected, but not all brokers know it), NOT_CONTROLLER
(every partition that is named, or known here where none is). For the whole request, and each partition that it names:
INVALID_REQUEST (unknown type), KAFKA_STORAGE_ERROR; with null for the topics REQUEST_TIMED_OUT, if nothing was decided.
Authorization: Alter on Cluster: CLUSTER_AUTHORIZATION_FAILED, and for each partition that is named.
Deviations: with a timeout of zero or less the result is REQUEST_TIMED_OUT once the leader is elected; throttle_time_ms
is always 0.
Versions: 1 election type, top-level error; 2 flexible.
"""

from __future__ import annotations

from barnabas.broker.api.authorization import check_on_cluster
from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler, WaitsFor
from barnabas.broker.security.operations import Operation
from barnabas.controller.admin_request import ElectionType, PartitionResults
from barnabas.controller.state import TopicPartition
from barnabas.turns import Turns
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)


async def handle(request: ElectLeadersRequest, context: RequestContext) -> ElectLeadersResponse:
    asked = request.topic_partitions
    try:
        check_on_cluster(context, Operation.ALTER)
    except ApiError as error:
        return _refused(request, error)
    if asked is not None and not asked:
        return ElectLeadersResponse()
    partitions = None if asked is None else [(each.topic, index) for each in asked for index in each.partitions]
    code, results = ErrorCode.NONE, PartitionResults()
    try:
        results = await context.services.controller.elect_leaders(
            partitions, _election_type(request.election_type), request.timeout_ms
        )
    except ApiError as error:
        if error.error is ErrorCode.NOT_CONTROLLER or context.api_version == 0:  # version 0 has no top-level error
            partitions = partitions or await _known_here(context)
        else:
            code = error.error
        results = dict.fromkeys(partitions or (), error)
    if asked is None:
        return ElectLeadersResponse(error_code=code, replica_election_results=await _by_topic(results))
    return ElectLeadersResponse(
        error_code=code,
        replica_election_results=[
            ReplicaElectionResult(
                topic=each.topic,
                partition_result=[_result(index, results[each.topic, index]) for index in each.partitions],
            )
            for each in asked
        ],
    )


def _refused(request: ElectLeadersRequest, error: ApiError) -> ElectLeadersResponse:
    """The response to a client that may not elect leaders."""
    return ElectLeadersResponse(
        error_code=error.error,
        replica_election_results=[
            ReplicaElectionResult(
                topic=each.topic, partition_result=[_result(index, error) for index in each.partitions]
            )
            for each in request.topic_partitions or ()
        ],
    )


async def _known_here(context: RequestContext) -> list[TopicPartition]:
    turns = Turns()
    found: list[TopicPartition] = []
    for topic in context.services.metadata.topics():
        found += ((topic.name, index) for index in topic.partitions)
        await turns.after_one()
    return found


def _election_type(number: int) -> ElectionType:
    try:
        return ElectionType(number)
    except ValueError:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown election type {number}") from None


async def _by_topic(results: PartitionResults) -> list[ReplicaElectionResult]:
    topics: dict[str, ReplicaElectionResult] = {}
    turns = Turns()
    for (name, index), error in results.items():
        topic = topics.setdefault(name, ReplicaElectionResult(topic=name))
        topic.partition_result.append(_result(index, error))
        await turns.after_one()
    return list(topics.values())


def _result(index: int, error: ApiError | None) -> PartitionResult:
    code, message = (ErrorCode.NONE, None) if error is None else (error.error, error.message)
    return PartitionResult(partition_id=index, error_code=code, error_message=message)


HANDLER: Handler[ElectLeadersRequest, ElectLeadersResponse] = Handler(
    key=43, min_version=0, max_version=2, handle=handle, has_large_replies=True, waits_for=WaitsFor.CONTROLLER
)
