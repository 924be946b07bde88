"""Fetch (key 1): read records of partitions, with an optional wait for them.   Versions 4-18.

Behaviour: fetch sessions (KIP-227); long poll until `min_bytes` or `max_wait_ms`; the first batch of the first
non-empty partition is returned whole even beyond the limits; read_committed stops at the last stable offset and names
aborted transactions; whole batches only. Other brokers fetch as replicas, each with its own id only: they read up to
the log end offset, and their fetch offsets are their log end offsets (`broker/replication/replica_fetch.py`). From
version 11 on consumers read from followers, too, up to the high watermark that the follower knows; with
`replica.selector.class` of Kafka's rack-aware selector leaders direct them to a follower in their rack (KIP-392).
A client beyond a quota gets an empty response at once, and the records after the throttle time (KIP-219).
Errors per partition: OFFSET_OUT_OF_RANGE, NOT_LEADER_OR_FOLLOWER, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID,
INCONSISTENT_TOPIC_ID, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, KAFKA_STORAGE_ERROR (NOT_LEADER_OR_FOLLOWER before
version 6), TOPIC_AUTHORIZATION_FAILED (a replica's fetch that is not from that broker).
Errors of the request: FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR.
Authorization: Read on Topic: TOPIC_AUTHORIZATION_FAILED per partition; ClusterAction on Cluster (fetches of replicas):
TOPIC_AUTHORIZATION_FAILED for all partitions.
Deviations: a partition of a fetch session that the client may no longer read has its error once something is new in it.
Versions: 5 log start offset; 7 sessions; 9 leader epoch (KIP-320); 11 rack, preferred replica (KIP-392); 12 flexible,
last fetched epoch; 13 topic ids (KIP-516); 15 replica state; 16 node endpoints (KIP-951); 17 directory id; 18 the high
watermark that a follower knows (KIP-1166).
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from barnabas.broker.api.authorization import Decisions, may_on_cluster
from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.current_leader import CurrentLeader
from barnabas.broker.api.registry import Handler, WaitsFor
from barnabas.broker.configuration.tables.broker import RACK_AWARE_SELECTOR
from barnabas.broker.network.outcome import Delayed
from barnabas.broker.replication.fetch_operation import FetchLimits, FetchOperation, Results, error_data
from barnabas.broker.replication.fetch_partition import FetchPartition, PartitionKey
from barnabas.broker.replication.fetch_sessions import FINAL_EPOCH, INITIAL_EPOCH, FetchPlan, FetchSessions
from barnabas.broker.replication.followers import UNKNOWN_BROKER_EPOCH
from barnabas.broker.replication.read_policy import HIGH_WATERMARK, LOG_END, TXN_COMMITTED
from barnabas.broker.security.operations import Operation, ResourceType
from barnabas.controller.topics import PARTITIONS_MAX
from barnabas.storage.segment_reader import ColdRead
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from barnabas.wire.names import ZERO_TOPIC_ID, TopicId

if TYPE_CHECKING:
    from barnabas.broker.cluster.metadata import MetadataCache
    from barnabas.broker.replication.replica_manager import ReplicaManager

FETCH = 1
READ_COMMITTED = 1
"""The isolation level of a request; 0 is read_uncommitted."""

UNSENT_BYTES_MAX = 32 * 1024 * 1024

ENTRY_BYTES = 40
"""The size of a partition in a response, besides its records."""

REPLICA_ELEMENTS_MAX = 5 * PARTITIONS_MAX
"""The limit of topics and partitions that a follower's request may name: all partitions may be new to a session, each
of a topic of its own, and as many may have left it."""

_CURRENT_LEADER = CurrentLeader(LeaderIdAndEpoch, NodeEndpoint)


def handle(request: FetchRequest, context: RequestContext) -> FetchResponse | Awaitable[FetchResponse] | Delayed:
    if context.authorizer is None:
        return handle_unasked(request, context)
    return handle_unasked(request, context, _authorized(context))


def handle_unasked(
    request: FetchRequest, context: RequestContext, new_fetch: Callable[..., FetchOperation] = FetchOperation
) -> FetchResponse | Awaitable[FetchResponse] | Delayed:
    """Read what the operation of `new_fetch`, for consumers, does not refuse."""
    services = context.services
    uses_topic_ids = context.api_version >= 13
    replica_id = request.replica_state.replica_id if context.api_version >= 15 else request.replica_id
    if replica_id < 0:
        sessions = services.fetch_sessions
    elif context.comes_from(replica_id):
        sessions = _sessions_of_replicas(request, context)
    else:
        return _refuse_replica(replica_id, request, context)
    now_ms = services.network_clock.monotonic_ms()
    plan = sessions.plan(
        request.session_id,
        request.session_epoch,
        _asked(request, services.metadata, uses_topic_ids),
        _forgotten(request, uses_topic_ids) if request.forgotten_topics_data else (),
        uses_topic_ids=uses_topic_ids,
        now_ms=now_ms,
    )
    if uses_topic_ids:
        _resolve_names(plan, services.metadata)
    if replica_id < 0:
        operation = _of_consumer(plan, request, context, new_fetch)
    else:
        operation = _of_replica(replica_id, plan, now_ms, request, context)
    cold = operation.read_now()
    if cold is not None:
        return _finish(operation.run, cold, operation, plan, context)
    if operation.is_satisfied:
        return _response(plan, operation.results, context)
    context.client_id = None  # no longer needed, and both it and the wait may be long
    return Delayed(operation.listen(), partial(_read_again, operation, plan, context))


def _sessions_of_replicas(request: FetchRequest, context: RequestContext) -> FetchSessions:
    """The fetch sessions of followers. A client that fetches in the name of a broker that is alone gets no session: its
    request's epoch becomes the final one."""
    if not context.session.is_broker and request.session_epoch == INITIAL_EPOCH:
        request.session_epoch = FINAL_EPOCH
    return context.services.replica_fetch_sessions


