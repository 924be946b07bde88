"""Committed offsets: storing them, checking commits, and expiring them.

The `DECIDERS` read only; `Offsets.apply` is the only mutator, and the loader. An offset without members of a group
needs no group beforehand: committing it creates a *simple* group, empty and without a protocol type. Source: Kafka's
OffsetMetadataManager.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

from barnabas.broker.coordinators.effects import NO_PRODUCER_ID, printable
from barnabas.broker.coordinators.groups.changes import CommittedOffset, OffsetRecord, OffsetTombstone
from barnabas.broker.coordinators.groups.events import (
    CommitOffsets,
    DeleteGroup,
    DeleteGroupReply,
    DeleteOffsets,
    Effects,
    ExpireOffsets,
    FetchedOffset,
    FetchReply,
    ForgetTopics,
    OffsetsReply,
)
from barnabas.broker.coordinators.groups.kinds import Group, GroupKind, Usage
from barnabas.broker.coordinators.groups.memory import GROUP_BYTES, text_bytes
from barnabas.broker.coordinators.groups.settings import GroupSettings
from barnabas.wire.errors import ErrorCode

OFFSET_BYTES: Final = 200
OFFSETS_OF_TOPIC_BYTES: Final = 350
OFFSETS_OF_GROUP_BYTES: Final = 350
PRODUCER_BYTES: Final = 450
"""The memory of an offset without its metadata, and of the tables for a topic, a group and a transaction."""
PENDING_OFFSET_BYTES: Final = 500
"""The additional memory of an offset in an open transaction: its own key, and its place in the index."""
OFFSETS_PER_COMMIT_MAX: Final = 24_385
"""The number of offset records, of at least 43 bytes, that fit into a batch of Kafka's default `max.message.bytes`. A
commit is one batch and one step of the event loop, and no consumer has so many partitions."""
DEFAULT_RETENTION_MS: Final = -1
TIMESTAMP_MAX: Final = 2**63 - 1


Kind = GroupKind[Any]


class StoredOffset(NamedTuple):
    """A committed offset and the place of its record in `__consumer_offsets`."""

    committed: CommittedOffset
    record_offset: int


OffsetKey = tuple[str, str, int]
"""(group id, topic, partition)"""


def stored_bytes(committed: CommittedOffset) -> int:
    """An estimate of the memory of a committed offset."""
    return OFFSET_BYTES + text_bytes(committed.metadata)


def pending_offset_bytes(key: OffsetKey, committed: CommittedOffset) -> int:
    """An estimate of the memory of an offset in an open transaction."""
    return PENDING_OFFSET_BYTES + stored_bytes(committed) + text_bytes(key[0])


class Offsets:
    """The committed offsets of one shard; owned by it.

    Offsets in open transactions wait in `pending`, by producer id, until the transaction marker decides whether they
    take effect; `_producers` has the producers with a pending offset for a partition, by group, so that the cost of a
    lookup does not depend on the number of open transactions. `held_bytes` is an estimate of the memory of all of them.
    """

    __slots__ = ("_producers", "by_group", "held_bytes", "pending")

    def __init__(self) -> None:
        self.held_bytes = 0
        self.by_group: dict[str, dict[str, dict[int, StoredOffset]]] = {}
        self.pending: dict[int, dict[OffsetKey, StoredOffset]] = {}
        self._producers: dict[str, dict[tuple[str, int], set[int]]] = {}

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        stored = self.by_group.get(group_id, {}).get(topic, {}).get(partition)
        return stored.committed if stored is not None else None

    def of_group(self, group_id: str) -> Iterator[tuple[str, int, CommittedOffset]]:
        for topic, partitions in self.by_group.get(group_id, {}).items():
            for partition, stored in partitions.items():
                yield topic, partition, stored.committed

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction has an offset for the partition."""
        return (topic, partition) in self._producers.get(group_id, ())

    def pending_of_group(self, group_id: str) -> Collection[tuple[str, int]]:
        """(topic, partition) of every offset of the group in an open transaction."""
        return self._producers.get(group_id, {}).keys()

    def has_pending(self, group_id: str) -> bool:
        return group_id in self._producers

    def groups_with_pending(self, topics: Collection[str]) -> set[str]:
        """The groups with an offset of one of the topics in an open transaction."""
        return {group_id for group_id, keys in self._producers.items() if any(topic in topics for topic, _ in keys)}

    def apply(
        self, record: OffsetRecord | OffsetTombstone, record_offset: int, producer_id: int = NO_PRODUCER_ID
    ) -> None:
        """Store or delete one offset; an offset in a transaction (with a producer id) waits for `end_transaction`."""
        if isinstance(record, OffsetTombstone):
            self._forget(record)
            return
        stored = StoredOffset(record.committed, record_offset)
        if producer_id == NO_PRODUCER_ID:
            self._store(record.group_id, record.topic, record.partition, stored)
            return
        offsets = self.pending.get(producer_id)
        if offsets is None:
            offsets = self.pending[producer_id] = {}
            self.held_bytes += PRODUCER_BYTES
        key = (record.group_id, record.topic, record.partition)
        self.held_bytes += pending_offset_bytes(key, stored.committed) - self._pending_bytes(offsets, key)
        offsets[key] = stored
        self._producers.setdefault(record.group_id, {}).setdefault(key[1:], set()).add(producer_id)

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """Apply a transaction marker: on commit the transaction's offsets take effect, unless a later record has
        replaced them; on abort they are dropped.
        """
        offsets = self.pending.pop(producer_id, None)
        if offsets is None:
            return
        self.held_bytes -= PRODUCER_BYTES
        for key, stored in offsets.items():
            self.held_bytes -= pending_offset_bytes(key, stored.committed)
            self._forget_producer(key, producer_id)
            group_id, topic, partition = key
            known = self.by_group.get(group_id, {}).get(topic, {}).get(partition)
            if is_commit and (known is None or known.record_offset < stored.record_offset):
                self._store(group_id, topic, partition, stored)

    def _store(self, group_id: str, topic: str, partition: int, stored: StoredOffset) -> None:
        topics = self.by_group.get(group_id)
        if topics is None:
            topics = self.by_group[group_id] = {}
            self.held_bytes += OFFSETS_OF_GROUP_BYTES
        partitions = topics.get(topic)
        if partitions is None:
            partitions = topics[topic] = {}
            self.held_bytes += OFFSETS_OF_TOPIC_BYTES
        known = partitions.get(partition)
        partitions[partition] = stored
        if known is None:
            self.held_bytes += stored_bytes(stored.committed)
        else:
            self.held_bytes += stored_bytes(stored.committed) - stored_bytes(known.committed)

    def _pending_bytes(self, offsets: dict[OffsetKey, StoredOffset], key: OffsetKey) -> int:
        known = offsets.get(key)
        return 0 if known is None else pending_offset_bytes(key, known.committed)

    def _forget_producer(self, key: OffsetKey, producer_id: int) -> None:
        keys = self._producers[key[0]]
        producers = keys[key[1:]]
        producers.remove(producer_id)
        if not producers:
            del keys[key[1:]]
        if not keys:
            del self._producers[key[0]]

    def _forget(self, record: OffsetTombstone) -> None:
        key = (record.group_id, record.topic, record.partition)
        for producer_id in tuple(self._producers.get(record.group_id, {}).get(key[1:], ())):
            offsets = self.pending[producer_id]  # stays until its marker
            self.held_bytes -= self._pending_bytes(offsets, key)
            del offsets[key]
            self._forget_producer(key, producer_id)
        topics = self.by_group.get(record.group_id)
        if topics is None or record.topic not in topics:
            return
        known = topics[record.topic].pop(record.partition, None)
        if known is not None:
            self.held_bytes -= stored_bytes(known.committed)
        if not topics[record.topic]:
            del topics[record.topic]
            self.held_bytes -= OFFSETS_OF_TOPIC_BYTES
        if not topics:
            del self.by_group[record.group_id]
            self.held_bytes -= OFFSETS_OF_GROUP_BYTES

    def fetch(self, group_id: str, topics: Mapping[str, Collection[int]] | None, *, require_stable: bool) -> FetchReply:
        """The offsets of the requested partitions, or of all partitions that have one (`topics` is None).

        Errors: UNSTABLE_OFFSET_COMMIT per partition when `require_stable` and an open transaction may still change it.
        """
        stored = self.by_group.get(group_id, {})
        if topics is None:
            topics = {topic: list(partitions) for topic, partitions in stored.items()}
        fetched: dict[str, list[FetchedOffset]] = {}
        for topic, partitions in topics.items():
            known = stored.get(topic, {})
            fetched[topic] = [
                FetchedOffset(partition, None, ErrorCode.UNSTABLE_OFFSET_COMMIT)
                if require_stable and self.is_pending(group_id, topic, partition)
                else FetchedOffset(partition, known[partition].committed if partition in known else None)
                for partition in partitions
            ]
        return FetchReply(fetched)

    def added_bytes(self, event: CommitOffsets, *, is_of_new_group: bool) -> int:
        """The additional memory after a commit: 0 or less when it replaces as much."""
        group_id = event.group_id
        pending = self.pending.get(event.producer_id, {})
        is_transactional = event.is_transactional
        added = GROUP_BYTES + OFFSETS_OF_GROUP_BYTES + text_bytes(group_id) if is_of_new_group else 0
        added += PRODUCER_BYTES if is_transactional and not pending else 0
        known_topics = self.by_group.get(group_id, {})
        for topic, _, partitions in event.topics:
            known_partitions = known_topics.get(topic, {})
            added += 0 if known_partitions or is_transactional else OFFSETS_OF_TOPIC_BYTES
            for partition, _, _, metadata in partitions:
                if is_transactional:
                    known = pending.get((group_id, topic, partition))
                    key_bytes = PENDING_OFFSET_BYTES + text_bytes(group_id)
                else:
                    known = known_partitions.get(partition)
                    key_bytes = 0
                if known is None:
                    added += OFFSET_BYTES + key_bytes + text_bytes(metadata)
                elif metadata:
                    added += text_bytes(metadata) - text_bytes(known.committed.metadata)
        return added


