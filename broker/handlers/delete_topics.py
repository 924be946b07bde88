"""DeleteTopics (key 20): delete topics by name or by id (KIP-4).   Versions 1-6.

Behaviour: every topic succeeds or fails by itself; a name or id that is given twice gets one result. The response is
sent once the live brokers have stopped serving the topics' logs; files are removed a little later
(file.delete.delay.ms).
Errors per topic: UNKNOWN_TOPIC_OR_PARTITION (by name), UNKNOWN_TOPIC_ID (by id), INVALID_REQUEST (duplicates, neither
or both of name and id, a name whose id is given too), TOPIC_DELETION_DISABLED (delete.topic.enable=false;
INVALID_REQUEST below version 3), REQUEST_TIMED_OUT (the topic is still being deleted), NOT_CONTROLLER,
KAFKA_STORAGE_ERROR, THROTTLING_QUOTA_EXCEEDED (version 5+, KIP-599; before, topics are deleted and the client is
throttled).
Authorization: Delete on Cluster or Delete on Topic: TOPIC_AUTHORIZATION_FAILED per topic; Describe on Topic (without
Delete on Cluster): TOPIC_AUTHORIZATION_FAILED by name, whether the topic exists or not, and by id without the name.
Deviations: Kafka responds as soon as the controller's own broker has removed the topics, and does not report replicas
that could not be deleted; results come in the order of the request, where Kafka shuffles them; with a timeout of zero
or less topics are deleted in the background, with the result REQUEST_TIMED_OUT, as before Kafka 4.
Versions: 3 TOPIC_DELETION_DISABLED (KIP-322); 4 flexible; 5 error messages, THROTTLING_QUOTA_EXCEEDED; 6 topic ids
(KIP-516).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from barnabas.broker.api.authorization import Decisions, may_on_cluster
from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler, WaitsFor
from barnabas.broker.security.operations import Operation, ResourceType
from barnabas.controller.state import ClusterState
from barnabas.turns import Turns
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse
from barnabas.wire.names import ZERO_TOPIC_ID

DELETION_DISABLED_FROM_VERSION: Final = 3
STRICT_QUOTA_FROM_VERSION: Final = 5


@dataclass(slots=True)
class _Entry:
    """One topic of the request, by `asked_name` or `asked_id`; `name` and `topic_id` are the resolved ones."""

    asked_name: str | None
    asked_id: bytes
    name: str | None = None
    topic_id: bytes = ZERO_TOPIC_ID
    error: ApiError | None = None

    @property
    def by_id(self) -> bool:
        return self.asked_name is None

    def result(self) -> DeletableTopicResult:
        """The result: both name and id for a topic that is or will be deleted, else only the one in the request."""
        error = self.error
        goes = error is None or error.error is ErrorCode.REQUEST_TIMED_OUT
        return DeletableTopicResult(
            name=self.name if goes else self.asked_name,
            topic_id=self.topic_id if goes else self.asked_id,
            error_code=ErrorCode.NONE if error is None else error.error,
            error_message=None if error is None else error.message,
        )


async def handle(request: DeleteTopicsRequest, context: RequestContext) -> DeleteTopicsResponse:
    controller = context.services.controller
    if not controller.is_active:  # only the active controller can resolve topic ids
        error = ErrorCode.NOT_CONTROLLER
        return DeleteTopicsResponse(responses=_refusals(request, error, error.message))
    if not controller.settings.delete_topic_enable:
        code_is_known = context.api_version >= DELETION_DISABLED_FROM_VERSION
        error = ErrorCode.TOPIC_DELETION_DISABLED if code_is_known else ErrorCode.INVALID_REQUEST
        message = "Topics cannot be deleted: delete.topic.enable is false."
        return DeleteTopicsResponse(responses=_refusals(request, error, message))
    turns = Turns()
    entries = await _resolved(await _entries(request, turns), controller.cluster, turns, context)
    wanted = {entry.name: entry for entry in entries if entry.error is None and entry.name is not None}
    if context.meter is not None:
        wanted = _within_quota(wanted, controller.cluster, context)
    if wanted:
        try:
            results = await context.services.controller.delete_topics(
                list(wanted),
                request.timeout_ms,
                topic_ids={name: entry.topic_id for name, entry in wanted.items() if entry.by_id},
            )
        except ApiError as error:
            results = dict.fromkeys(wanted, error)
        for name, entry in wanted.items():
            entry.error = results[name]
    response = DeleteTopicsResponse()
    for entry in entries:
        response.responses.append(entry.result())
        await turns.after_one()
    return response


def _within_quota(wanted: dict[str, _Entry], cluster: ClusterState, context: RequestContext) -> dict[str, _Entry]:
    """The topics that the client's quota of controller mutations allows to delete; the others get an error."""
    is_strict = context.api_version >= STRICT_QUOTA_FROM_VERSION
    quota = None if context.meter is None else context.meter.limit_mutations(is_strict=is_strict)
    if quota is None:
        return wanted
    errors = quota.refused({name: len(cluster.topics[name].assignments) for name in wanted if name in cluster.topics})
    for name, error in errors.items():
        wanted[name].error = error
    return {name: entry for name, entry in wanted.items() if name not in errors}


