"""What every coordinator of this broker does with its internal topic: which shard serves a key, and how shards come and
go.

A partition of the topic that this broker leads is a shard: loaded from its log in a thread, then run by a runner of the
coordinator's own kind. Requests for a shard that is not here, or not loaded yet, fail at once: clients ask again.
Source: Kafka's CoordinatorRuntime.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import lru_cache
from typing import Any, Final, Generic, Protocol, TypeVar

from barnabas.broker.timers import TimerHandle, Timers
from barnabas.clock import Clock
from barnabas.set_aside import SetAside
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.names import ZERO_TOPIC_ID, TopicId

log = logging.getLogger(__name__)

LOAD_RETRY_DELAY_MS: Final = 1_000
"""A shard that could not be loaded, or that was lost to its log, is loaded again after this time."""


class CoordinatorLog(Protocol):
    """An internal topic as its coordinator sees it."""

    def append(self, partition: int, batch: bytearray, transaction_version: int = 0) -> int:
        """Append one batch and return the end offset after it; `transaction_version` is for markers.

        Errors: ApiError; NOT_COORDINATOR when it is unknown what was written or this broker may not write any more,
        any other error when nothing was.
        """
        ...

    def committed(self, partition: int, end_offset: int) -> "asyncio.Future[None] | None":
        """None when everything below `end_offset` is committed, else a future that ends when it is, however late, or
        fails with ApiError when leadership or the log is lost.
        """
        ...

    def read_all(self, partition: int) -> Iterator[bytes | bytearray | memoryview]:
        """Chunks of whole batches from the log's start to its end; blocks, so it runs in a thread."""
        ...


class Shard(Protocol):
    """One partition in memory; its length is the number of what it coordinates."""

    @property
    def skipped(self) -> Counter[str]:
        """What loading left out, by reason."""
        ...

    def load(self, chunk: bytes | bytearray | memoryview) -> None:
        """Apply whole batches as the log holds them."""
        ...

    def __len__(self) -> int: ...


class Runner(Protocol):
    """Runs a shard from `start`, when it is loaded and requests are served, until `close`."""

    def start(self) -> None: ...

    def close(self, error: ApiError) -> None:
        """Stop: whoever waits gets the error."""
        ...


ShardType = TypeVar("ShardType", bound=Shard)
RunnerType = TypeVar("RunnerType", bound=Runner)
AfterLoading = Callable[[RunnerType], Awaitable[None]]


class _Slot(Generic[RunnerType]):
    """A partition that this broker leads. `runner` is None until the shard is loaded. `afterwards` is what every shard
    is told: each has its turn when the shard is loaded, and stays here until it is done.
    """

    __slots__ = ("afterwards", "is_given_up", "leader_epoch", "retry", "runner")

    def __init__(self, leader_epoch: int) -> None:
        self.leader_epoch = leader_epoch
        self.runner: RunnerType | None = None
        self.afterwards: list[AfterLoading[RunnerType]] = []
        self.retry: TimerHandle | None = None
        self.is_given_up = False


