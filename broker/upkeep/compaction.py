"""Compaction of this broker's logs: selects the dirtiest one, has it cleaned, and swaps the result in.

Plans and swaps run on the event loop. The pass itself opens every record, which in this process would delay requests
even in small slices: large passes run in a process of their own at the lowest priority, small ones in a thread that
sleeps more than it works (decision 6).
"""

import contextlib
import logging
import subprocess
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Final

from barnabas.broker.configuration.config import BrokerConfig
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.broker.upkeep.cleaner_process import Throttle, command, decode_result, encode_job
from barnabas.broker.upkeep.segment_times import times_of_logs
from barnabas.clock import Clock
from barnabas.set_aside import SetAside
from barnabas.storage.compaction.cleaner import CleanedSegment, CleaningJob, PassEnd, remove_cleaned_files, run_pass
from barnabas.storage.compaction.cleaner_manager import (
    LogToClean,
    SegmentSwap,
    describe_failure,
    dirtiest,
    log_to_clean,
    make_job,
    times_for_cleaning,
)
from barnabas.storage.errors import CorruptFile, CorruptLog, StorageError, is_passing
from barnabas.storage.log import PartitionLog
from barnabas.storage.log_manager import LogManager
from barnabas.wire.record_bodies import DEFAULT_MAX_DECOMPRESSED_BYTES

logger = logging.getLogger(__name__)

_THREAD_BYTES_MAX: Final = 4 << 20
"""Passes over at most this many bytes run in a thread: starting a process would cost as much."""
_SLICE_S: Final = 0.0005
_REST_MS: Final = 2


@dataclass(slots=True)
class CompactionCounts:
    """The totals of compaction since the start."""

    passes: int = 0
    bytes_read: int = 0
    bytes_written: int = 0


