"""Metadata (key 3): brokers, topics, leaders.   Versions 0-13.

Behaviour: null topics (an empty list in version 0) request all, an empty list none. A topic that does not exist is
created in the background where client and broker allow it; meanwhile its error is UNKNOWN_TOPIC_OR_PARTITION, which
clients retry. Partitions without a leader are listed with LEADER_NOT_AVAILABLE. Addresses are those of the listener
that the request came in on.
Errors per topic: UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION, UNKNOWN_TOPIC_ID, INVALID_REQUEST (null name or
topic id before version 12).
Errors per partition: LEADER_NOT_AVAILABLE, LISTENER_NOT_FOUND (version 6+), REPLICA_NOT_AVAILABLE (version 0, which
lists only replicas that can be reached).
Authorization: Describe on Topic: TOPIC_AUTHORIZATION_FAILED per topic, left out where all are requested; Create on
Cluster or Create on Topic (topics to be created): TOPIC_AUTHORIZATION_FAILED per topic; Describe on Cluster (operations
on the cluster): no operations.
Versions: 4 auto-creation flag; 5 offline replicas; 7 leader epochs; 8 authorized operations; 9 flexible; 10 topic ids
(KIP-516); 12 lookup by id; 13 top-level error (KIP-1102).
"""

from collections.abc import Awaitable, Collection, Generator, Iterable

from barnabas.broker.api.authorization import Decisions, may_on_cluster, operations_on_cluster
from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.cluster.metadata import (
    INTERNAL_TOPICS,
    NO_LEADER,
    PartitionMetadata,
    TopicMetadata,
)
from barnabas.broker.security.operations import (
    CLUSTER_OPERATIONS,
    NOT_ASKED,
    TOPIC_OPERATIONS,
    Operation,
    ResourceType,
)
from barnabas.controller.topics import is_valid_topic_name
from barnabas.turns import InPieces, Turns, in_turns
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from barnabas.wire.names import ZERO_TOPIC_ID, TopicId


def handle(request: MetadataRequest, context: RequestContext) -> MetadataResponse | Awaitable[MetadataResponse]:
    services, version = context.services, context.api_version
    if version < 12 and any(topic.name is None or topic.topic_id != ZERO_TOPIC_ID for topic in request.topics or ()):
        return _refused(request)
    response = MetadataResponse(
        cluster_id=services.cluster_id,
        controller_id=services.metadata.controller_id,
        brokers=[
            MetadataResponseBroker(node_id=live.broker_id, host=endpoint.host, port=endpoint.port, rack=live.rack)
            for live in services.metadata.brokers()
            if (endpoint := live.endpoints.get(context.session.listener.name)) is not None
        ],
    )
    if services.authorizer is not None:
        return in_turns(_decided(request, response, context))
    if request.topics is None or (version == 0 and not request.topics):
        response.topics = [_topic(topic, context) for topic in services.metadata.topics()]
    else:
        response.topics = _asked_topics(request.topics, request.allow_auto_topic_creation or version < 4, context)
    if request.include_topic_authorized_operations:
        for topic in response.topics:
            topic.topic_authorized_operations = TOPIC_OPERATIONS
    if 8 <= version <= 10:
        response.cluster_authorized_operations = (
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
        )
    return response


def _decided(
    request: MetadataRequest, response: MetadataResponse, context: RequestContext
) -> InPieces[MetadataResponse]:
    """The response with what the client may know of, as the authorizer decides. Whether a topic exists that the client
    may not describe is not looked up."""
    version, turns = context.api_version, Turns()
    may_describe = Decisions(context, Operation.DESCRIBE, ResourceType.TOPIC)
    hidden: list[MetadataResponseTopic] = []
    if request.topics is None or (version == 0 and not request.topics):
        metadata = context.services.metadata
        for name in [topic.name for topic in metadata.topics()]:
            if may_describe(name) and (topic := metadata.topic(name)) is not None:
                response.topics.append(_topic(topic, context))
            if turns.is_over():
                yield
    else:
        allowed, hidden = yield from _divided(request.topics, may_describe, turns, context)
        response.topics = _asked_topics(allowed, request.allow_auto_topic_creation or version < 4, context)
    if request.include_topic_authorized_operations:
        for described in response.topics:
            if described.name is not None and described.error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                operations = context.authorized_operations(ResourceType.TOPIC, described.name)
                described.topic_authorized_operations = operations
            if turns.is_over():
                yield
    response.topics += hidden
    if 8 <= version <= 10:
        is_asked = request.include_cluster_authorized_operations
        response.cluster_authorized_operations = operations_on_cluster(context) if is_asked else NOT_ASKED
    return response


