"""Reads records for one Fetch request: first what is available, then, if needed, again after a wait for more (Kafka's
ReplicaManager.readFromLog, DelayedFetch).

The first pass runs at once on the event loop. It completes the request when it found `min_bytes` or an error, or when
the client does not wait. Otherwise the operation listens to its partitions and keeps a running sum of the readable
bytes. It reads once more when the sum suffices or the wait is over.

In a fetch session both passes look only at the awake partitions (`attention.py`), and put those to rest in which they
find nothing.
"""

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from barnabas.broker.observability.unforeseen import UnforeseenErrors
from barnabas.broker.replication.attention import Attention
from barnabas.broker.replication.fetch_partition import FetchPartition
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.read_policy import ReadPolicy
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.broker.replication.waiting_fetches import FEW
from barnabas.clock import wait_s
from barnabas.storage.file_records import FileRegion
from barnabas.storage.files import Buffer
from barnabas.storage.log import PartitionLog
from barnabas.storage.segment_reader import ColdRead, FetchData
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.fetch import AbortedTransaction, EpochEndOffset, PartitionData
from barnabas.wire.names import ZERO_TOPIC_ID

Results = list[tuple[FetchPartition, PartitionData]]

UNKNOWN = -1

REGIONS_MAX = 64 if sys.platform == "linux" else 0
"""The number of partitions of one fetch whose batches stay in their files, since each takes a descriptor: slightly more
than Java's defaults request, 50 MiB with 1 MiB per partition. On other systems sendfile loses count when the socket is
full."""


LOADS_AHEAD_MAX = 3
"""The number of cold reads of one fetch that are loaded together with the one at which its pass stopped. Other fetches
have the other threads."""


@dataclass(slots=True)
class FetchLimits:
    """The limits of a fetch: bytes and time, and what `policy` shows of each log; with `or_follower` this broker need
    not be the leader (KIP-392). (Not frozen: one is created for every request, and frozen instances take longer to
    create.)"""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    policy: ReadPolicy
    or_follower: bool = False