class Compaction:
    """Compacts the logs of a broker, one at a time.

    A log that cannot be cleaned is set aside (Kafka: `LogCleanerManager.markPartitionUncleanable`); it remains in
    service, and the others are cleaned. After a damaged batch or a failure of the disk that lasts until the next start.
    After any other error (a full disk, a process that was killed, an unexpected exception), the pass is repeated, each
    time after twice as long, up to an hour.
    """

    def __init__(
        self,
        replicas: ReplicaManager,
        clock: Clock,
        log_manager: LogManager,
        config: BrokerConfig,
        work_s: Callable[[], float],
        interpreter: str,
    ) -> None:
        self._replicas = replicas
        self._clock = clock
        self._log_manager = log_manager
        self._files = log_manager.files
        self._threads = log_manager.threads
        self._config = config
        self._work_s = work_s
        self._interpreter = interpreter
        self.set_aside = SetAside[PartitionLog](
            "compaction", clock, first_delay_ms=max(config.log_cleaner_backoff_ms, 1)
        )
        self._unopened: set[PartitionLog] = set()
        self._stopping = False
        self._process: subprocess.Popen[bytes] | None = None
        self.counts = CompactionCounts()

    def set_backoff_ms(self, backoff_ms: int) -> None:
        """Set how long a log is skipped that is set aside from now on."""
        self.set_aside.first_delay_ms = max(backoff_ms, 1)

    async def run(self) -> None:
        """Clean logs as long as one is dirty enough."""
        disturbed: set[PartitionLog] = set()
        while not self._stopping:
            to_clean = dirtiest(found for found in await self._candidates() if found.log not in disturbed)
            if to_clean is None:
                return
            if not await self._clean(to_clean):
                disturbed.add(to_clean.log)

    def stop(self) -> None:
        """Cancel a pass that is in progress."""
        self._stopping = True
        if self._process is not None:
            self._process.kill()

    def _logs(self) -> list[PartitionLog]:
        return [partition.log for partition in self._replicas.partitions()]

    async def _candidates(self) -> list[LogToClean]:
        """The logs that can be compacted; the event loop has turns in between, so that some may be gone at the end."""
        now_ms = self._clock.now_ms()
        compacted = [log for log in self.set_aside.ready(self._logs()) if log.config.is_compacted]
        found = []
        async for log, times in times_of_logs(
            compacted,
            lambda log: times_for_cleaning(log, log.clean_offset, now_ms),
            lambda: self._stopping,
            self._threads,
        ):
            try:
                if times.error is not None:
                    raise times.error
                to_clean = log_to_clean(log, log.clean_offset, now_ms, times)
            except Exception as error:  # noqa: BLE001 - an error in this log does not affect the others
                if log.failure is None:
                    self._leave_alone(log, error)
                continue
            if to_clean is not None:
                found.append(to_clean)
        return [to_clean for to_clean in found if to_clean.log.failure is None]

    def _leave_alone(self, log: PartitionLog, error: Exception) -> None:
        """Set a log aside, until the next start if a retry might do harm or cannot help, else for a while."""
        if self._stopping:
            return
        # A missing file is no error of the disk: retention, or another swap, may have renamed it between the plan and
        # the read.
        is_final = isinstance(error, CorruptLog) or (
            isinstance(error, OSError) and not is_passing(error) and not isinstance(error, FileNotFoundError)
        )
        reason = describe_failure(error) if isinstance(error, (StorageError, OSError)) else ""
        self.set_aside.put(log, error, reason=reason, is_final=is_final)

    async def _clean(self, to_clean: LogToClean) -> bool:
        """Run one pass over a log; returns whether it was completed. If not, the log is as good as before."""
        log, cut_count = to_clean.log, to_clean.log.cut_count
        try:
            job = self._job(to_clean)
        except Exception as error:  # noqa: BLE001 - as in `_candidates`
            self._leave_alone(log, error)
            return False
        is_complete = False
        try:
            if log.clean_offset is None:
                await self._threads.call(self._log_manager.checkpoint_clean_offset, log, job.first_dirty_offset)
            async with contextlib.aclosing(self._results(job)) as results:
                async for result in results:
                    if self._stopping or not await self._take(log, cut_count, job, result):
                        break
                    is_complete = isinstance(result, PassEnd)
        except FileNotFoundError as error:
            # Retention or a deletion of the topic has removed the files; other causes are unexpected.
            if log.failure is None and log.directory == job.directory and _has_all(log, job):
                self._leave_alone(log, error)
        except Exception as error:  # noqa: BLE001 - as in `_candidates`
            # otherwise it was deleted, and the files read belong to a new topic of its name
            if log.directory == job.directory:
                self._leave_alone(log, error)
        if not is_complete and log.failure is None:
            with contextlib.suppress(OSError):
                await self._threads.call(remove_cleaned_files, self._files, job.directory)
        return is_complete

    def _job(self, to_clean: LogToClean) -> CleaningJob:
        config = self._config
        return make_job(
            to_clean,
            self._clock.now_ms(),
            map_bytes=config.log_cleaner_dedupe_buffer_size,
            map_load_factor=config.log_cleaner_io_buffer_load_factor,
        )

    async def _take(
        self, log: PartitionLog, cut_count: int, job: CleaningJob, result: CleanedSegment | PassEnd
    ) -> bool:
        """Apply one result of a pass; returns whether the pass is to go on."""
        if log.cut_count != cut_count:
            return False  # a follower's log was truncated meanwhile: the pass read other batches
        if isinstance(result, PassEnd):
            if result.end_offset <= job.first_dirty_offset:
                raise StorageError("the map of keys is too small (log.cleaner.dedupe.buffer.size)")
            self.counts.passes += 1
            self.counts.bytes_read += result.bytes_read
            self.counts.bytes_written += result.bytes_written
            logger.info("%s-%d: compacted up to offset %d, %d of %d records stay", log.topic, log.partition,
                        result.end_offset, result.records_kept, result.records_read)  # fmt: skip
            if result.batches_unopened and log not in self._unopened:
                self._unopened.add(log)
                logger.warning("%s-%d: %d batches that cannot be decompressed to at most %d MiB stay as they are",
                               log.topic, log.partition, result.batches_unopened,
                               DEFAULT_MAX_DECOMPRESSED_BYTES >> 20)  # fmt: skip
            self.set_aside.release(log)
            await self._threads.call(self._log_manager.checkpoint_clean_offset, log, result.end_offset, cut_count)
            return True
        swap = SegmentSwap(log, job, result)
        if not swap.begin():
            return False
        await self._threads.call(swap.sync)
        return swap.finish()

    # --- places of passes

    def _results(self, job: CleaningJob) -> AsyncGenerator[CleanedSegment | PassEnd, None]:
        if self._files.is_shared and sum(segment.size for segment in job.segments) > _THREAD_BYTES_MAX:
            return self._run_in_process(job)
        return self._run_in_thread(job)

    async def _run_in_thread(self, job: CleaningJob) -> AsyncGenerator[CleanedSegment | PassEnd, None]:
        throttle = Throttle(self._config.log_cleaner_io_max_bytes_per_second, lambda: self._stopping)
        started_s = self._work_s()

        def pause(count: int) -> None:
            nonlocal started_s
            throttle.pause(count)
            if self._stopping:
                raise StorageError("the broker stops")
            if self._work_s() - started_s > _SLICE_S:
                self._threads.pause(_REST_MS)
                started_s = self._work_s()

        results = run_pass(self._files, job, pause)
        while True:
            try:
                result = await self._threads.call(next, results, None)
            except (CorruptFile, MemoryError) as error:
                raise StorageError(str(error) or "no memory") from None
            if result is None:
                return
            yield result

    async def _run_in_process(self, job: CleaningJob) -> AsyncGenerator[CleanedSegment | PassEnd, None]:
        """The event loop may run in any thread, so a thread that waits for the process is simpler than asyncio's own
        way."""
        order = encode_job(
            job,
            is_durable=self._files.is_durable,
            max_bytes_per_second=self._config.log_cleaner_io_max_bytes_per_second,
        )
        waiter = self._threads.workers("compaction", 1)
        try:
            process = await waiter.call(_start_process, self._interpreter, order)
        except OSError:
            await waiter.stop()
            raise
        assert process.stdout is not None
        self._process = process
        if self._stopping:  # during its start, when `stop` could not kill it
            process.kill()
        try:
            while True:
                result = decode_result(await waiter.call(process.stdout.readline))
                yield result
                if isinstance(result, PassEnd):
                    return
        finally:
            self._process = None
            process.kill()
            await waiter.call(process.communicate)
            await waiter.stop()


def _start_process(interpreter: str, order: bytes) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(command(interpreter), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    # A process that ends too early is noticed when the result is read.
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(order)
        process.stdin.flush()
    return process


def _has_all(log: PartitionLog, job: CleaningJob) -> bool:
    paths = {segment.file.path for segment in log.segments}
    return all(segment.path in paths for segment in job.segments)