def _refusals(request: DeleteTopicsRequest, code: ErrorCode, message: str) -> list[DeletableTopicResult]:
    asked: list[tuple[str | None, bytes]] = [(name, ZERO_TOPIC_ID) for name in request.topic_names]
    asked += [(topic.name, topic.topic_id) for topic in request.topics]
    return [
        DeletableTopicResult(name=name, topic_id=topic_id, error_code=code, error_message=message)
        for name, topic_id in asked
    ]


async def _entries(request: DeleteTopicsRequest, turns: Turns) -> list[_Entry]:
    """The topics of the request, once per name and once per id."""
    entries = [_Entry(name, ZERO_TOPIC_ID) for name in request.topic_names]
    refused = []
    for topic in request.topics:
        has_id = topic.topic_id != ZERO_TOPIC_ID
        entry = _Entry(topic.name, topic.topic_id)
        if (topic.name is not None) == has_id:
            both = "A topic is given by its name or by its id, not by both."
            entry.error = ApiError(ErrorCode.INVALID_REQUEST, both if has_id else "Neither name nor id is given.")
            refused.append(entry)
        else:
            entries.append(entry)
        await turns.after_one()
    counts = Counter((entry.asked_name, entry.asked_id) for entry in entries)
    unique = {(entry.asked_name, entry.asked_id): entry for entry in entries}
    for key, entry in unique.items():
        if counts[key] > 1:
            entry.error = ApiError(ErrorCode.INVALID_REQUEST, "The topic is named more than once in the request.")
        await turns.after_one()
    return [*unique.values(), *refused]


async def _resolved(
    entries: Sequence[_Entry], cluster: ClusterState, turns: Turns, context: RequestContext
) -> list[_Entry]:
    """Resolve every id to its name and every name to its id, and refuse those that the client may not delete.

    A topic that is given both ways has one result, an error with its name and id, as in Kafka.
    """
    given_ids: set[bytes] = set()
    names = {topic.topic_id: topic.name for topic in cluster.topics.values()} if any(e.by_id for e in entries) else {}
    for entry in entries:
        await turns.after_one()
        if not entry.by_id or entry.asked_id == ZERO_TOPIC_ID:
            continue
        given_ids.add(entry.asked_id)
        entry.name, entry.topic_id = names.get(entry.asked_id), entry.asked_id
        if entry.name is None and entry.error is None:
            entry.error = ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
    if context.authorizer is not None and not may_on_cluster(context, Operation.DELETE):
        await _refuse(entries, cluster, turns, context)
    doubly_given: set[bytes] = set()
    for entry in entries:
        await turns.after_one()
        if entry.asked_name is None or entry.error is not None:
            continue
        entry.name = entry.asked_name
        topic = cluster.topics.get(entry.name)
        if topic is not None:
            entry.topic_id = topic.topic_id
        if topic is not None and topic.topic_id in given_ids:
            doubly_given.add(topic.topic_id)
            entry.asked_id = topic.topic_id
            entry.error = ApiError(ErrorCode.INVALID_REQUEST, "The topic is given both by its name and by its id.")
    return [e for e in entries if e.error is not None or not e.by_id or e.topic_id not in doubly_given]


async def _refuse(entries: Sequence[_Entry], cluster: ClusterState, turns: Turns, context: RequestContext) -> None:
    """Set the errors of the topics that the client may not delete. Whether a topic exists, and the name of an id, are
    told only to a client that may describe it."""
    may_delete = Decisions(context, Operation.DELETE, ResourceType.TOPIC)
    may_describe = Decisions(context, Operation.DESCRIBE, ResourceType.TOPIC)
    for entry in entries:
        await turns.after_one()
        name = entry.name if entry.by_id else entry.asked_name
        if entry.error is not None or name is None:
            continue
        can_be_deleted, is_visible = may_delete(name), may_describe(name)
        if can_be_deleted and (is_visible or entry.by_id):
            continue
        is_missing = is_visible and not entry.by_id and name not in cluster.topics
        entry.error = ApiError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_missing else ErrorCode.TOPIC_AUTHORIZATION_FAILED
        )
        if is_visible:
            entry.asked_name = name


HANDLER: Handler[DeleteTopicsRequest, DeleteTopicsResponse] = Handler(
    key=20, min_version=1, max_version=6, handle=handle, waits_for=WaitsFor.CONTROLLER
)