def _commit(
    kind: Kind, group: Group | None, _: Offsets, event: CommitOffsets, now_ms: int, settings: GroupSettings
) -> Effects:
    effects = Effects()
    is_transactional = group is not None and event.is_transactional
    if group is not None:
        error = kind.commit_error(group, event, is_transactional=is_transactional)
    else:
        error = ErrorCode.NONE if event.generation < 0 else event.unknown_group_error
    if error is ErrorCode.NONE and sum(len(partitions) for _, _, partitions in event.topics) > OFFSETS_PER_COMMIT_MAX:
        error = ErrorCode.UNKNOWN_SERVER_ERROR
    if error is not ErrorCode.NONE:
        effects.replies.append((event.token, OffsetsReply(error)))
        return effects
    if group is not None and event.member_id in group.members and not is_transactional:
        kind.extend_session(group, event.member_id, effects)  # a producer's commit is not the member's
    expire_at_ms = _expire_at_ms(event.retention_ms, now_ms)
    results = []
    for topic, topic_id, partitions in event.topics:
        answers = []
        for partition, offset, leader_epoch, metadata in partitions:
            if len(metadata) > settings.offset_metadata_max_bytes:
                answers.append((partition, ErrorCode.OFFSET_METADATA_TOO_LARGE))
                continue
            committed = CommittedOffset(offset, leader_epoch, metadata, now_ms, expire_at_ms, topic_id)
            effects.changes.append(OffsetRecord(event.group_id, topic, partition, committed))
            answers.append((partition, ErrorCode.NONE))
        results.append((topic, tuple(answers)))
    effects.producer = (event.producer_id, event.producer_epoch)
    effects.replies.append((event.token, OffsetsReply(ErrorCode.NONE, tuple(results))))
    return effects


