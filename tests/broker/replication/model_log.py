"""Logs and a leader without files: a record is the leader epoch that wrote it. With its offset that identifies it."""

import itertools

from barnabas.broker.replication.fetch_partition import FetchPartition
from barnabas.broker.replication.fetch_sessions import FetchSessions
from barnabas.broker.replication.fetcher import Append, AskOffsets, Decision, Fetcher, StartAnew, Truncate
from barnabas.storage.leader_epochs import LeaderEpochs
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from barnabas.wire.names import TopicId

Record = tuple[int, int]
"""Offset and the epoch of the leader that wrote it: no two different records have the same."""


class ModelLog:
    """A log as a list of epochs; one record is one batch."""

    def __init__(self, *epochs: int, start_offset: int = 0) -> None:
        self.log_start_offset = start_offset
        self.high_watermark = start_offset
        self._first_offset = start_offset
        self._epochs: list[int] = []
        self.leader_epochs = LeaderEpochs()
        self.append(*epochs)

    @property
    def log_end_offset(self) -> int:
        return self._first_offset + len(self._epochs)

    @property
    def records(self) -> list[Record]:
        return [(self._first_offset + number, epoch) for number, epoch in enumerate(self._epochs)]

    def append(self, *epochs: int) -> None:
        for epoch in epochs:
            self.leader_epochs.assign(epoch, self.log_end_offset)
            self._epochs.append(epoch)

    def end_offset_for_epoch(self, epoch: int, /) -> tuple[int, int]:
        return self.leader_epochs.end_offset_for(epoch, self.log_end_offset)

    def read(self, offset: int, count: int) -> bytes:
        """The epochs of so many records from `offset` on, a byte each."""
        return bytes(self._epochs[offset - self._first_offset :][:count])

    def truncate_to(self, offset: int) -> None:
        self.leader_epochs.truncate_from_end(min(offset, self.log_end_offset))
        if offset < self.log_end_offset:
            assert offset >= self._first_offset, "the test's logs are not cut below their start"
            del self._epochs[offset - self._first_offset :]
            self.high_watermark = min(self.high_watermark, offset)
            self.log_start_offset = min(self.log_start_offset, offset)

    def start_anew_at(self, offset: int) -> None:
        self._epochs.clear()
        self.leader_epochs.clear()
        self._first_offset = self.log_start_offset = self.high_watermark = offset

    def delete_before(self, offset: int) -> None:
        self.log_start_offset = offset
        self.leader_epochs.truncate_from_start(offset)


def common_prefix(one: ModelLog, other: ModelLog) -> int:
    """The offset at which two logs differ, or the shorter one ends."""
    for mine, theirs in zip(one.records, other.records, strict=False):
        if mine != theirs:
            return mine[0]
    return min(one.log_end_offset, other.log_end_offset)


class ModelLeader:
    """Responds to fetches from logs, with the fetch sessions of the broker, as `FetchOperation` does."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.logs: dict[tuple[TopicId, int], ModelLog] = {}
        self.errors: dict[tuple[TopicId, int], ErrorCode] = {}
        self.count = 2
        """How many records an answer holds per partition, at most."""
        numbers = itertools.count(7)
        self.sessions = FetchSessions(10, lambda: next(numbers))

    def answer(self, request: FetchRequest) -> FetchResponse:
        plan = self.sessions.plan(
            request.session_id,
            request.session_epoch,
            [
                FetchPartition(
                    "topic",
                    TopicId(topic.topic_id),
                    asked.partition,
                    asked.fetch_offset,
                    asked.partition_max_bytes,
                    asked.current_leader_epoch,
                    asked.last_fetched_epoch,
                    asked.log_start_offset,
                )
                for topic in request.topics
                for asked in topic.partitions
            ],
            [(TopicId(topic.topic_id), index) for topic in request.forgotten_topics_data for index in topic.partitions],
            uses_topic_ids=True,
            now_ms=0,
        )
        results = [(asked, self._read(asked)) for asked in plan.partitions]
        error, session_id, told = self.sessions.finish(plan, results, 0)
        response = FetchResponse(error_code=error, session_id=session_id)
        for asked, data in told:
            response.responses.append(FetchableTopicResponse(topic_id=asked.topic_id, partitions=[data]))
        return response

    def _read(self, asked: FetchPartition) -> PartitionData:
        data = PartitionData(partition_index=asked.partition, high_watermark=-1, log_start_offset=-1, records=b"")
        log = self.logs.get((asked.topic_id, asked.partition))
        if log is None:
            data.error_code = ErrorCode.UNKNOWN_TOPIC_ID
        elif (asked.topic_id, asked.partition) in self.errors:
            data.error_code = self.errors[asked.topic_id, asked.partition]
        elif asked.current_leader_epoch != self.epoch:
            is_older = asked.current_leader_epoch < self.epoch
            data.error_code = ErrorCode.FENCED_LEADER_EPOCH if is_older else ErrorCode.UNKNOWN_LEADER_EPOCH
        elif not log.log_start_offset <= asked.fetch_offset <= log.log_end_offset and asked.last_fetched_epoch < 0:
            data.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
        else:
            self._read_log(log, asked, data)
        return data

    def _read_log(self, log: ModelLog, asked: FetchPartition, data: PartitionData) -> None:
        if asked.last_fetched_epoch >= 0:
            epoch, end_offset = log.end_offset_for_epoch(asked.last_fetched_epoch)
            if epoch < 0 or end_offset < 0 or asked.fetch_offset < log.log_start_offset:
                data.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
                return
            if epoch < asked.last_fetched_epoch or end_offset < asked.fetch_offset:
                data.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end_offset)
                return
        data.high_watermark = log.high_watermark
        data.log_start_offset = log.log_start_offset
        data.records = log.read(asked.fetch_offset, self.count)


def carry_out(fetcher: Fetcher, decision: Decision, leader: ModelLeader, now_ms: int = 0) -> Decision | None:
    """Execute a decision on a ModelLog at once; returns the next decision, if there is one."""
    following = decision.following
    log = following.log
    assert isinstance(log, ModelLog)
    if isinstance(decision, Append):
        data = decision.data
        log.append(*(data.records or b""))
        log.high_watermark = max(log.high_watermark, min(data.high_watermark, log.log_end_offset))
        if data.log_start_offset > log.log_start_offset:
            log.delete_before(min(data.log_start_offset, log.high_watermark))
        fetcher.appended(following, data.high_watermark, had_records=bool(data.records))
    elif isinstance(decision, Truncate):
        log.truncate_to(decision.offset)
        fetcher.resumed(following)
    elif isinstance(decision, StartAnew):
        log.start_anew_at(decision.offset)
        fetcher.resumed(following)
    elif isinstance(decision, AskOffsets):
        found = leader.logs[following.id]
        return fetcher.offsets_told(following, found.log_start_offset, found.log_end_offset, now_ms)
    return None
