"""DeleteTopics (key 20): delete topics by name or by id (KIP-4).   Versions 1-6.

Behaviour: every topic succeeds or fails by itself; a name or id given twice gets one answer. The answer comes when this
broker has taken the topics' logs out of service; the files are removed a little later (file.delete.delay.ms).
Errors per topic: UNKNOWN_TOPIC_OR_PARTITION (by name), UNKNOWN_TOPIC_ID (by id), INVALID_REQUEST (duplicates, neither
or both of name and id, a name whose id is given too), TOPIC_DELETION_DISABLED (delete.topic.enable=false;
INVALID_REQUEST below version 3), REQUEST_TIMED_OUT (the topic is still being deleted), NOT_CONTROLLER,
KAFKA_STORAGE_ERROR.
Deviations: results come in the order of the request, where Kafka shuffles them; with a timeout of zero or less topics
are deleted in the background and answered REQUEST_TIMED_OUT, as before Kafka 4; throttle_time_ms is always 0.
Versions: 3 TOPIC_DELETION_DISABLED (KIP-322); 4 flexible; 5 error messages; 6 topic ids (KIP-516).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from barnabas.broker.context import RequestContext
from barnabas.broker.registry import Handler
from barnabas.controller.state import ClusterState
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse
from barnabas.wire.names import ZERO_TOPIC_ID

DELETION_DISABLED_FROM_VERSION: Final = 3


@dataclass(slots=True)
class _Entry:
    """One topic asked for: by `name` or by `topic_id`, the other resolved as far as possible. `error` once it is
    known."""

    name: str | None
    topic_id: bytes
    by_id: bool
    error: ApiError | None = None

    def result(self) -> DeletableTopicResult:
        error = self.error
        unresolved = error is not None and error.error is not ErrorCode.REQUEST_TIMED_OUT
        return DeletableTopicResult(
            name=None if unresolved and self.by_id else self.name,
            topic_id=ZERO_TOPIC_ID if unresolved and not self.by_id else self.topic_id,
            error_code=ErrorCode.NONE if error is None else error.error,
            error_message=None if error is None else error.message,
        )


async def handle(request: DeleteTopicsRequest, context: RequestContext) -> DeleteTopicsResponse:
    """Answer one request."""
    if not context.broker.controller.settings.delete_topic_enable:
        return DeleteTopicsResponse(responses=_refusals(request, context.api_version))
    entries = _resolved(_entries(request), context.broker.controller.cluster)
    wanted = {entry.name: entry for entry in entries if entry.error is None and entry.name is not None}
    if wanted:
        try:
            results = await context.broker.controller.delete_topics(
                list(wanted),
                request.timeout_ms,
                topic_ids={name: entry.topic_id for name, entry in wanted.items() if entry.by_id},
            )
        except ApiError as error:
            results = dict.fromkeys(wanted, error)
        for name, entry in wanted.items():
            entry.error = results[name]
    return DeleteTopicsResponse(responses=[entry.result() for entry in entries])


def _refusals(request: DeleteTopicsRequest, version: int) -> list[DeletableTopicResult]:
    code_is_known = version >= DELETION_DISABLED_FROM_VERSION
    code = ErrorCode.TOPIC_DELETION_DISABLED if code_is_known else ErrorCode.INVALID_REQUEST
    message = "Topics cannot be deleted: delete.topic.enable is false."
    asked: list[tuple[str | None, bytes]] = [(name, ZERO_TOPIC_ID) for name in request.topic_names]
    asked += [(topic.name, topic.topic_id) for topic in request.topics]
    return [
        DeletableTopicResult(name=name, topic_id=topic_id, error_code=code, error_message=message)
        for name, topic_id in asked
    ]


def _entries(request: DeleteTopicsRequest) -> list[_Entry]:
    """What is asked for, once per name and once per id."""
    entries = [_Entry(name, ZERO_TOPIC_ID, by_id=False) for name in request.topic_names]
    refused = []
    for topic in request.topics:
        has_id = topic.topic_id != ZERO_TOPIC_ID
        entry = _Entry(topic.name, topic.topic_id, by_id=has_id)
        if (topic.name is not None) == has_id:
            both = "A topic is given by its name or by its id, not by both."
            entry.error = ApiError(ErrorCode.INVALID_REQUEST, both if has_id else "Neither name nor id is given.")
            refused.append(entry)
        else:
            entries.append(entry)
    counts = Counter((entry.name, entry.topic_id) for entry in entries)
    unique = {(entry.name, entry.topic_id): entry for entry in entries}
    for key, entry in unique.items():
        if counts[key] > 1:
            entry.error = ApiError(ErrorCode.INVALID_REQUEST, "The topic is named more than once in the request.")
    return [*unique.values(), *refused]


def _resolved(entries: Sequence[_Entry], cluster: ClusterState) -> list[_Entry]:
    """Find the name of every id and the id of every name.

    A topic given both ways has one answer, an error under its name, as in Kafka.
    """
    by_id: dict[bytes, _Entry] = {}
    for entry in entries:
        if entry.by_id and entry.error is None:
            entry.name = cluster.topic_name(entry.topic_id)
            if entry.name is None:
                entry.error = ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
            by_id[entry.topic_id] = entry
    doubly_given: set[bytes] = set()
    for entry in entries:
        topic = cluster.topics.get(entry.name) if entry.name is not None else None
        if not entry.by_id and entry.error is None and topic is not None:
            entry.topic_id = topic.topic_id
            if entry.topic_id in by_id:
                doubly_given.add(entry.topic_id)
                entry.error = ApiError(ErrorCode.INVALID_REQUEST, "The topic is given both by its name and by its id.")
    return [entry for entry in entries if not (entry.by_id and entry.topic_id in doubly_given)]


HANDLER = Handler(key=20, min_version=1, max_version=6, handle=handle)