def _of_consumer(
    plan: FetchPlan, request: FetchRequest, context: RequestContext, new_fetch: Callable[..., FetchOperation]
) -> FetchOperation:
    """A consumer's fetch. Responses that clients have not read yet use memory: the more of them, the less a fetch may
    return, down to one batch.
    """
    services = context.services
    max_bytes = max(
        0,
        min(request.max_bytes, services.config.fetch_max_bytes, UNSENT_BYTES_MAX - services.connections.unsent_bytes),
    )
    limits = FetchLimits(
        max_wait_ms=request.max_wait_ms,
        min_bytes=min(request.min_bytes, max_bytes),
        max_bytes=max_bytes,
        policy=TXN_COMMITTED if request.isolation_level == READ_COMMITTED else HIGH_WATERMARK,
        or_follower=context.api_version >= 11,
    )
    if request.rack_id and services.config.replica_selector_class == RACK_AWARE_SELECTOR:
        return _rack_aware(request.rack_id, plan, limits, context, is_authorized=new_fetch is not FetchOperation)
    return new_fetch(services.replicas, services.unforeseen, plan.partitions, limits, plan.attention)


def _authorized(context: RequestContext) -> Callable[..., FetchOperation]:
    """Makes the operation of a consumer that reads only topics which the client may read."""
    from barnabas.broker.replication.authorized import AuthorizedFetch

    return partial(AuthorizedFetch, may_read=Decisions(context, Operation.READ, ResourceType.TOPIC))


def _rack_aware(
    rack: str, plan: FetchPlan, limits: FetchLimits, context: RequestContext, *, is_authorized: bool
) -> FetchOperation:
    """The fetch of a consumer that is directed to a replica in its rack where there is one; with `is_authorized` it
    reads only topics which the client may read."""
    from barnabas.broker.replication.replica_selector import RackAwareFetch

    new_fetch: Callable[..., FetchOperation] = RackAwareFetch
    if is_authorized:
        from barnabas.broker.replication.authorized import AuthorizedRackAwareFetch

        new_fetch = partial(AuthorizedRackAwareFetch, may_read=Decisions(context, Operation.READ, ResourceType.TOPIC))
    services, listener = context.services, context.session.listener.name
    metadata = services.metadata
    return new_fetch(
        services.replicas,
        services.unforeseen,
        plan,
        limits,
        rack=rack,
        rack_of=lambda broker_id: metadata.rack(broker_id, listener),
        standpoint=lambda: (rack, listener, metadata.brokers_changes),
    )


def _of_replica(
    replica_id: int, plan: FetchPlan, now_ms: int, request: FetchRequest, context: RequestContext
) -> FetchOperation:
    """A follower's fetch: the limits of clients do not apply."""
    from barnabas.broker.replication.replica_fetch import ReplicaFetch

    services = context.services
    limits = FetchLimits(
        max_wait_ms=request.max_wait_ms,
        min_bytes=request.min_bytes,
        max_bytes=min(request.max_bytes, services.config.fetch_max_bytes),
        policy=LOG_END,
    )
    return ReplicaFetch(
        services.replicas,
        services.unforeseen,
        plan,
        limits,
        replica_id=replica_id,
        broker_epoch=request.replica_state.replica_epoch if context.api_version >= 15 else UNKNOWN_BROKER_EPOCH,
        now_ms=now_ms,
    )


def _refuse_replica(replica_id: int, request: FetchRequest, context: RequestContext) -> FetchResponse:
    """Refuse a replica's fetch that is not from that broker; it gets no session."""
    services = context.services
    asked = _asked(request, services.metadata, context.api_version >= 13)
    plan = FetchPlan(services.fetch_sessions, ErrorCode.NONE, asked)
    may_replicate = context.authorizer is None or may_on_cluster(context, Operation.CLUSTER_ACTION)
    refused = []
    for each in asked:
        error = _refusal(replica_id, each, services.replicas) if may_replicate else ErrorCode.TOPIC_AUTHORIZATION_FAILED
        refused.append((each, error_data(each.partition, error)))
    return _response(plan, refused, context)


