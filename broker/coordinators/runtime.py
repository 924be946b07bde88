"""The part of a coordinator that manages its internal topic, the same for all: the shard of each key, and loading and
unloading of shards.

A partition of the topic that this broker leads is a shard: loaded from its log in a thread, then run by a ShardRunner.
Requests for a shard that is not here, or not loaded yet, fail at once: clients retry.

A new coordinator consists of a pure machine (a Shard), the encoding of its records, and a service for handlers. Source:
Kafka's CoordinatorRuntime.
"""

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import lru_cache
from operator import mul
from typing import Any, Final, Generic, TypeVar

from barnabas.broker.coordinators.log import CoordinatorLog
from barnabas.broker.coordinators.memory_budget import MemoryBudget
from barnabas.broker.coordinators.runner import LogRecord, ShardRunner
from barnabas.broker.coordinators.shard import Shard
from barnabas.clock import Clock
from barnabas.set_aside import SetAside
from barnabas.timers import ScheduledCall, Timers
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.names import ZERO_TOPIC_ID, TopicId
from barnabas.wire.record_batch import CompressionType

log = logging.getLogger(__name__)

LOAD_RETRY_DELAY_MS: Final = 1_000
LOAD_RETRY_DELAY_MS_MAX: Final = 10_000
"""The delay before a shard whose log was lost, or that could not be loaded, is loaded again; it doubles each time, up
to the maximum.
"""

REMEMBERED_LENGTH_MAX: Final = 256
"""The maximum length of ids of groups and transactions whose hash is cached."""

_POWERS_COUNT: Final = 1024
_POWERS: Final = tuple(pow(31, exponent, 1 << 32) for exponent in reversed(range(_POWERS_COUNT)))
"""The weights of the characters of a piece of text in its hash code; the last one has weight 1."""

RunnerType = TypeVar("RunnerType", bound=ShardRunner[Any, Any, Any])
AfterLoading = Callable[[RunnerType], Awaitable[None]]


class _Slot(Generic[RunnerType]):
    """A partition that this broker leads. `runner` is None until the shard is loaded. `afterwards` is the work that
    every shard has to do: each item runs once the shard is loaded, and stays here until it is done.
    """

    __slots__ = ("afterwards", "is_given_up", "leader_epoch", "retry", "runner")

    def __init__(self, leader_epoch: int) -> None:
        self.leader_epoch = leader_epoch
        self.runner: RunnerType | None = None
        self.afterwards: list[AfterLoading[RunnerType]] = []
        self.retry: ScheduledCall | None = None
        self.is_given_up = False


@dataclass(frozen=True, slots=True)
class CoordinatorDefinition(Generic[RunnerType]):
    """The differences between one coordinator and the others."""

    entities: str
    """The coordinated entities, for log lines: "groups"."""
    new_runner: Callable[[int, Callable[[], int], Any, Any], RunnerType]
    """The coordinator's class of ShardRunner."""
    new_shard: Callable[[], Shard[Any, Any, Any]]
    """Its class of Shard."""
    encode_record: Callable[[Any], LogRecord]
    """Encodes a record for the log."""
    held_bytes_max: int
    """The limit of memory of all shards, see MemoryBudget."""
    set_aside_events: SetAside[str]
    """The keys whose own events (timers, initial ones) raised, and are tried later."""
    follow_up: Callable[[RunnerType, str], None] = lambda _runner, _key: None
    """Called with a runner and a key when a decision that `is_followed_up` is committed."""
    on_new_epoch: Callable[[RunnerType], None] = lambda _runner: None
    """Called with a runner that continues under a new leader epoch."""
    compression: CompressionType = CompressionType.NONE
    """Of the batches in the log."""