class CoordinatorRuntime(Generic[ShardType, RunnerType]):
    """The shards of one coordinator; owned by the event loop.

    `partition_count` is how many partitions the topic will have, until `on_topic` tells how many it has.
    `new_runner(partition, leader_epoch, shard)` takes a loaded shard; `leader_epoch()` is that of the partition, now.
    `entities` names what is coordinated, for log lines.
    """

    def __init__(
        self,
        entities: str,
        coordinator_log: CoordinatorLog,
        partition_count: int,
        timers: Timers,
        clock: Clock,
        new_shard: Callable[[], ShardType],
        new_runner: Callable[[int, Callable[[], int], ShardType], RunnerType],
    ) -> None:
        self.is_active = False
        self._topic_id = ZERO_TOPIC_ID
        self._partition_count = partition_count
        self._partition_count_told = partition_count
        self._entities = entities
        self._log = coordinator_log
        self._timers = timers
        self._clock = clock
        self._new_shard = new_shard
        self._new_runner = new_runner
        self._slots: dict[int, _Slot[RunnerType]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.set_aside = SetAside[str](f"loading {entities}", clock, first_delay_ms=LOAD_RETRY_DELAY_MS)

    def start(self) -> None:
        """Serve requests from now on. Shards come with `on_elected`, which may be called before."""
        self.is_active = True
        for partition, slot in self._slots.items():
            self._start_runner(partition, slot)

    async def stop(self) -> None:
        """Let go of every shard; returns when no thread reads the log any more."""
        self.is_active = False
        for partition in list(self._slots):
            self.on_resigned(partition)
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def on_topic(self, topic_id: TopicId, partition_count: int) -> None:
        """The topic exists, with so many partitions.

        Keys stay where they are while they are served: what the topic had at the start counts, or what it was made
        with. If it gets more partitions, that is from the next start on (GroupCoordinatorService.startup), and what is
        stored under most keys is not found any more.
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
        """This broker leads the partition from `leader_epoch` on: load it. A shard that is here, or on its way, goes on
        under the new epoch: nobody else wrote to it.
        """
        slot = self._slots.get(partition)
        if slot is not None:
            slot.leader_epoch = leader_epoch
            return
        log.debug("Loading %s of partition %d, leader epoch %d", self._entities, partition, leader_epoch)
        slot = self._slots[partition] = _Slot(leader_epoch)
        self.spawn(self._load(partition, slot))

    def on_resigned(self, partition: int) -> None:
        """Another broker leads the partition, or none does: forget it. Waiting clients look for their new
        coordinator.
        """
        slot = self._slots.pop(partition, None)
        if slot is None:
            return
        slot.is_given_up = True
        if slot.retry is not None:
            slot.retry.cancel()
        if slot.runner is not None:
            slot.runner.close(ApiError(ErrorCode.NOT_COORDINATOR))
            slot.runner = None  # it knows the slot

    def on_lost(self, partition: int) -> None:
        """The log failed in a way that leaves open what it holds: start over from what it does hold."""
        lost = self._slots.get(partition)
        if lost is not None and lost.runner is not None:
            self.on_resigned(partition)
            slot = self._slots[partition] = _Slot(lost.leader_epoch)
            slot.afterwards = lost.afterwards  # what it was being told may be written only in part
            self._load_later(partition, slot)

    def _load_later(self, partition: int, slot: _Slot[RunnerType]) -> None:
        slot.retry = self._timers.call_later(LOAD_RETRY_DELAY_MS, lambda: self.spawn(self._load(partition, slot)))

    async def _load(self, partition: int, slot: _Slot[RunnerType]) -> None:
        started_ms = self._clock.monotonic_ms()
        try:
            shard = await asyncio.to_thread(self._read, partition, slot)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with this log, the others must load
            # What the partition said is enough of a reason; a mistake of ours needs its traceback.
            self.set_aside.put(
                f"partition {partition}", error, reason=str(error) if isinstance(error, ApiError) else ""
            )
            if not slot.is_given_up:
                self._load_later(partition, slot)
            return
        if slot.is_given_up:
            return
        for reason, count in shard.skipped.items():
            log.warning("%d records of partition %d, of %s, left out: %s", count, partition, self._entities, reason)
        level = logging.INFO if len(shard) else logging.DEBUG
        duration_ms = self._clock.monotonic_ms() - started_ms
        log.log(level, "Loaded %d %s of partition %d in %d ms", len(shard), self._entities, partition, duration_ms)
        slot.runner = self._new_runner(partition, lambda: slot.leader_epoch, shard)
        self.set_aside.release(f"partition {partition}")
        if self.is_active:
            self._start_runner(partition, slot)
        await self._tell(partition, slot)

    def _start_runner(self, partition: int, slot: _Slot[RunnerType]) -> None:
        if slot.runner is not None:
            with self.set_aside.attempt(f"starting partition {partition}"):
                slot.runner.start()

    def _read(self, partition: int, slot: _Slot[RunnerType]) -> ShardType:
        """Build the shard from its log. Runs in a thread; touches nothing else but `is_given_up`."""
        shard = self._new_shard()
        for chunk in self._log.read_all(partition):
            if slot.is_given_up:
                break
            shard.load(chunk)
        return shard

    # Who serves what

    def partition_for(self, key: str) -> int:
        """The partition of the topic that holds the key: a group id, a transactional id."""
        return abs_java_hash(key) % self._partition_count

    def runner(self, key: str) -> RunnerType:
        """Who serves a key.

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
        """Errors: ApiError COORDINATOR_NOT_AVAILABLE, if requests are not served."""
        if not self.is_active:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def runner_at(self, partition: int) -> RunnerType | None:
        """Who serves a partition, if it is loaded and requests are served."""
        slot = self._slots.get(partition)
        return slot.runner if slot is not None and self.is_active else None

    def runners(self) -> list[RunnerType]:
        """Of all shards that are loaded."""
        return [slot.runner for slot in self._slots.values() if slot.runner is not None]

    def all_runners(self) -> list[RunnerType]:
        """Of all shards, for lists.

        Errors: ApiError, COORDINATOR_NOT_AVAILABLE (not started); COORDINATOR_LOAD_IN_PROGRESS while any shard loads: a
        shorter list would look complete.
        """
        self.check_active()
        runners = self.runners()
        if len(runners) < len(self._slots):
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return runners

    # Background work

    async def tell_all(self, act: AfterLoading[RunnerType]) -> None:
        """Have `act` done with every shard, and with those on their way when they are loaded; more than once with one
        that is lost meanwhile."""
        slots = list(self._slots.items())
        for _, slot in slots:
            slot.afterwards.append(act)
        for partition, slot in slots:
            await self._tell(partition, slot)

    async def _tell(self, partition: int, slot: _Slot[RunnerType]) -> None:
        """Do what is left to be done with a shard, unless it is lost first: then that waits for its next life."""
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
        """Background work that is under way."""
        return list(self._tasks)


@lru_cache(maxsize=4096)
def abs_java_hash(text: str) -> int:
    """Java's String.hashCode without its sign (Utils.abs: the one value without a positive twin becomes 0)."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(units), 2):
        value = (value * 31 + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    signed = value - 0x100000000 if value & 0x80000000 else value
    return 0 if signed == -0x80000000 else abs(signed)