def _expire_at_ms(retention_ms: int, now_ms: int) -> int:
    """The expiry time of an offset that is committed with a retention of its own, -1 without one. It is at most the
    largest timestamp; Kafka's sum overflows, and the next check deletes the offset (OffsetMetadataManager).
    """
    if retention_ms == DEFAULT_RETENTION_MS:
        return -1
    return max(0, min(now_ms + retention_ms, TIMESTAMP_MAX))


def _delete_offsets(
    kind: Kind, group: Group | None, offsets: Offsets, event: DeleteOffsets, _now_ms: int, _settings: GroupSettings
) -> Effects:
    error = ErrorCode.GROUP_ID_NOT_FOUND if group is None else kind.delete_offsets_error(group)
    if group is None or error is not ErrorCode.NONE:
        return Effects(replies=[(event.token, OffsetsReply(error))])
    effects = Effects()
    used_topics = kind.usage(group).topics
    results = []
    for topic, partitions in event.topics:
        error = ErrorCode.NONE
        if topic in used_topics:
            error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        else:
            effects.changes.extend(
                OffsetTombstone(event.group_id, topic, partition)
                for partition in dict.fromkeys(partitions)
                if offsets.get(event.group_id, topic, partition) is not None
                or offsets.is_pending(event.group_id, topic, partition)
            )
        results.append((topic, tuple((partition, error) for partition in partitions)))
    effects.replies.append((event.token, OffsetsReply(ErrorCode.NONE, tuple(results))))
    return effects


