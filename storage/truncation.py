"""Truncation of logs. The disk work takes too long for the event loop: it is captured on the loop, run in a thread, and
completed on the loop.

A crash during a truncation leaves a log that ends earlier or later, but never a log that contains the end of another
history. For this, the later segments are renamed first, the newest one before the others. And nothing is appended
before the checkpointed recovery point excludes the batches that will replace the truncated ones. The checkpoints are
written before the truncation, because a start treats a log that ends before its recovery point as damaged
(`recovery.log_loader`). One write of each checkpoint file is enough for any number of logs. If there is no room for the
first write of a checkpoint, nothing is truncated, and the logs stay as they were.

Source: LogManager.truncateTo, truncateFullyAndStartAt; LocalLog.truncateTo. Kafka truncates in the fetcher's thread,
under the thread's lock, and writes the checkpoints for each partition.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from barnabas.storage.checkpoints import (
    CLEANER_OFFSET_FILE,
    HIGH_WATERMARK_FILE,
    LEADER_EPOCH_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
)
from barnabas.storage.descriptors import DescriptorCache
from barnabas.storage.errors import StorageError, is_passing, refusal
from barnabas.storage.files import unlink_if_exists
from barnabas.storage.log import PartitionLog
from barnabas.storage.producer_builder import ProducerBuilder
from barnabas.storage.producer_state import ProducerState
from barnabas.storage.segment import SNAPSHOT_SUFFIX, Segment, file_name

logger = logging.getLogger(__name__)

_CHECKPOINTS_BEFORE = (RECOVERY_POINT_FILE, HIGH_WATERMARK_FILE)
_CHECKPOINTS_AFTER = (LOG_START_FILE, HIGH_WATERMARK_FILE, CLEANER_OFFSET_FILE)


class CheckpointWriter(Protocol):
    """The part of a log directory that truncations use (`log_directory.LogDirectory`)."""

    def write_checkpoints(self, names: Sequence[str]) -> None:
        """Write these checkpoint files. Raises OSError."""
        ...


class Cut(NamedTuple):
    """The truncation of one log: all batches that reach to `offset` or beyond are removed (for a follower that
    diverged). With `starts_anew` all batches are removed, and the log continues at `offset`, which may be any offset
    (for a follower whose leader has deleted the next offsets).
    """

    log: PartitionLog
    offset: int
    starts_anew: bool = False


class _Marks(NamedTuple):
    """The offsets of a log that are lowered while the log is being truncated."""

    log_start_offset: int
    high_watermark: int
    recovery_point: int
    clean_offset: int | None


class LogTruncation:
    """The truncation of one log, from `begin` to `complete` or `cancel`. In between, the log refuses all use.

    The log's offsets for the checkpoints are true before and after `run`. The checkpoints have to be written before
    `run`, and written again after `run`, before anything is appended.

    Ownership: the event loop, except `run`.
    """

    def __init__(self, log: PartitionLog, before: _Marks, task: TruncationTask) -> None:
        self.task = task
        self._log = log
        self._before = before

    @classmethod
    def begin(cls, log: PartitionLog, offset: int, *, starts_anew: bool = False) -> LogTruncation | None:
        """Capture the disk work of a `Cut`; None if there is nothing to remove.

        Raises:
            StorageError: the log is offline; LogBusy if it is being truncated already.
        """
        log.check()
        starts_anew = starts_anew or offset <= log.log_start_offset
        if not starts_anew:
            epochs = log.leader_epochs  # read now: `complete` truncates them, and can no longer read them
            if offset >= log.log_end_offset:
                epochs.truncate_from_end(log.log_end_offset)
                return None
        logger.info("%s: %s %d, from %d", log, "starting anew at" if starts_anew else "truncating to", offset,
                    log.log_end_offset)  # fmt: skip
        cache, local, producers = log.context.cache, log.local, log.producers
        slot = 0 if starts_anew else local.reader.slot(offset) + 1
        kept = local.segments[:slot]
        before = _Marks(log.log_start_offset, log.high_watermark, log.recovery_point, log.clean_offset)
        if kept:
            cache.hold(kept[-1].file)
        # For a log that starts anew, only a lower bound of its start is true both before and after.
        least = kept[-1].base_offset if kept else min(log.log_start_offset, offset)
        local.durability.truncates_to(0 if starts_anew else least, starts_anew=starts_anew)
        log.high_watermark = min(log.high_watermark, least if starts_anew else offset)
        log.log_start_offset = min(log.log_start_offset, log.high_watermark)
        if log.clean_offset is not None:
            log.clean_offset = min(log.clean_offset, least)
        log.cut_count += 1
        local.health.hold(f"{log.directory} is being truncated")
        task = TruncationTask(
            cache, log.directory, kept, list(producers.snapshots), offset, log.log_start_offset,
            log.config.index_interval_bytes, local.prepare_dooming(slot, log.config.file_delete_delay_ms),
            producers.builder(),
        )  # fmt: skip
        return cls(log, before, task)

    def run(self) -> None:
        """Truncate the files, and lower the offsets for the checkpoints. Blocking. Any thread may call it: nothing else
        changes files or offsets while the log refuses all use. An error is stored in the task.
        """
        self.task.run()
        if self.task.error is None:
            self._lower_offsets()

    def _lower_offsets(self) -> None:
        log, end_offset = self._log, self.task.end_offset
        if self.task.last_segment is None:
            log.log_start_offset = log.high_watermark = end_offset
        log.high_watermark = min(log.high_watermark, end_offset)
        if self._before.clean_offset is not None:
            # No compaction pass has read the batches that will replace the truncated ones.
            log.clean_offset = min(self._before.clean_offset, end_offset)

    def cancel(self) -> None:
        """Restore the log to its state before `begin`: the task has not run and never will.

        Raises:
            StorageError: the log is offline, or was deleted meanwhile.
        """
        log, before = self._log, self._before
        log.local.health.release()
        log.check()
        log.log_start_offset, log.high_watermark, log.clean_offset = (
            before.log_start_offset, before.high_watermark, before.clean_offset
        )  # fmt: skip
        log.local.durability.truncated_to(before.recovery_point)

    def complete(self) -> None:
        """Process the outcome of `run`: the log can be used again.

        Raises:
            StorageError: the truncation failed, and the log is offline. LogDeleted: the log was deleted meanwhile.
        """
        log, local, task = self._log, self._log.local, self.task
        local.health.release()
        if task.error is not None:
            local.health.fail(task.error)
        log.check()
        if task.last_segment is not None:
            local.cut_to(len(task.kept) - 1, task.last_segment)
            local.durability.truncated_to(min(self._before.recovery_point, task.end_offset))
        else:
            local.start_anew_at(task.offset, log.config)
            local.durability.truncated_to(task.end_offset)
        log.end_at(task.end_offset, is_empty=task.last_segment is None)
        self._lower_offsets()
        producers = task.producers or ProducerState(task.offset, log.context.producer_id_expiration_ms)
        producers.forget_replicated(log.high_watermark)
        log.producers.replace(producers, task.snapshots)


@dataclass(slots=True)
class TruncationTask:
    """The disk work of truncating one log.

    `run` may be called from any thread; it uses only captured state.

    Args:
        cache: opens files.
        directory: the log's.
        kept: the segments that remain, as they are now; the last one is truncated. Empty for a log that starts anew.
        snapshots: the offsets of all producer snapshots.
        offset: the offset to truncate to, or to start anew at.
        log_start_offset: the log start offset that the log reports during the truncation.
        take_names: renames the segments that do not remain; None if all segments remain. Raises StorageError.
        builder: builds the producer state.
    """

    cache: DescriptorCache
    directory: str
    kept: Sequence[Segment]
    snapshots: list[int]
    offset: int
    log_start_offset: int
    index_interval_bytes: int
    take_names: Callable[[], None] | None
    builder: ProducerBuilder
    end_offset: int = field(default=-1, init=False)
    """The new log end offset."""
    last_segment: Segment | None = field(default=None, init=False)
    """The replacement of the last remaining segment."""
    producers: ProducerState | None = field(default=None, init=False)
    error: StorageError | None = field(default=None, init=False)
    has_begun: bool = field(default=False, init=False)
    """Whether the files may have changed."""

    def run(self) -> None:
        """Truncate the files. Blocking. An error is stored in `error`: the content of the disk is unknown then."""
        self.has_begun = True
        try:
            if not self.kept:
                # The next batches may continue the last epoch of this file, at an earlier offset than the file says.
                unlink_if_exists(self.cache.files, f"{self.directory}/{LEADER_EPOCH_FILE}")
            if self.take_names is not None:
                # First of all: a later segment that reappeared would contain the end of another history.
                self.take_names()
                self.cache.files.sync_directory(self.directory)
            if self.kept:
                self._cut(self.kept[-1])
            else:
                self.end_offset = self.offset
                self._remove_snapshots(0)
        except Exception as error:  # noqa: BLE001 - any error takes the log offline
            self.error = StorageError(f"truncating {self.directory} failed: {error!r}")
        finally:
            self.give_up()

    def give_up(self) -> None:
        """Release the file of the last remaining segment, whether this task has run or not."""
        if self.kept:
            self.cache.release(self.kept[-1].file)

    def _cut(self, segment: Segment) -> None:
        files, descriptor = self.cache.files, self.cache.open_privately(segment.file)
        try:
            self.last_segment, self.end_offset = segment.cut_at(
                files, descriptor, self.offset, self.index_interval_bytes
            )
        finally:
            files.close(descriptor)
        self._remove_snapshots(self.end_offset + 1)
        segments = [*self.kept[:-1], self.last_segment]
        self.producers = self.builder.build(segments, self.snapshots, self.log_start_offset, self.end_offset)

    def _remove_snapshots(self, from_offset: int) -> None:
        for offset in [found for found in self.snapshots if found >= from_offset]:
            self.snapshots.remove(offset)
            unlink_if_exists(self.cache.files, f"{self.directory}/{file_name(offset, SNAPSHOT_SUFFIX)}")


class Truncations:
    """Several logs that are truncated together, by `LogManager.truncations`: `run` in a thread, then `complete` on the
    event loop. `directory_of` has the directories of logs that are not deleted.
    """

    def __init__(self, directory_of: Mapping[PartitionLog, CheckpointWriter], cuts: Sequence[Cut]) -> None:
        self.errors: dict[PartitionLog, StorageError] = {}
        """The logs that could not be truncated, with the error: a failing disk took them offline, they were not
        available (deleted, or offline before), or a passing error left them as they were."""
        self._begun: dict[PartitionLog, LogTruncation] = {}
        self._directories: dict[CheckpointWriter, Exception | None] = {}
        """Each directory, with the error that refused its checkpoints, if any."""
        self._directory_of = directory_of
        self._turn = threading.Lock()
        self._is_over = False
        for cut in cuts:
            try:
                truncation = LogTruncation.begin(cut.log, cut.offset, starts_anew=cut.starts_anew)
                if truncation is not None:
                    self._directories[directory_of[cut.log]] = None
                    self._begun[cut.log] = truncation
            except StorageError as error:
                self.errors[cut.log] = error
            except Exception as error:  # noqa: BLE001 - as in `complete`
                self._give_up(cut.log, error)

    def run(self) -> None:
        """Write the checkpoints, truncate the logs, and write the checkpoints again. A second call does nothing: a
        thread pool keeps a task for which it has no thread, and may run it later. Blocking.
        """
        with self._turn:
            if not self._is_over:
                self._is_over = True
                self._run()

    def _run(self) -> None:
        self._write(_CHECKPOINTS_BEFORE)
        for log, truncation in self._begun.items():
            if self._directories[self._directory_of[log]] is None:
                truncation.run()
            else:
                truncation.task.give_up()
        self._write(_CHECKPOINTS_AFTER)

    def _write(self, names: Sequence[str]) -> None:
        for directory, refused in self._directories.items():
            try:
                if refused is None:
                    directory.write_checkpoints(names)
            except Exception as error:  # noqa: BLE001 - as in `complete`
                self._directories[directory] = error

    def complete(self) -> None:
        """Process the outcome. Afterwards each log can be used again or is offline, whatever went wrong, including our
        own bugs: this broker could neither lead nor follow with a log that stayed busy. `errors` has the logs that were
        not truncated.
        """
        for log, truncation in self._begun.items():
            refused, task = self._directories[self._directory_of[log]], truncation.task
            what = f"writing the checkpoints of {log.directory}"
            try:
                if not task.has_begun and isinstance(refused, OSError) and is_passing(refused):
                    truncation.cancel()
                    raise refusal(what, refused)
                if refused is not None and task.error is None:
                    task.error = StorageError(f"{what} failed: {refused!r}")
                truncation.complete()
            except StorageError as error:
                self.errors[log] = error
            except Exception as error:  # noqa: BLE001 - see above
                self._give_up(log, error)

    def _give_up(self, log: PartitionLog, error: Exception) -> None:
        """Take a log offline after an unexpected error of its truncation: its content is unknown."""
        self.errors[log] = StorageError(f"truncating {log.directory} failed: {error!r}")
        log.local.health.fail(self.errors[log])