class _Listening:
    """Looks at the partitions of a fetch whenever they change, until `enough` is done: the partitions of `asked_of`,
    and those of its session that wake meanwhile."""

    def __init__(
        self,
        asked_of: dict[Partition, FetchPartition],
        limits: FetchLimits,
        readable: Callable[[Partition, FetchPartition], int | None],
        attention: Attention | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.enough: asyncio.Future[None] = loop.create_future()
        self._attention = attention
        self._asked_of = asked_of
        self._min_bytes = limits.min_bytes
        self._readable = readable
        self._found = dict.fromkeys(asked_of, 0)
        self._total = 0
        # The client waits in real time: its connection's next request waits behind this one.
        self._timer = loop.call_later(wait_s(limits.max_wait_ms), self._end)
        self.enough.add_done_callback(self._stop)
        if attention is not None:
            attention.waiting[self._join] = None
        look = self._look
        try:
            for partition in asked_of:
                partition.add_listener(look)
                look(partition)  # the bytes that the pass found, fewer than needed
        except BaseException:
            self.enough.cancel()
            raise

    def _join(self, partition: Partition, asked: FetchPartition) -> None:
        self._asked_of[partition] = asked
        self._found[partition] = 0
        partition.add_listener(self._look)
        self._look(partition)

    def _look(self, partition: Partition) -> None:
        if self.enough.done():
            return
        try:
            size = self._readable(partition, self._asked_of[partition])
        except Exception:  # noqa: BLE001 - the read that follows reports it; the partition's writer must not fail
            size = None
        if size is not None:
            self._total += size - self._found[partition]
            self._found[partition] = size
        if size is None or self._total >= self._min_bytes:
            self._end()

    def _end(self) -> None:
        if not self.enough.done():
            self.enough.set_result(None)

    def _stop(self, _enough: asyncio.Future[None]) -> None:
        self._timer.cancel()
        look = self._look
        for partition in self._asked_of:
            partition.remove_listener(look)
        if self._attention is not None:
            self._attention.waiting.pop(self._join, None)


@dataclass(frozen=True, slots=True)
class _Load:
    """A cold read that a thread loads."""

    cold: ColdRead
    data: asyncio.Future[FetchData]


def _retrieve(load: asyncio.Future[FetchData]) -> None:
    """Take note of an error, so that asyncio does not log it."""
    if not load.cancelled():
        load.exception()


class FetchOperation:
    """A consumer's fetch of several partitions; lives until its response is built. `attention` belongs to its fetch
    session."""

    _counts = True
    """Whether the bytes and records read count in the topic's metrics."""

    def __init__(
        self,
        replicas: ReplicaManager,
        unforeseen: UnforeseenErrors,
        partitions: Sequence[FetchPartition],
        limits: FetchLimits,
        attention: Attention | None = None,
    ) -> None:
        self._attention = attention
        self._replicas = replicas
        self._unforeseen = unforeseen
        self._asked = partitions
        self._limits = limits
        self._max_offset = limits.policy.max_offset
        self.results: Results = []
        self._position = self._bytes_read = self._regions = 0
        self._bytes_left = limits.max_bytes
        self._must_reply = False

    # --- reading ----------------------------------------------------------------------------------

    def read_now(self) -> ColdRead | None:
        """Continue the pass over the partitions; stops at the first one whose bytes are not in memory and returns the
        read that must be loaded."""
        for asked in self._asked[self._position :]:
            try:
                partition, max_offset = self._locate(asked)
                log = partition.log
                if self._finds_nothing(asked, log, max_offset):
                    if asked.was_told(log.high_watermark, log.log_start_offset):
                        self._position += 1
                        if self._attention is not None:
                            self._found_nothing(asked, partition, max_offset, self._attention)
                    else:
                        self._add(asked, partition, b"", asked.fetch_offset)
                    continue
                if asked.last_fetched_epoch >= 0:
                    diverging = self._diverging_epoch(partition, asked)
                    if diverging is not None:
                        self._add(asked, partition, b"", asked.fetch_offset)
                        self.results[-1][1].diverging_epoch = diverging
                        self._must_reply = True
                        continue
                data = log.read(
                    asked.fetch_offset,
                    min(asked.max_bytes, self._bytes_left),
                    max_offset=max_offset,
                    min_one_message=not self._bytes_read,
                    may_stay_in_file=self._regions < REGIONS_MAX,
                )
                self._accept(asked, partition, data)
            except ColdRead as cold:
                return cold
            except Exception as error:  # noqa: BLE001 - one entry's error does not affect the others
                self._add_error(asked, error)
        return None

    def _finds_nothing(self, asked: FetchPartition, log: PartitionLog, max_offset: int) -> bool:
        """Whether a read would end without records and without an error, because there are no records or no room. Most
        partitions of a large fetch are like that."""
        is_at_end = asked.fetch_offset == max_offset
        return (
            (is_at_end or (self._bytes_read > 0 and not self._bytes_left))
            and log.log_start_offset <= asked.fetch_offset <= log.log_end_offset
            and asked.last_fetched_epoch < 0
            and log.failure is None
        )

    def _found_nothing(
        self, asked: FetchPartition, partition: Partition, max_offset: int, attention: Attention
    ) -> None:
        """Put a partition to rest that has nothing new; not in the first pass after a request named it, since a
        partition in which the reader is advancing is likely to change soon."""
        if asked.is_named:
            asked.is_named = False
        # Records beyond open transactions are readable with another isolation level, which each request sets anew.
        elif asked.fetch_offset == max_offset >= partition.log.high_watermark:
            attention.rest(asked, partition)

    def supply(self, cold: ColdRead, data: FetchData) -> None:
        """Take in the bytes of the partition at which the pass stopped. If the log has dropped some of its records
        meanwhile, its aborted transactions may be gone, too: then the bytes are discarded, and the pass reads that
        partition again.
        """
        asked = self._asked[self._position]
        try:
            partition, _ = self._locate(asked)
        except ApiError as error:
            self._add_error(asked, error)
        else:
            if partition.log.has_all_of(cold) and asked.fetch_offset >= partition.log.log_start_offset:
                self._accept(asked, partition, data)

    @property
    def is_satisfied(self) -> bool:
        limits = self._limits
        return (
            self._bytes_read >= limits.min_bytes
            or limits.max_wait_ms <= 0
            or (not self._asked and self._attention is None)
            or self._must_reply
        )

    def read_again(self) -> ColdRead | None:
        """The second pass, after the wait: as `read_now`. It completes the request in any case."""
        if self._attention is not None:
            self._asked = self._attention.awake()
        self.results = []
        self._position = self._bytes_read = self._regions = 0
        self._bytes_left = self._limits.max_bytes
        self._must_reply = False
        return self.read_now()

    async def run(self, cold: ColdRead | None) -> None:
        """The rest of a fetch whose first pass stopped at `cold`."""
        await self.finish_pass(cold)
        if not self.is_satisfied:
            await self.listen()
            await self.finish_pass(self.read_again())

    async def finish_pass(self, cold: ColdRead | None) -> None:
        """Load the cold read at which a pass stopped, and continue the pass."""
        loads: dict[int, _Load] = {}
        while cold is not None:
            try:
                self.supply(*await self._load(cold, loads))
            except Exception as error:  # noqa: BLE001 - one entry's error does not affect the others
                self._add_error(self._asked[self._position], error)
            cold = self.read_now()

    async def _load(self, cold: ColdRead, loads: dict[int, "_Load"]) -> tuple[ColdRead, FetchData]:
        """Load a cold read, together with those of the next partitions (`loads`, by position)."""
        load = loads.pop(self._position, None)
        if load is not None:
            data = await load.data
            if data.records:
                return load.cold, data
        if load is None and not loads:
            for position, ahead in self._cold_reads_ahead():
                loads[position] = load = _Load(ahead, self._replicas.threads.call(ahead.load))
                load.data.add_done_callback(_retrieve)  # the fetch may be over by then
        return cold, await self._replicas.threads.call(cold.load)

    def _cold_reads_ahead(self) -> Iterator[tuple[int, ColdRead]]:
        """The cold reads of the next partitions, each with its position. Kafka loads one partition at a time, because
        the bytes of the partitions before it limit how many it may return. Here partitions are loaded at the same time
        if there is room for all that each of them may return."""
        bytes_left = self._bytes_left - self._asked[self._position].max_bytes
        next_position = self._position + 1
        for position, asked in enumerate(self._asked[next_position : next_position + LOADS_AHEAD_MAX], next_position):
            if bytes_left < asked.max_bytes:
                return
            bytes_left -= asked.max_bytes
            try:
                partition, max_offset = self._locate(asked)
                log, offset = partition.log, asked.fetch_offset
                if log.read(offset, asked.max_bytes, max_offset=max_offset, min_one_message=False).records:
                    return  # the next ones are likely to be in memory, too
            except ColdRead as cold:
                yield position, cold
            except Exception:  # noqa: BLE001 - the pass finds it again
                return

    def _locate(self, asked: FetchPartition) -> tuple[Partition, int]:
        """The hosted partition and the offset that readers may not pass; raises ApiError."""
        if asked.topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
        partition = self._replicas.partition_or_error(asked.topic, asked.partition)
        if asked.topic_id not in (ZERO_TOPIC_ID, partition.topic_id):
            raise ApiError(ErrorCode.INCONSISTENT_TOPIC_ID)
        if not partition.state.leads(asked.current_leader_epoch):
            self._check_follower(partition)
        return partition, self._max_offset(partition.log)

    def _check_follower(self, partition: Partition) -> None:
        """Check whether consumers may read a partition here that another broker leads. Raises ApiError
        NOT_LEADER_OR_FOLLOWER."""
        if not self._limits.or_follower:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        fetchers = self._replicas.fetchers
        if fetchers is not None and fetchers.following(partition.topic_id, partition.index) is not None:
            fetchers.reads.add(partition)

    @staticmethod
    def _diverging_epoch(partition: Partition, asked: FetchPartition) -> EpochEndOffset | None:
        """The point at which the fetcher's log diverges from this one, if it does (KIP-595), by the last epoch that the
        fetcher sent."""
        epoch, end_offset = partition.log.end_offset_for_epoch(asked.last_fetched_epoch)
        if epoch < 0 or end_offset < 0 or asked.fetch_offset < partition.log.log_start_offset:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if epoch < asked.last_fetched_epoch or end_offset < asked.fetch_offset:
            return EpochEndOffset(epoch=epoch, end_offset=end_offset)
        return None

    def _accept(self, asked: FetchPartition, partition: Partition, data: FetchData) -> None:
        records: Buffer | FileRegion = data.records
        if data.region is not None:
            records = data.region
            self._regions += 1
        size = taken = len(records)
        if size and data.is_cut:
            # Kafka sends a part of the batch that does not fit, too, so that such a partition uses up its whole
            # allowance. If only whole batches counted, the pass would search all other partitions for a batch that fits
            # into the little room that is left.
            taken = max(size, min(asked.max_bytes, self._bytes_left))
        self._add(asked, partition, records, data.next_offset)  # may raise: bytes that are not sent do not count
        if self._counts:
            partition.bytes_out += size
            if data.region is None or not data.region.counts_itself:
                partition.records_read += data.next_offset - asked.fetch_offset
        self._bytes_read += size
        self._bytes_left = max(0, self._bytes_left - taken)

    def _add(self, asked: FetchPartition, partition: Partition, records: Buffer | FileRegion, next_offset: int) -> None:
        log = partition.log
        data = PartitionData(
            partition_index=asked.partition,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            aborted_transactions=None,
            records=records,
        )
        if self._limits.policy.tells_aborted:
            upper_offset = next_offset if next_offset >= 0 else log.last_stable_offset
            data.aborted_transactions = [
                AbortedTransaction(producer_id=producer_id, first_offset=first_offset)
                for producer_id, first_offset in log.aborted_transactions(asked.fetch_offset, upper_offset)
            ]
        self._position += 1
        self.results.append((asked, data))

    def _add_error(self, asked: FetchPartition, error: Exception) -> None:
        refusal = self._unforeseen.refusal(error, asked.topic or "", asked.partition)
        self._must_reply = True
        self._position += 1
        self.results.append((asked, error_data(asked.partition, refusal.error)))

    # --- waiting ----------------------------------------------------------------------------------

    def listen(self) -> asyncio.Future[None]:
        """Listen to the partitions. The future is done when enough bytes have become readable since the pass, when a
        change requires a response, or when `max_wait_ms` have passed; cancelling it ends the listening."""
        hosted = self._replicas.partition
        # Partitions that woke during a read from disk were not looked at by the pass; partitions that the pass put to
        # rest report their own changes.
        look_at = self._asked if self._attention is None else self._attention.awake()
        asked_of = {
            partition: asked
            for asked in look_at
            if asked.topic is not None and (partition := hosted(asked.topic, asked.partition)) is not None
        }
        enough = _Listening(asked_of, self._limits, self._readable, self._attention).enough
        if len(asked_of) > FEW:
            self.results = []  # the second pass reads the results of the first again; they are not kept meanwhile
            self._replicas.waiting_fetches.enter(enough, len(asked_of))
        return enough

    def _readable(self, partition: Partition, asked: FetchPartition) -> int | None:
        """The number of bytes that a read would return now, at most the number waited for; None when the read would end
        in an error."""
        state = partition.state
        if asked.current_leader_epoch not in (-1, state.leader_epoch):
            return None
        if not state.is_leader and not (self._limits.or_follower and self._is_hosted(partition)):
            return None
        log = partition.log
        if not log.log_start_offset <= asked.fetch_offset <= log.log_end_offset:
            return None
        limit = min(asked.max_bytes, self._limits.min_bytes)
        return log.readable_bytes(asked.fetch_offset, self._max_offset(log), limit)

    def _is_hosted(self, partition: Partition) -> bool:
        return self._replicas.partition(partition.topic, partition.index) is partition


_NOT_READ = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
)
"""Kafka lists no aborted transactions for these errors, which come before a read, and has null for other errors."""


def error_data(partition: int, error: ErrorCode) -> PartitionData:
    """The response for a partition that cannot be read: every offset unknown, records empty (not null: librdkafka
    rejects null)."""
    return PartitionData(
        partition_index=partition,
        error_code=error,
        high_watermark=UNKNOWN,
        last_stable_offset=UNKNOWN,
        log_start_offset=UNKNOWN,
        aborted_transactions=[] if error in _NOT_READ else None,
        records=b"",
    )
