"""OffsetDelete (key 47): delete a group's committed offsets of some partitions.   Version 0.

Behaviour: each partition succeeds or fails by itself; one without an offset succeeds. A group of consumers may be
active, but must not be subscribed to the topic; any other group must be empty.
Errors per partition: UNKNOWN_TOPIC_OR_PARTITION, GROUP_SUBSCRIBED_TO_TOPIC. For all: GROUP_ID_NOT_FOUND,
NON_EMPTY_GROUP, INVALID_GROUP_ID, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE.
Authorization: Delete on Group: GROUP_AUTHORIZATION_FAILED; Read on Topic: TOPIC_AUTHORIZATION_FAILED per partition.
"""

from barnabas.broker.api.authorization import Decisions
from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.coordinators.groups.events import DeleteOffsets, OffsetsReply
from barnabas.broker.security.operations import Operation, ResourceType
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


async def handle(request: OffsetDeleteRequest, context: RequestContext) -> OffsetDeleteResponse:
    if not context.authorize(Operation.DELETE, ResourceType.GROUP, request.group_id):
        return OffsetDeleteResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    metadata = context.services.metadata
    may_read = Decisions(context, Operation.READ, ResourceType.TOPIC)
    asked: dict[str, list[int]] = {}
    for topic in request.topics:
        asked.setdefault(topic.name, []).extend(partition.partition_index for partition in topic.partitions)
    known = {
        topic: tuple(partition for partition in partitions if metadata.has_partition(topic, partition))
        for topic, partitions in asked.items()
        if may_read(topic)
    }
    event = DeleteOffsets(request.group_id, 0, tuple((topic, partitions) for topic, partitions in known.items()))
    try:
        reply = await context.services.groups.answer(event)
    except ApiError as error:
        reply = OffsetsReply(error.error)
    if reply.error is not ErrorCode.NONE:
        return OffsetDeleteResponse(error_code=reply.error)
    errors = {(topic, partition): error for topic, answers in reply.topics for partition, error in answers}
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponseTopic(
                name=topic,
                partitions=[
                    OffsetDeleteResponsePartition(
                        partition_index=partition,
                        error_code=(
                            errors.get((topic, partition), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                            if may_read(topic)
                            else ErrorCode.TOPIC_AUTHORIZATION_FAILED
                        ),
                    )
                    for partition in partitions
                ],
            )
            for topic, partitions in asked.items()
            if partitions
        ]
    )


HANDLER: Handler[OffsetDeleteRequest, OffsetDeleteResponse] = Handler(
    key=47, min_version=0, max_version=0, handle=handle
)
