"""Flushes the logs of hosted partitions, in threads: for callers that wait, after every append with
`barnabas.flush.before.ack`, and by time."""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator
from typing import Final

from barnabas.broker.replication.partition import Partition
from barnabas.clock import Clock
from barnabas.set_aside import SetAside
from barnabas.storage.errors import LogBusy, LogDeleted, StorageError
from barnabas.storage.log import PartitionLog
from barnabas.threads import Threads

logger = logging.getLogger(__name__)

FLUSHES_PER_DIRECTORY: Final = 4
"""The number of flushes by time that run in each log directory, which is a disk. With several, a log whose sync takes
long delays no other log, and parallel syncs share the journal's commits. Not more, since each takes one of the threads
that cold reads need, too."""


class Flusher:
    """The flushes of one broker's logs; owned by the event loop.

    `logs_to_flush(now_ms)` returns the logs that are due; `hosted` finds the partition of a log, None for a log that
    this broker does not host. With `flush_before_ack` a flush commits the records that it has flushed.
    """

    def __init__(
        self,
        clock: Clock,
        threads: Threads,
        logs_to_flush: Callable[[int], Collection[PartitionLog]],
        hosted: Callable[[PartitionLog], Partition | None],
        *,
        flush_before_ack: bool = False,
    ) -> None:
        self._clock = clock
        self._threads = threads
        self._logs_to_flush = logs_to_flush
        self._hosted = hosted
        self._flush_before_ack = flush_before_ack
        self._flushes: dict[PartitionLog, asyncio.Future[None]] = {}
        self._committing: dict[Partition, asyncio.Future[None]] = {}
        self._by_directory: dict[str, set[asyncio.Task[None]]] = {}
        self._is_stopping = False
        self.set_aside = SetAside[PartitionLog]("flushing", clock, first_delay_ms=1_000)

    # --- callers that wait ------------------------------------------------------------------------

    async def flush(self, log: PartitionLog) -> None:
        """Flush all records that are in a log now; callers that arrive before a flush starts share it.

        Raises:
            StorageError (KAFKA_STORAGE_ERROR): it failed. If a sync failed, that is final, and the log is offline; if
                descriptors or room were lacking, `flush_due` tries again.
            LogDeleted: the log was deleted, before or meanwhile.
        """
        end_offset = log.log_end_offset
        while True:
            running = self._flushes.get(log)
            if running is None:
                running = self._flushes[log] = asyncio.ensure_future(self._flush_once(log))
            await asyncio.shield(running)
            if log.recovery_point >= min(end_offset, log.log_end_offset):
                return

    async def _flush_once(self, log: PartitionLog, *, includes_active_segment: bool = True) -> None:
        try:
            task = log.prepare_flush(includes_active_segment=includes_active_segment)
            if task is not None:
                try:
                    await self._threads.call(task.run)
                except RuntimeError as error:  # no thread could be started
                    task.give_up(f"flushing {log.directory} failed: {error}")
                log.complete_flush(task)
                if task.may_be_repeated and task.error is not None:
                    raise task.error
            elif includes_active_segment and log.recovery_point < log.log_end_offset:
                raise StorageError(f"another flush of {log.directory} is under way")
            log.check()
        except (LogBusy, LogDeleted):  # a truncation syncs the log itself, and a deleted log needs no flush
            raise
        except StorageError as error:
            logger.error("flushing %s-%d failed: %s", log.topic, log.partition, error.message)
            raise
        finally:
            del self._flushes[log]

    # --- before acknowledgements ------------------------------------------------------------------

    def flush_and_commit_soon(self, partition: Partition) -> None:
        """`barnabas.flush.before.ack`: group commit. Records that are appended during a flush share the next one."""
        if partition not in self._committing:
            self._committing[partition] = asyncio.ensure_future(self._flush_and_commit(partition))

    async def _flush_and_commit(self, partition: Partition) -> None:
        log = partition.log
        try:
            while log.recovery_point < log.log_end_offset:
                await self.flush(log)
                partition.advance()
        except StorageError as error:
            partition.flush_failed(error)
        except Exception as error:  # waiters for the commit get the error, and the traceback is logged
            logger.exception("flushing %s failed", partition)
            partition.flush_failed(StorageError(f"flushing {partition} failed: {error}"))
        finally:  # at once, not by a callback: otherwise no flush would start for an append in between
            del self._committing[partition]

    # --- by time ----------------------------------------------------------------------------------

    def flush_due(self) -> None:
        """Start flushing the logs that are due: new files, a sealed segment, a new leader epoch, `flush.ms` over."""
        by_directory: dict[str, list[PartitionLog]] = {}
        for log in self.set_aside.ready(self._logs_to_flush(self._clock.now_ms())):
            by_directory.setdefault(log.directory.rpartition("/")[0], []).append(log)
        for directory, logs in by_directory.items():
            tasks = self._by_directory.setdefault(directory, set())
            due = iter(logs)
            for _ in range(FLUSHES_PER_DIRECTORY - len(tasks)):
                task = asyncio.get_running_loop().create_task(self._flush_in_turn(due))
                tasks.add(task)
                task.add_done_callback(tasks.discard)

    async def _flush_in_turn(self, logs: Iterator[PartitionLog]) -> None:
        """Flush logs of a list that several such tasks share. The list gets outdated while they wait for the disk: each
        log is checked again."""
        for log in logs:
            if self._is_stopping:
                return
            if log in self._flushes or not log.flush_is_due(self._clock.now_ms()):
                continue
            with self.set_aside.attempt(log):
                await self._flush_if_possible(log)

    async def _flush_if_possible(self, log: PartitionLog) -> None:
        try:
            if self._flush_before_ack or log.active_segment_is_due(self._clock.now_ms()):
                await self.flush(log)
            else:
                running = self._flushes[log] = asyncio.ensure_future(
                    self._flush_once(log, includes_active_segment=False)
                )
                await asyncio.shield(running)
        except StorageError:
            return  # it is logged, and repeated if possible
        if self._flush_before_ack and (partition := self._hosted(log)) is not None:
            partition.advance()  # records that an earlier flush failed to flush are committable now

    # --- the end ----------------------------------------------------------------------------------

    def under_way(self) -> "list[asyncio.Future[None]]":
        """The flushes in progress, and the tasks that continue after them."""
        by_time = [task for tasks in self._by_directory.values() for task in tasks]
        return [*by_time, *self._flushes.values(), *self._committing.values()]

    def stop(self) -> None:
        """Start no more flushes by time: closing the logs flushes everything."""
        self._is_stopping = True

    async def close(self) -> None:
        """Stop, and return when no flush is in progress, so that the logs can be closed."""
        self.stop()
        while under_way := self.under_way():
            await asyncio.wait(under_way)
