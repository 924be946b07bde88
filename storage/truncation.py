"""Truncation of logs. The disk work takes too long for the event loop: it is captured there, run in a thread, and
completed there.

A crash in between leaves a log that ends earlier or later, but never one that contains the end of another history:
later segments are renamed first, newest first; and nothing is appended before the checkpoints say that the batches that
replace the truncated ones are not flushed. The checkpoints are written before the truncation, since a start treats a
log that ends before its recovery point as damaged (`recovery.log_loader`). One write of each checkpoint file is enough
for any number of logs. If there is no room for the first write of a checkpoint, nothing is truncated, and the logs stay
as they were.

Source: LogManager.truncateTo, truncateFullyAndStartAt; LocalLog.truncateTo. Kafka truncates in the fetcher's thread,
under its lock, with the checkpoints per partition.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

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
from barnabas.storage.producer_builder import ProducerBuilder
from barnabas.storage.producer_state import ProducerState
from barnabas.storage.segment import SNAPSHOT_SUFFIX, Segment, file_name

if TYPE_CHECKING:
    from barnabas.storage.log import PartitionLog
    from barnabas.storage.log_directory import LogDirectory

_CHECKPOINTS_BEFORE = (RECOVERY_POINT_FILE, HIGH_WATERMARK_FILE)
_CHECKPOINTS_AFTER = (LOG_START_FILE, HIGH_WATERMARK_FILE, CLEANER_OFFSET_FILE)


class Cut(NamedTuple):
    """The truncation of one log: all batches that reach to `offset` or beyond are removed; with `starts_anew` all
    batches are, and the log continues at `offset`, which may be anywhere.
    """

    log: PartitionLog
    offset: int
    starts_anew: bool = False


class Marks(NamedTuple):
    """Offsets of a log that it lowers while it is being truncated."""

    log_start_offset: int
    high_watermark: int
    recovery_point: int
    clean_offset: int | None


@dataclass(slots=True)
class TruncationTask:
    """The disk work of truncating one log.

    `run` may be called from any thread; it uses only captured state. After it, the event loop has to call the log's
    `complete_truncation`; meanwhile the log refuses all use.

    Args:
        cache: opens files.
        directory: the log's.
        kept: the segments that remain, as they are now; the last one is truncated. Empty for a log that starts anew.
        snapshots: the offsets of all producer snapshots.
        offset: the offset to truncate to, or to start anew at.
        before: the log's offsets before. Until the task is completed the log reports lower values, since its end offset
            is not known yet.
        take_names: renames the segments that do not remain; None if all do. Raises StorageError.
        builder: builds the producer state.
    """

    cache: DescriptorCache
    directory: str
    kept: Sequence[Segment]
    snapshots: list[int]
    offset: int
    log_start_offset: int
    before: Marks
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
                # The next batches may continue its last epoch, at an earlier offset than the file says.
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
        """Release the file, whether this has run or not."""
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
    event loop.
    """

    def __init__(self, directory_of: Mapping[PartitionLog, LogDirectory], cuts: Sequence[Cut]) -> None:
        self.errors: dict[PartitionLog, StorageError] = {}
        """The logs that could not be truncated, with the error: a failing disk took them offline, they were not
        available (deleted, or offline before), or a passing error left them as they were."""
        self._tasks: dict[PartitionLog, TruncationTask] = {}
        self._directories: dict[LogDirectory, Exception | None] = {}
        self._directory_of = directory_of
        self._turn = threading.Lock()
        self._is_over = False
        for cut in cuts:
            try:
                task = cut.log.prepare_truncation(cut.offset, starts_anew=cut.starts_anew)
                if task is not None:
                    self._directories[directory_of[cut.log]] = None
                    self._tasks[cut.log] = task
            except StorageError as error:
                self.errors[cut.log] = error
            except Exception as error:  # noqa: BLE001 - as in `complete`
                self._give_up(cut.log, error)

    def run(self) -> None:
        """Truncate, with the checkpoints before and after, unless that was done already: a pool keeps tasks for which
        it has no thread, and may run them later. Blocking.
        """
        with self._turn:
            if not self._is_over:
                self._is_over = True
                self._run()

    def _run(self) -> None:
        self._write(_CHECKPOINTS_BEFORE)
        for log, task in self._tasks.items():
            if self._directories[self._directory_of[log]] is None:
                task.run()
                if task.error is None:
                    log.ends_as_cut(task)  # nothing else changes these offsets while the log refuses all use
            else:
                task.give_up()
        self._write(_CHECKPOINTS_AFTER)

    def _write(self, names: Sequence[str]) -> None:
        for directory, refused in self._directories.items():
            try:
                if refused is None:
                    directory.write_checkpoints(names)
            except Exception as error:  # noqa: BLE001 - as in `complete`
                self._directories[directory] = error

    def complete(self) -> None:
        """Process the outcome: afterwards the logs can be used again, or are offline, whatever went wrong, including
        our own bugs: no broker would lead or fetch for a log that stayed busy. Then see `errors`.
        """
        for log, task in self._tasks.items():
            refused = self._directories[self._directory_of[log]]
            what = f"writing the checkpoints of {log.directory}"
            try:
                if not task.has_begun and isinstance(refused, OSError) and is_passing(refused):
                    log.cancel_truncation(task)
                    raise refusal(what, refused)
                if refused is not None and task.error is None:
                    task.error = StorageError(f"{what} failed: {refused!r}")
                log.complete_truncation(task)
            except StorageError as error:
                self.errors[log] = error
            except Exception as error:  # noqa: BLE001 - see above
                self._give_up(log, error)

    def _give_up(self, log: PartitionLog, error: Exception) -> None:
        """Take a log offline after an unexpected error of its truncation: its content is unknown."""
        self.errors[log] = StorageError(f"truncating {log.directory} failed: {error!r}")
        log.fail(self.errors[log])