def _divided(
    asked: Collection[MetadataRequestTopic], may_describe: Decisions, turns: Turns, context: RequestContext
) -> Generator[None, None, tuple[list[MetadataRequestTopic], list[MetadataResponseTopic]]]:
    """The topics of the request that the client may describe, and the results of the others. A topic's id is no secret,
    its name is (and where a name is given, its id)."""
    uses_ids = any(topic.topic_id != ZERO_TOPIC_ID for topic in asked)
    allowed: list[MetadataRequestTopic] = []
    hidden: dict[tuple[str | None, TopicId], MetadataResponseTopic] = {}
    for topic in asked:
        topic_id = TopicId(topic.topic_id)
        name = context.services.metadata.topic_name(topic_id) if uses_ids else topic.name or ""
        if name is not None and not may_describe(name):
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            told = (None, topic_id) if uses_ids else (name, ZERO_TOPIC_ID)
            hidden[told] = MetadataResponseTopic(error_code=error, name=told[0], topic_id=told[1])
        elif not uses_ids or topic_id != ZERO_TOPIC_ID:
            allowed.append(topic)
        if turns.is_over():
            yield
    return allowed, list(hidden.values())


def _refused(request: MetadataRequest) -> MetadataResponse:
    """The response to an invalid request before version 12, in which topics are named only by name; it contains nothing
    of the cluster."""
    return MetadataResponse(
        topics=[
            _error(ErrorCode.INVALID_REQUEST, topic.name or "", TopicId(topic.topic_id))
            for topic in request.topics or ()
        ]
    )


def _asked_topics(
    asked: Iterable[MetadataRequestTopic], may_create: bool, context: RequestContext
) -> list[MetadataResponseTopic]:
    asked = list(asked)
    metadata = context.services.metadata
    ids = {TopicId(topic.topic_id) for topic in asked if topic.topic_id != ZERO_TOPIC_ID}
    if ids:  # if one topic has an id, Kafka looks at ids only
        topics = [metadata.topic(metadata.topic_name(topic_id) or "") for topic_id in ids]
        unknown = [
            _error(ErrorCode.UNKNOWN_TOPIC_ID, None, topic_id)
            for topic_id in ids
            if metadata.topic_name(topic_id) is None
        ]
        return unknown + [_topic(topic, context) for topic in topics if topic is not None]
    names = dict.fromkeys(topic.name or "" for topic in asked)
    found = {name: topic for name in names if (topic := metadata.topic(name)) is not None}
    missing = [name for name in names if name not in found]
    refused: dict[str, None] = {}
    if missing and may_create and context.services.config.auto_create_topics_enable:
        if context.services.authorizer is not None:
            refused = _not_to_be_created(missing, context)
            missing = [name for name in missing if name not in refused]
        context.services.auto_topics.create([name for name in missing if is_valid_topic_name(name)])
    known = [_topic(topic, context) for topic in found.values()] + [_missing(name) for name in missing]
    if refused:
        known += [_error(ErrorCode.TOPIC_AUTHORIZATION_FAILED, name, ZERO_TOPIC_ID) for name in refused]
    return known


def _not_to_be_created(names: Iterable[str], context: RequestContext) -> dict[str, None]:
    """The topics that the client may not create."""
    if may_on_cluster(context, Operation.CREATE):
        return {}
    may_create = Decisions(context, Operation.CREATE, ResourceType.TOPIC)
    return {name: None for name in names if not may_create(name)}


def _missing(name: str) -> MetadataResponseTopic:
    valid = is_valid_topic_name(name)
    return _error(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if valid else ErrorCode.INVALID_TOPIC_EXCEPTION, name, ZERO_TOPIC_ID
    )


def _error(error: ErrorCode, name: str | None, topic_id: TopicId) -> MetadataResponseTopic:
    return MetadataResponseTopic(error_code=error, name=name, topic_id=topic_id, is_internal=name in INTERNAL_TOPICS)


def _topic(topic: TopicMetadata, context: RequestContext) -> MetadataResponseTopic:
    reachable = context.services.metadata.reachable(context.session.listener.name)
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=[
            _partition(index, partition, context, reachable) for index, partition in sorted(topic.partitions.items())
        ],
    )


def _partition(
    index: int, partition: PartitionMetadata, context: RequestContext, reachable: frozenset[int]
) -> MetadataResponsePartition:
    version = context.api_version
    leader, replicas, isr, error = partition.leader, partition.replicas, partition.isr, ErrorCode.NONE
    if version == 0 and not reachable.issuperset((*replicas, *isr)):
        replicas = [replica for replica in replicas if replica in reachable]
        isr = [replica for replica in isr if replica in reachable]
        error = ErrorCode.REPLICA_NOT_AVAILABLE
    if leader not in reachable:
        alive = context.services.metadata.is_alive(leader)
        error = ErrorCode.LISTENER_NOT_FOUND if alive and version >= 6 else ErrorCode.LEADER_NOT_AVAILABLE
        leader = NO_LEADER
    return MetadataResponsePartition(
        error_code=error,
        partition_index=index,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=replicas,
        isr_nodes=isr,
        offline_replicas=partition.unavailable_replicas(reachable),
    )


HANDLER: Handler[MetadataRequest, MetadataResponse] = Handler(key=3, min_version=0, max_version=13, handle=handle)
