"""The partitions that this broker hosts: requests of the controller to lead, follow or stop them, and appends (Kafka's
ReplicaManager).

Everything here is owned by the event loop; work that may block (opening logs, opening many records) runs in threads and
returns to the loop.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from barnabas.broker.cluster.metadata import MetadataCache
from barnabas.broker.replication.flusher import Flusher
from barnabas.broker.replication.isr import RoleChange
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.waiting_fetches import WaitingFetches
from barnabas.clock import Clock
from barnabas.controller.requests import FULL
from barnabas.controller.topics import check_topic_name
from barnabas.set_aside import SetAside
from barnabas.storage.checkpoints import LOST_LOGS_FILE, TopicPartition
from barnabas.storage.config import LogConfig
from barnabas.storage.errors import DiskFull, StorageError
from barnabas.storage.log import LogAppendInfo, PartitionLog
from barnabas.storage.log_manager import LogManager
from barnabas.storage.validation import AppendOrigin, ExpensiveBatch, ValidationResult, validate_produced_batch
from barnabas.turns import LOGS_PER_TURN, Turns
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
    LeaderAndIsrTopicState,
)
from barnabas.wire.messages.stop_replica import (
    StopReplicaPartitionError,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaResponse,
)
from barnabas.wire.names import ZERO_TOPIC_ID, TopicId
from barnabas.wire.record_batch import HEADER_SIZE, WriteBuffer

if TYPE_CHECKING:
    from barnabas.broker.replication.fetcher_manager import FetcherManager
    from barnabas.broker.replication.leadership import Leadership, Leaderships

logger = logging.getLogger(__name__)

_NEVER = 1 << 62

RECORD_READERS = 1
"""The number of threads that open the records of batches. The work holds the interpreter lock, so that more threads
would not be faster, and the event loop would have to wait for its turn behind each. (With six batches of 100,000
records at a time, over and over: beside six threads 36 of 100 small requests a second were served, beside one thread
all of them.)"""

T = TypeVar("T")

PartitionCallback = Callable[[Partition], None]


class ReplicaManager:
    """Hosted partitions by (topic, index).

    `config_of(topic)` returns a topic's current settings. `on_elected` and `on_resigned` tell the coordinators that
    this broker has begun or ceased to lead a partition. With `flush_before_ack` nothing is acknowledged before it is
    flushed. `make_leaderships` is called when the first partition with other replicas is led here, `make_fetchers` when
    the first one is followed; without it nothing is fetched.
    """

    def __init__(
        self,
        node_id: int,
        log_manager: LogManager,
        metadata: MetadataCache,
        clock: Clock,
        config_of: Callable[[str], LogConfig],
        on_elected: PartitionCallback,
        on_resigned: PartitionCallback,
        make_leaderships: "Callable[[], Leaderships]",
        *,
        make_fetchers: "Callable[[], FetcherManager] | None" = None,
        flush_before_ack: bool = False,
    ) -> None:
        self.node_id = node_id
        self._log_manager = log_manager
        self.metadata = metadata
        self._clock = clock
        self._config_of = config_of
        self._on_elected = on_elected
        self._on_resigned = on_resigned
        self._make_leaderships = make_leaderships
        self.leaderships: Leaderships | None = None
        self._make_fetchers = make_fetchers
        self.fetchers: FetcherManager | None = None
        self._flush_before_ack = flush_before_ack
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._offline: set[tuple[str, int]] = set()
        """Partitions that this broker should host, but whose log it cannot open (Kafka's HostedPartition.Offline)."""
        self.appended_bytes = 0
        """The bytes offered for append since the start, refused or not."""
        self._knows_claims = False
        """Whether a request has named all partitions that this broker is to host."""
        self._full_at: dict[str, int] = {}
        self._first_full_at = _NEVER
        self.set_aside_settings = SetAside[PartitionLog]("changing the settings", clock)
        self.set_aside_isrs = SetAside[Partition]("looking at in-sync replicas", clock)
        self.waiting_fetches = WaitingFetches()
        self.threads = log_manager.threads
        self.flusher = Flusher(
            clock, self.threads, log_manager.logs_to_flush, self.hosted, flush_before_ack=flush_before_ack
        )
        self._record_readers = self.threads.workers("record-reader", RECORD_READERS)
        self._live_brokers: frozenset[int] = frozenset()
        metadata.listeners[self._follow_brokers] = None

    @property
    def set_asides(self) -> list[SetAside[Any]]:
        """The members that are set aside, by activity."""
        found: list[SetAside[Any]] = [self.flusher.set_aside, self.set_aside_settings, self.set_aside_isrs]
        if self.leaderships is not None:
            found.append(self.leaderships.alter_partitions.set_aside)
        if self.fetchers is not None:
            found.append(self.fetchers.set_aside)
        return found

    async def close(self) -> None:
        """Stop the thread that opens records and all fetchers; returns when no flush is in progress, so that the logs
        can be closed."""
        await self._record_readers.stop()
        if self.fetchers is not None:
            await self.fetchers.stop()
        if self.leaderships is not None:
            await self.leaderships.alter_partitions.close()
        await self.flusher.close()

    # --- looking up -------------------------------------------------------------------------------

    def partition(self, topic: str, index: int) -> Partition | None:
        return self._partitions.get((topic, index))

    def hosted(self, log: PartitionLog) -> Partition | None:
        """The partition of a log; None if this broker does not host it."""
        partition = self._partitions.get((log.topic, log.partition))
        return partition if partition is not None and partition.log is log else None

    def partitions(self) -> Iterator[Partition]:
        return iter(list(self._partitions.values()))

    def partition_or_error(self, topic: str, index: int) -> Partition:
        """The hosted partition; raises ApiError UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER where another broker
        hosts it, KAFKA_STORAGE_ERROR where its log is offline."""
        partition = self._partitions.get((topic, index))
        if partition is None:
            raise ApiError(self._error_of_absent(topic, index))
        return partition

    def _error_of_absent(self, topic: str, index: int) -> ErrorCode:
        if (topic, index) in self._offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        known = self.metadata.has_partition(topic, index)
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    # --- requests of the controller ---------------------------------------------------------------

    def has_log(self, topic: str, index: int) -> bool:
        """Whether there is a usable log of the partition, hosted or not: otherwise one may be created."""
        try:
            return self._log_manager.get(topic, index) is not None
        except StorageError:
            return False

    async def leader_and_isr(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        """Lead or follow partitions; `ControllerCommands` has checked the request. STALE_CONTROLLER_EPOCH,
        INCONSISTENT_TOPIC_ID, KAFKA_STORAGE_ERROR per partition."""
        response = LeaderAndIsrResponse()
        turns = Turns(LOGS_PER_TURN)
        if request.type == FULL:
            claimed = _partitions_of(request)
            if not self._knows_claims:
                self._knows_claims = True
                await self._set_unclaimed_aside(claimed)
            if self._log_manager.lost.may_be_some:
                self._log_manager.lost.settle(claimed)
        await self._reopen(request)
        for topic in request.topic_states:
            errors = LeaderAndIsrTopicError(topic_id=topic.topic_id)
            for state in topic.partition_states:
                if self.fetchers is not None:
                    await self._end_following(topic, state, self.fetchers)
                error = self._apply(topic, state)
                answer = LeaderAndIsrPartitionError(partition_index=state.partition_index, error_code=error)
                if not state.isr:
                    self._tell_log_end(topic.topic_name, answer)
                errors.partition_errors.append(answer)
                await turns.after_one()
            response.topics.append(errors)
        if self._log_manager.lost.may_be_some:
            await self.threads.call(self._write_lost_logs)
        return response

    def _tell_log_end(self, topic: str, answer: LeaderAndIsrPartitionError) -> None:
        """Report this broker's state to a controller that has lost the partition's state: the leader epoch in any case,
        and the log end offset once the broker has stopped appending to the log.

        *Source*: none in Kafka; `controller/operations/lost_states.py`.
        """
        partition = self._partitions.get((topic, answer.partition_index))
        if partition is None or answer.error_code not in (ErrorCode.NONE, ErrorCode.STALE_CONTROLLER_EPOCH):
            return
        answer.known_leader_epoch = partition.state.leader_epoch
        if answer.error_code == ErrorCode.NONE:
            answer.last_epoch = partition.log.leader_epochs.latest_epoch
            answer.log_end_offset = partition.log.log_end_offset
            answer.knew_isr = partition.state.knew_isr

    async def _reopen(self, request: LeaderAndIsrRequest) -> None:
        """Reopen logs that could not be opened for lack of room or descriptors: the controller keeps repeating the
        roles of their partitions (see `Controller`)."""
        for topic in request.topic_states:
            for state in topic.partition_states:
                open_log = self._log_manager.reopening(topic.topic_name, state.partition_index)
                if open_log is not None:
                    outcome = await self.threads.call(open_log)
                    self._log_manager.reopened(topic.topic_name, state.partition_index, outcome)

    def _apply(self, topic: LeaderAndIsrTopicState, state: LeaderAndIsrPartitionState) -> ErrorCode:
        key = (topic.topic_name, state.partition_index)
        topic_id = TopicId(bytes(topic.topic_id))
        partition = self._partitions.get(key)
        if partition is not None and partition.topic_id != topic_id and not state.is_new:
            return ErrorCode.INCONSISTENT_TOPIC_ID
        if partition is not None and partition.topic_id == topic_id and partition.state.is_outdated(state):
            return ErrorCode.STALE_CONTROLLER_EPOCH
        try:
            if partition is None:
                check_topic_name(topic.topic_name)  # it becomes a directory's name, and anyone may have written it
            if state.is_new and self._set_stray_aside(*key, topic_id):
                partition = None
            if partition is None:
                if not state.is_new and self._is_counted_on(state):
                    self._check_is_not_lost(*key, state)
                self._set_useless_aside(*key, topic_id, state)
                log = self._log_manager.get_or_create(
                    *key, topic_id, self._config_of(topic.topic_name), is_new=state.is_new
                )
                partition = self._partitions[key] = Partition(
                    *key, topic_id, log, self.node_id, flush_before_ack=self._flush_before_ack
                )
            self._tell_coordinators(partition, partition.become_leader_or_follower(state, self._lead_followers))
            self._follow_leader(partition)
        except Exception as error:
            code = error.error if isinstance(error, ApiError) else ErrorCode.KAFKA_STORAGE_ERROR
            if key not in self._offline:
                trace = None if isinstance(error, ApiError) else error
                logger.error("cannot host %s-%d: %s", *key, error, exc_info=trace)
            if code is ErrorCode.KAFKA_STORAGE_ERROR:
                self._offline.add(key)
            return code
        self._offline.discard(key)
        return ErrorCode.NONE

    def _lead_followers(self, partition: Partition, told: LeaderAndIsrPartitionState) -> "Leadership":
        if self.leaderships is None:
            self.leaderships = self._make_leaderships()
        return self.leaderships.lead(partition, told)

    def _follow_leader(self, partition: Partition) -> None:
        """Fetch a partition that another broker leads."""
        state = partition.state
        if state.is_leader or state.leader < 0 or self._make_fetchers is None:
            return
        if self.fetchers is None:
            self.fetchers = self._make_fetchers()
        self.fetchers.follow(
            partition.topic,
            partition.topic_id,
            partition.index,
            state.leader,
            state.leader_epoch,
            partition.log,
            is_in_sync=self.node_id in state.isr,
        )

    async def _end_following(
        self, topic: LeaderAndIsrTopicState, told: LeaderAndIsrPartitionState, fetchers: "FetcherManager"
    ) -> None:
        """Stop fetching before a log is led, or replaced by that of another topic: nothing may append to it or truncate
        it then."""
        partition = self._partitions.get((topic.topic_name, told.partition_index))
        if partition is None or partition.state.is_outdated(told):
            return
        if told.leader == self.node_id or told.leader < 0 or partition.topic_id != topic.topic_id:
            await fetchers.unfollow([(partition.topic_id, partition.index)])

    def _is_counted_on(self, told: LeaderAndIsrPartitionState) -> bool:
        """Whether other brokers may rely on this broker's log to be complete."""
        return told.leader < 0 or told.leader == self.node_id or self.node_id in told.isr

    def _check_is_not_lost(self, topic: str, index: int, told: LeaderAndIsrPartitionState) -> None:
        """Refuse to create a new log in place of a lost one while this broker counts as complete: as leader it would
        make the other replicas truncate their records. Kafka creates it.

        Raises: StorageError.
        """
        if not self._log_manager.lost.is_lost(topic, index):
            return
        if all(replica == self.node_id for replica in told.replicas):
            logger.warning("%s-%d has lost its log, and no other broker has one: it begins empty", topic, index)
            return
        raise StorageError(
            "its log is gone: it is fetched once another replica leads. If no replica in sync comes back, elect another"
            f" one with `barnabas topics elect {topic}:{index} --unclean`. If all have lost their logs, stop a broker,"
            f" delete {LOST_LOGS_FILE} in its first log directory, and start it: the log begins anew"
        )

    def _write_lost_logs(self) -> None:
        try:
            self._log_manager.write_lost_logs()
        except OSError as error:
            logger.warning("%s cannot be written: %s", LOST_LOGS_FILE, error)

    def _set_useless_aside(self, topic: str, index: int, topic_id: TopicId, told: LeaderAndIsrPartitionState) -> None:
        """Set aside a damaged log, or one of an earlier topic of the name, so that it is fetched anew, if no other
        broker relies on it: another broker leads, and this one is not in the ISR (PAR, FAST '18). Kafka truncates a
        damaged log at the damage.

        Raises: StorageError.
        """
        if self._is_counted_on(told):
            return
        if self._log_manager.is_damaged(topic, index):
            self._log_manager.set_aside(topic, index, "which is damaged and fetched anew,")
        else:
            self._set_stray_aside(topic, index, topic_id)

    async def let_go(self) -> None:
        """Stop hosting partitions that other brokers have by the metadata, which is complete: the StopReplica request
        was lost with a former controller, or sent while this broker was down. Otherwise this broker would go on leading
        in an old epoch, or keep fetching from a leader that does not know it.

        The logs are set aside: otherwise they would keep this broker from hosting a later topic of the name. Topics
        that are not in the metadata stay hosted: their znodes may have been removed by hand.
        """
        turns = Turns(LOGS_PER_TURN)
        for partition in self.partitions():
            known = self.metadata.partition(partition.topic, partition.index)
            if known is None or self.metadata.topic_id(partition.topic) != partition.topic_id:
                continue
            if self.node_id not in known.replicas:
                if self.fetchers is not None:
                    await self.fetchers.unfollow([(partition.topic_id, partition.index)])
                self._set_aside(partition.topic, partition.index, "which other brokers have now,")
            await turns.after_one()

    async def _set_unclaimed_aside(self, claimed: Collection[TopicPartition]) -> None:
        """Set aside the logs of partitions that this broker is not to host: their topics were deleted while it was
        down, or reassigned to other brokers. Once in the process's life, since it carries out later requests itself.

        Kafka with ZooKeeper keeps these logs under their names, and Kafka with KRaft does this at its start
        (`LogManager.isStrayKraftReplica`).
        """
        turns = Turns(LOGS_PER_TURN)
        for log in self._log_manager.logs:
            if (log.topic, log.partition) not in claimed:
                self._set_aside(log.topic, log.partition, "which the cluster does not know of,")
                await turns.after_one()

    def _set_aside(self, topic: str, index: int, reason: str) -> None:
        self._stop(topic, index, delete=False)
        try:
            self._log_manager.set_aside(topic, index, reason)
        except StorageError as error:
            logger.error("%s-%d stays where it is: %s", topic, index, error)

    def _tell_coordinators(self, partition: Partition, change: RoleChange) -> None:
        if change is RoleChange.ELECTED:
            self._on_elected(partition)
        elif change is RoleChange.RESIGNED:
            self._on_resigned(partition)

    def _set_stray_aside(self, topic: str, index: int, topic_id: TopicId) -> bool:
        """Set aside the log of an earlier topic of the same name that the controller does not know of: its znodes were
        removed by hand, or the metadata store was restored from a backup. Returns whether there was one.

        Raises: StorageError.
        """
        log = self._log_manager.get(topic, index)
        if log is None or log.topic_id in (ZERO_TOPIC_ID, topic_id):
            return False
        self._stop(topic, index, delete=False)
        self._log_manager.set_aside(topic, index, "which is of an earlier topic,")
        return True

    async def stop_replica(self, request: StopReplicaRequest) -> StopReplicaResponse:
        """Stop hosting partitions, and delete their logs if requested; `ControllerCommands` has checked the request.
        FENCED_LEADER_EPOCH, KAFKA_STORAGE_ERROR per partition."""
        response = StopReplicaResponse()
        turns = Turns(LOGS_PER_TURN)
        for topic in request.topic_states:
            for state in topic.partition_states:
                key = (topic.topic_name, state.partition_index)
                partition = self._partitions.get(key)
                if self.fetchers is not None and partition is not None and not partition.state.outlives(state):
                    await self.fetchers.unfollow([(partition.topic_id, partition.index)])
                error = self._stop_if_current(topic.topic_name, state)
                response.partition_errors.append(
                    StopReplicaPartitionError(
                        topic_name=topic.topic_name, partition_index=state.partition_index, error_code=error
                    )
                )
                await turns.after_one()
        try:
            # Before the controller forgets the topic: a log that came back later would belong to no topic.
            await self.threads.call(self._log_manager.sync_deletions)
        except StorageError as error:
            logger.error("deleted logs may come back: %s", error.message)
            response.error_code = error.error
        return response

    def _stop_if_current(self, topic: str, told: StopReplicaPartitionState) -> ErrorCode:
        partition = self._partitions.get((topic, told.partition_index))
        if partition is not None and partition.state.outlives(told):
            return ErrorCode.FENCED_LEADER_EPOCH
        return self._stop(topic, told.partition_index, told.delete_partition)

    def _stop(self, topic: str, index: int, delete: bool) -> ErrorCode:
        partition = self._partitions.pop((topic, index), None)
        if partition is not None:
            self._tell_coordinators(partition, partition.stop(self._error_of_absent(topic, index)))
        try:
            if delete:
                self._log_manager.delete(topic, index)
        except Exception as error:
            trace = None if isinstance(error, ApiError) else error
            logger.error("cannot delete %s-%d: %s", topic, index, error, exc_info=trace)
            return error.error if isinstance(error, ApiError) else ErrorCode.KAFKA_STORAGE_ERROR
        self._offline.discard((topic, index))
        return ErrorCode.NONE

    def reconfigure(self, topic: str) -> None:
        """Apply a topic's changed configuration to all of its hosted partitions."""
        self._reconfigure(partition for partition in self.partitions() if partition.topic == topic)

    def configure_unclaimed(self) -> None:
        """Apply their topics' settings to the logs that this broker does not host yet: retention applies to them as
        well. Until now they had the defaults."""
        for log in self._log_manager.logs:
            if self.hosted(log) is None:
                with self.set_aside_settings.attempt(log):
                    log.update_config(self._config_of(log.topic))

    def reconfigure_all(self) -> None:
        """The defaults of all topics have changed."""
        self._reconfigure(self.partitions())

    def _reconfigure(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            with self.set_aside_settings.attempt(partition.log):
                partition.log.update_config(self._config_of(partition.topic))
                if partition.leadership is not None:
                    partition.in_sync_replicas_changed()

    def delete_records(self, partition: Partition, offset: int) -> None:
        """Hide all records below `offset` from readers at once; whole segments below it leave the disk with the next
        retention run."""
        partition.log.increment_log_start_offset(offset)
        partition.notify()

    # --- followers --------------------------------------------------------------------------------

    async def look_at_isrs(self) -> None:
        """Propose to remove lagging replicas from the ISR. Due every half of `replica.lag.time.max.ms`."""
        if self.leaderships is None:
            return
        turns = Turns(LOGS_PER_TURN)
        for partition in self.set_aside_isrs.ready(self._partitions.values()):
            with self.set_aside_isrs.attempt(partition):
                if partition.leadership is not None:
                    partition.leadership.look_at_isr()
            await turns.after_one()

    def _follow_brokers(self) -> None:
        """Look at all ISRs when brokers have gone: a dead replica that had caught up, without being in sync, no longer
        holds back the high watermark, nor any dead replica the deletion of records."""
        before, self._live_brokers = self._live_brokers, frozenset(self.metadata.broker_ids())
        if self.leaderships is None or before <= self._live_brokers:
            return
        for partition in self.partitions():
            with self.set_aside_isrs.attempt(partition):
                if partition.leadership is not None:
                    partition.leadership.look_at_isr()

    # --- appending --------------------------------------------------------------------------------

    def append(
        self,
        topic: str,
        index: int,
        batch: WriteBuffer | None,
        acks: int,
        produce_version: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        validated: "Validated | None" = None,
        transaction_version: int = 0,
    ) -> tuple[Partition, LogAppendInfo]:
        """Append one batch (a writable buffer: offsets are patched in place; None is refused) as leader.
        `transaction_version` is for markers.

        Raises ApiError; ExpensiveBatch for a batch that `validate` has to check first, or again, because the topic has
        changed since.
        """
        partition = self._leader(topic, index, acks)
        if batch is None:
            raise ApiError(ErrorCode.INVALID_RECORD, "the request holds no records for the partition")
        if validated is not None and not validated.holds_for(partition.log):
            batch[:HEADER_SIZE] = validated.header
            raise ExpensiveBatch
        self.appended_bytes += len(batch)
        if self.appended_bytes > self._first_full_at and origin is AppendOrigin.CLIENT:
            self._check_room(partition)
        info = partition.log.append_as_leader(
            batch,
            leader_epoch=partition.state.leader_epoch,
            now_ms=self._clock.now_ms(),
            origin=origin,
            produce_version=produce_version,
            validated=None if validated is None else validated.result,
            transaction_version=transaction_version,
        )
        if not info.duplicate:
            partition.advance()
        if self._flush_before_ack and partition.log.recovery_point < partition.log.log_end_offset:
            self.flusher.flush_and_commit_soon(partition)
        return partition, info

    def limit_appends(self, full_at: Mapping[str, int]) -> None:
        """Refuse records from clients for a log directory once `appended_bytes` exceeds its number here."""
        self._full_at = dict(full_at)
        self._first_full_at = min(full_at.values(), default=_NEVER)

    def _check_room(self, partition: Partition) -> None:
        if self.appended_bytes > self._full_at.get(partition.log.directory.rpartition("/")[0], _NEVER):
            raise DiskFull(f"the disk of {partition} is full")

    def _leader(self, topic: str, index: int, acks: int) -> Partition:
        partition = self._partitions.get((topic, index)) or self.partition_or_error(topic, index)
        partition.state.check_leader()
        if acks == -1:
            partition.state.check_enough_replicas(partition.log.config.min_insync_replicas)
        return partition

    async def validate(self, topic: str, index: int, batch: bytearray, acks: int, produce_version: int) -> "Validated":
        """Open and check the records of a batch in a thread, for a later `append`; raises ApiError."""
        log = self._leader(topic, index, acks).log
        config, now_ms, header = log.config, self._clock.now_ms(), bytes(batch[:HEADER_SIZE])
        result = await self.read_records(
            partial(validate_produced_batch, batch, config, topic, now_ms, produce_version)
        )
        return Validated(result, log, config, header)

    def read_records(self, job: Callable[[], T]) -> "asyncio.Future[T]":
        """Run a job that opens many records in the thread for that; one job after the other."""
        return self._record_readers.call(job)

    def when_acknowledgeable(
        self, partition: Partition, info: LogAppendInfo, acks: int
    ) -> "asyncio.Future[None] | None":
        """The future that a producer's acknowledgement waits for; None when it may be sent now."""
        # flush.messages: Kafka flushes inside the append; here the acknowledgement waits for a flush in a thread.
        flush = asyncio.ensure_future(self.flusher.flush(partition.log)) if info.flush_required else None
        must_be_committed = acks == -1 or (self._flush_before_ack and acks != 0)
        committed = partition.committed(info.last_offset + 1) if must_be_committed else None
        if flush is None:
            return committed
        if committed is None:
            return flush
        return cast("asyncio.Future[None]", asyncio.gather(flush, committed))


def _partitions_of(request: LeaderAndIsrRequest) -> set[TopicPartition]:
    return {(t.topic_name, state.partition_index) for t in request.topic_states for state in t.partition_states}


class Validated(NamedTuple):
    """The result of validating a batch, valid for this log with these settings; `header` is the batch's original
    header."""

    result: ValidationResult
    log: PartitionLog
    config: LogConfig
    header: bytes

    def holds_for(self, log: PartitionLog) -> bool:
        return self.log is log and self.config is log.config