def _refusal(replica_id: int, asked: FetchPartition, replicas: "ReplicaManager") -> ErrorCode:
    """The error of a replica's fetch that is not from that broker: as in Kafka without authorization, and Kafka's own
    error where that broker is no replica of the partition (Partition.followerReplicaOrThrow)."""
    partition = replicas.partition(asked.topic or "", asked.partition)
    if partition is None or (partition.leadership is not None and partition.leadership.followers.follower(replica_id)):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if asked.current_leader_epoch < 0 else ErrorCode.UNKNOWN_LEADER_EPOCH


def _read_again(
    operation: FetchOperation, plan: FetchPlan, context: RequestContext
) -> FetchResponse | Awaitable[FetchResponse]:
    cold = operation.read_again()
    if cold is not None:
        return _finish(operation.finish_pass, cold, operation, plan, context)
    return _response(plan, operation.results, context)


async def _finish(
    rest: Callable[[ColdRead], Awaitable[None]],
    cold: ColdRead,
    operation: FetchOperation,
    plan: FetchPlan,
    context: RequestContext,
) -> FetchResponse:
    await rest(cold)
    return _response(plan, operation.results, context)


def _asked(request: FetchRequest, metadata: "MetadataCache", uses_topic_ids: bool) -> list[FetchPartition]:
    asked: dict[PartitionKey, FetchPartition] = {}
    for topic in request.topics:
        if uses_topic_ids:
            topic_id = TopicId(topic.topic_id)
            name = metadata.topic_name(topic_id)
        else:
            topic_id, name = ZERO_TOPIC_ID, topic.topic
        for partition in topic.partitions:
            entry = FetchPartition(
                name,
                topic_id,
                partition.partition,
                partition.fetch_offset,
                partition.partition_max_bytes,
                partition.current_leader_epoch,
                partition.last_fetched_epoch,
                partition.log_start_offset,
            )
            asked[entry.key] = entry
    return [*asked.values()]


def _forgotten(request: FetchRequest, uses_topic_ids: bool) -> list[PartitionKey]:
    return [
        (TopicId(topic.topic_id) if uses_topic_ids else topic.topic, partition)
        for topic in request.forgotten_topics_data
        for partition in topic.partitions
    ]


def _resolve_names(plan: FetchPlan, metadata: "MetadataCache") -> None:
    """Look up the names of topics that a session has by id, and that this broker did not know before."""
    for partition in plan.partitions:
        if partition.topic is None:
            partition.topic = metadata.topic_name(partition.topic_id)


def _response(plan: FetchPlan, results: Results, context: RequestContext) -> FetchResponse:
    if context.meter is not None and _is_held_back(plan, results, context):
        error, session_id = plan.sessions.postpone(plan)
        return FetchResponse(error_code=error, session_id=session_id)
    # Only a new session needs the time.
    now_ms = context.services.network_clock.monotonic_ms() if plan.wants_session else 0
    error, session_id, told = plan.sessions.finish(plan, results, now_ms)
    response = FetchResponse(error_code=error, session_id=session_id)
    topic: FetchableTopicResponse | None = None
    for asked, data in told:
        name = asked.topic or ""
        if topic is None or topic.topic_id != asked.topic_id or topic.topic != name:
            topic = FetchableTopicResponse(topic=name, topic_id=asked.topic_id)
            response.responses.append(topic)
        topic.partitions.append(data)
        if data.error_code:
            _explain(response, asked, data, context)
            context.services.metrics.count_error(FETCH, data.error_code)
    if error:
        context.services.metrics.count_error(FETCH, error)
    return response


def _is_held_back(plan: FetchPlan, results: Results, context: RequestContext) -> bool:
    """Whether a consumer is beyond its quota, so that its response has to be empty; followers have none. The size of
    the response counts, but for some bytes of each topic and of the header."""
    if context.meter is None or plan.sessions is not context.services.fetch_sessions:
        return False
    return context.meter.holds_back(sum(ENTRY_BYTES + len(data.records or b"") for _, data in results))


def _explain(response: FetchResponse, asked: FetchPartition, data: PartitionData, context: RequestContext) -> None:
    """Set the error code for the request's version, and the current leader for clients that can use it (KIP-951)."""
    if data.error_code == ErrorCode.KAFKA_STORAGE_ERROR and context.api_version <= 5:
        data.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    if context.api_version < 16 or data.error_code not in (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
    ):
        return
    _CURRENT_LEADER.tell(data, response.node_endpoints, asked.topic or "", asked.partition, context)


HANDLER: Handler[FetchRequest, FetchResponse] = Handler(
    key=FETCH,
    min_version=4,
    max_version=18,
    handle=handle,
    handle_unasked=handle_unasked,
    waits_for=WaitsFor.OTHER_CLIENTS,
    elements_of_brokers=REPLICA_ELEMENTS_MAX,
    counts_errors=True,
)