class CoordinatorRuntime(Generic[RunnerType]):
    """The shards of one coordinator; owned by the event loop.

    Args:
        coordinator_log: the internal topic.
        partition_count: the topic's future number of partitions, until `on_topic` sets the actual one.
        settings: passed to every decision. May be replaced as a whole at any time.
    """

    def __init__(
        self,
        definition: CoordinatorDefinition[RunnerType],
        coordinator_log: CoordinatorLog,
        partition_count: int,
        timers: Timers,
        clock: Clock,
        settings: Any,
    ) -> None:
        self.is_active = False
        self.log = coordinator_log
        self.timers = timers
        self.clock = clock
        self.settings = settings
        self.encode_record = definition.encode_record
        self.follow_up = definition.follow_up
        self.compression = definition.compression
        self.set_aside_events = definition.set_aside_events
        self.listeners: set[Callable[[], None]] = set()
        """Called after every change of a shard."""
        self._definition = definition
        self._entities = entities = definition.entities
        self.memory = MemoryBudget(entities, definition.held_bytes_max, self._held_bytes, clock)
        self.set_aside = SetAside[str](
            f"loading {entities}",
            clock,
            first_delay_ms=LOAD_RETRY_DELAY_MS,
            longest_delay_ms=LOAD_RETRY_DELAY_MS_MAX,
        )
        self._topic_id = ZERO_TOPIC_ID
        self._partition_count = partition_count
        self._partition_count_told = partition_count
        self._slots: dict[int, _Slot[RunnerType]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start to serve requests. Shards come with `on_elected`, which may be called before."""
        self.is_active = True
        for partition, slot in self._slots.items():
            if slot.runner is not None:
                self.spawn(self._start(partition, slot.runner))

    async def stop(self) -> None:
        """Unload every shard; returns when no thread reads the log any more."""
        self.is_active = False
        for partition in list(self._slots):
            self.on_resigned(partition)
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def on_topic(self, topic_id: TopicId, partition_count: int) -> None:
        """The topic exists, with so many partitions.

        The partition of a key does not change while requests are served: the number of partitions at the start, or at
        the topic's creation, counts. If the topic gets more partitions, these count from the next start on
        (GroupCoordinatorService.startup), and the state of most keys is not found any more.
        """
        if topic_id != self._topic_id or not self.is_active:
            self._topic_id = topic_id
            self._partition_count = partition_count
        elif partition_count not in (self._partition_count, self._partition_count_told):
            log.warning(
                "The topic with the %s has %d partitions now instead of %d: from the next start on most %s will be "
                "looked for in other partitions than they are stored in",
                self._entities, partition_count, self._partition_count, self._entities,
            )  # fmt: skip
        self._partition_count_told = partition_count

    # Shards that come and go

    def on_elected(self, partition: int, leader_epoch: int) -> None:
        """Load a partition that this broker leads from `leader_epoch` on. A shard that is loaded, or loading, continues
        under the new epoch: no other broker wrote to it.
        """
        slot = self._slots.get(partition)
        if slot is not None:
            is_new = leader_epoch != slot.leader_epoch
            slot.leader_epoch = leader_epoch
            if is_new and slot.runner is not None and self.is_active:
                self._definition.on_new_epoch(slot.runner)
            return
        log.debug("Loading %s of partition %d, leader epoch %d", self._entities, partition, leader_epoch)
        slot = self._slots[partition] = _Slot(leader_epoch)
        self.spawn(self._load(partition, slot))

    def on_resigned(self, partition: int) -> None:
        """Unload a partition that this broker no longer leads. Waiting clients look up the new coordinator."""
        slot = self._slots.pop(partition, None)
        if slot is None:
            return
        slot.is_given_up = True
        self.set_aside.forget(f"partition {partition}")
        if slot.retry is not None:
            slot.retry.cancel()
        if slot.runner is not None:
            slot.runner.close(ApiError(ErrorCode.NOT_COORDINATOR))
            slot.runner = None  # breaks a reference cycle: the runner refers to the slot

    def on_lost(self, partition: int) -> None:
        """Load a shard again whose log failed in a way that leaves its content unknown."""
        lost = self._slots.get(partition)
        if lost is not None and lost.runner is not None:
            self.on_resigned(partition)
            slot = self._slots[partition] = _Slot(lost.leader_epoch)
            slot.afterwards = lost.afterwards  # an interrupted item may have been written only in part
            self._load_later(partition, slot, LOAD_RETRY_DELAY_MS)

    def _load_later(self, partition: int, slot: _Slot[RunnerType], delay_ms: int) -> None:
        slot.retry = self.timers.call_later(delay_ms, lambda: self.spawn(self._load(partition, slot)))

    async def _load(self, partition: int, slot: _Slot[RunnerType]) -> None:
        started_ms = self.clock.monotonic_ms()
        try:
            shard = await self._read(partition, slot)
        except Exception as error:  # noqa: BLE001 - an error in this log does not keep the others from loading
            if not slot.is_given_up:
                # An error of the partition explains itself; a bug needs its traceback.
                reason = str(error) if isinstance(error, ApiError) else ""
                self._load_later(partition, slot, self.set_aside.put(f"partition {partition}", error, reason=reason))
            return
        if slot.is_given_up:
            return
        for reason, count in shard.skipped.items():
            log.warning("%d records of partition %d, of %s, left out: %s", count, partition, self._entities, reason)
        level = logging.INFO if len(shard) else logging.DEBUG
        duration_ms = self.clock.monotonic_ms() - started_ms
        log.log(level, "Loaded %d %s of partition %d in %d ms", len(shard), self._entities, partition, duration_ms)
        slot.runner = self._definition.new_runner(partition, lambda: slot.leader_epoch, shard, self)
        self.memory.sum_up_again()
        self.set_aside.release(f"partition {partition}")
        if self.is_active:
            await self._start(partition, slot.runner)
        await self._tell(partition, slot)

    async def _start(self, partition: int, runner: RunnerType) -> None:
        with self.set_aside.attempt(f"starting partition {partition}"):
            await runner.start()

    async def _read(self, partition: int, slot: _Slot[RunnerType]) -> Shard[Any, Any, Any]:
        """Load the shard from its log."""
        shard = self._definition.new_shard()

        def take(chunk: bytes | bytearray | memoryview) -> bool:  # in a thread, which is the only user of the shard
            if slot.is_given_up:
                return False
            shard.load(chunk)
            return True

        await self.log.read_all(partition, take)
        return shard

    # The shards of keys

    def partition_for(self, key: str) -> int:
        """The partition of the topic that holds the key: a group id, a transactional id."""
        return abs_java_hash(key) % self._partition_count

    def runner(self, key: str) -> RunnerType:
        """The runner of a key's shard.

        Errors: ApiError, COORDINATOR_NOT_AVAILABLE (not started), NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS.
        """
        self.check_active()
        slot = self._slots.get(self.partition_for(key))
        if slot is None:
            raise ApiError(ErrorCode.NOT_COORDINATOR)
        if slot.runner is None:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return slot.runner

    def check_active(self) -> None:
        """Errors: ApiError COORDINATOR_NOT_AVAILABLE, if requests are not served yet."""
        if not self.is_active:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def runner_at(self, partition: int) -> RunnerType | None:
        """The runner of a partition, if it is loaded and requests are served."""
        slot = self._slots.get(partition)
        return slot.runner if slot is not None and self.is_active else None

    def runners(self) -> list[RunnerType]:
        """The runners of all loaded shards."""
        return [slot.runner for slot in self._slots.values() if slot.runner is not None]

    def all_runners(self) -> list[RunnerType]:
        """The runners of all shards, for lists.

        Errors: ApiError, COORDINATOR_NOT_AVAILABLE (not started); COORDINATOR_LOAD_IN_PROGRESS while any shard is
        loading: a shorter list would look complete.
        """
        self.check_active()
        runners = self.runners()
        if len(runners) < len(self._slots):
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return runners

    def _held_bytes(self) -> int:
        return sum(runner.shard.held_bytes for runner in self.runners())

    # Background work

    async def tell_all(self, act: AfterLoading[RunnerType]) -> None:
        """Call `act` with every shard, and with loading ones once they are loaded; more than once with a shard that is
        lost meanwhile."""
        slots = list(self._slots.items())
        for _, slot in slots:
            slot.afterwards.append(act)
        for partition, slot in slots:
            await self._tell(partition, slot)

    async def _tell(self, partition: int, slot: _Slot[RunnerType]) -> None:
        """Do a shard's remaining work, unless the shard is lost first: then the work continues after it is loaded
        again."""
        while slot.runner is not None and slot.afterwards:
            act = slot.afterwards[0]
            with self.set_aside.attempt(f"what follows for partition {partition}"):
                await act(slot.runner)
            if not slot.is_given_up and act in slot.afterwards:
                slot.afterwards.remove(act)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task until it ends, or the runtime does."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("Background work on %s failed", self._entities, exc_info=error)

    def running(self) -> "list[asyncio.Task[None]]":
        """The background tasks."""
        return list(self._tasks)


def abs_java_hash(text: str) -> int:
    """Java's String.hashCode without its sign (Utils.abs: the one value without a positive counterpart becomes 0)."""
    # Long names, which no real client has, are not cached: they would fill the memory.
    return _remembered_hash(text) if len(text) <= REMEMBERED_LENGTH_MAX else _abs_java_hash(text)


def weight_of(key: str) -> int:
    """The cost of hashing a key, for requests with many keys that let others run after a certain amount of work."""
    return 1 + len(key) // REMEMBERED_LENGTH_MAX


def _abs_java_hash(text: str) -> int:
    data, value = text.encode("utf-16-be", "surrogatepass"), 0
    units = struct.unpack(f">{len(data) // 2}H", data)
    for start in range(0, len(units), _POWERS_COUNT):
        piece = units[start : start + _POWERS_COUNT]
        powers = _POWERS[-len(piece) :]
        value = (value * 31 * powers[0] + sum(map(mul, piece, powers))) & 0xFFFFFFFF
    return 0 if value == 0x80000000 else min(value, 0x100000000 - value)


_remembered_hash = lru_cache(maxsize=4096)(_abs_java_hash)