def _delete_group(
    kind: Kind, group: Group | None, offsets: Offsets, event: DeleteGroup, _now_ms: int, _settings: GroupSettings
) -> Effects:
    if group is None:
        return Effects(replies=[(event.token, DeleteGroupReply(ErrorCode.GROUP_ID_NOT_FOUND))])
    if not kind.is_empty(group):
        return Effects(replies=[(event.token, DeleteGroupReply(ErrorCode.NON_EMPTY_GROUP))])
    effects = Effects(replies=[(event.token, DeleteGroupReply(ErrorCode.NONE))])
    keys = {(topic, partition) for topic, partition, _ in offsets.of_group(event.group_id)}
    keys.update(offsets.pending_of_group(event.group_id))
    effects.changes.extend(OffsetTombstone(event.group_id, *key) for key in sorted(keys))
    kind.bury(group, effects)
    return effects


def _expire(
    kind: Kind, group: Group | None, offsets: Offsets, event: ExpireOffsets, now_ms: int, settings: GroupSettings
) -> Effects:
    effects = Effects()
    if group is None:
        return effects
    group_id = event.group_id
    usage = kind.usage(group)
    kept = 0
    for topic, partition, committed in offsets.of_group(group_id):
        if (
            _is_expired(usage, committed, now_ms, settings.offsets_retention_ms)
            and topic not in usage.topics
            and not offsets.is_pending(group_id, topic, partition)
        ):
            effects.changes.append(OffsetTombstone(group_id, topic, partition))
        else:
            kept += 1
    if usage.is_unused and not kept and not offsets.has_pending(group_id):
        kind.bury(group, effects)
    if effects.changes:
        effects.notes.append(
            ("Group %s: %d offsets or the group itself expired", printable(group_id), len(effects.changes))
        )
    return effects


def _is_expired(usage: Usage, committed: CommittedOffset, now_ms: int, retention_ms: int) -> bool:
    """Whether an offset has expired. One that was committed with a retention of its own expires by that."""
    if not usage.expire:
        return False
    if committed.expire_at_ms >= 0:
        return now_ms >= committed.expire_at_ms
    since_ms = committed.commit_timestamp_ms if usage.idle_since_ms < 0 else usage.idle_since_ms
    return now_ms - since_ms >= retention_ms


def _forget_topics(
    _kind: Kind, _: Group | None, offsets: Offsets, event: ForgetTopics, _now_ms: int, _settings: GroupSettings
) -> Effects:
    keys = {(topic, partition) for topic, partition, _ in offsets.of_group(event.group_id)}
    keys.update(offsets.pending_of_group(event.group_id))
    return Effects(changes=[OffsetTombstone(event.group_id, *key) for key in sorted(keys) if key[0] in event.topics])


DECIDERS: Final[Mapping[type, Callable[[Kind, Group | None, Offsets, Any, int, GroupSettings], Effects]]] = {
    CommitOffsets: _commit,
    DeleteOffsets: _delete_offsets,
    DeleteGroup: _delete_group,
    ExpireOffsets: _expire,
    ForgetTopics: _forget_topics,
}
"""The effects of each event on the offsets of a group (None: the group does not exist), which is of a kind. The time is
wall-clock time.
"""
