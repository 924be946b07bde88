"""Cutting logs, whose disk work takes too long for the event loop: captured there, run in a thread, completed there.

A crash in between leaves a log that ends earlier or later, but never one that holds the end of another history: later
segments lose their names first, newest first; and nothing is appended before the checkpoints say that what comes in the
place of what was cut is not on the disk. They say so before anything is cut, since a log that ends before its recovery
point counts as damaged at a start (`recovery.log_loader`). One write of each checkpoint file is enough for any number
of logs. Where there is no room for the first of them, nothing is cut, and the logs are as they were.

Source: LogManager.truncateTo, truncateFullyAndStartAt; LocalLog.truncateTo. Kafka does it in the fetcher's thread,
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
    """What is to become of a log: all batches that reach to `offset` or beyond go; with `starts_anew` all batches, and
    the log goes on at `offset`, which may be anywhere."""

    log: PartitionLog
    offset: int
    starts_anew: bool = False


class Marks(NamedTuple):
    """What a log knows of itself, and says less of while it is being cut."""

    log_start_offset: int
    high_watermark: int
    recovery_point: int
    clean_offset: int | None


@dataclass(slots=True)
class TruncationTask:
    """The disk work of cutting one log.

    `run` may be called from any thread; it touches nothing but what was captured. After it the log's
    `complete_truncation` has to be called on the event loop; meanwhile the log refuses all use.

    Args:
        cache: opens files.
        directory: the log's.
        kept: the segments that stay, as they are now; the last one is cut. None stay of a log that starts anew.
        snapshots: the offsets of all snapshots of producers.
        offset: where to cut, or where the log starts anew.
        before: what the log said of itself. Until the task is completed it says less, since nobody knows yet where it
            will end.
        take_names: takes the names of the segments that do not stay; None if all do. Raises StorageError.
        builder: builds the producers' state.
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
    """Where the log ends now."""
    last_segment: Segment | None = field(default=None, init=False)
    """What takes the place of the last segment that stays."""
    producers: ProducerState | None = field(default=None, init=False)
    error: StorageError | None = field(default=None, init=False)
    has_begun: bool = field(default=False, init=False)
    """Whether the files may have changed."""

    def run(self) -> None:
        """Truncate the files. Blocking. Errors end in `error`: nobody knows what is on the disk then."""
        self.has_begun = True
        try:
            if not self.kept:
                # Its last epoch may go on in what comes now, and earlier than it says there.
                unlink_if_exists(self.cache.files, f"{self.directory}/{LEADER_EPOCH_FILE}")
            if self.take_names is not None:
                # First of all: a later segment that came back would hold the end of another history.
                self.take_names()
                self.cache.files.sync_directory(self.directory)
            if self.kept:
                self._cut(self.kept[-1])
            else:
                self.end_offset = self.offset
                self._remove_snapshots(0)
        except Exception as error:  # noqa: BLE001 - whatever it was, the log is offline for it
            self.error = StorageError(f"truncating {self.directory} failed: {error!r}")
        finally:
            self.give_up()

    def give_up(self) -> None:
        """Hold no file any more, whether this has run or not."""
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
    """Several logs that are cut together, by `LogManager.truncations`: `run` in a thread, then `complete` on the event
    loop."""

    def __init__(self, directory_of: Mapping[PartitionLog, LogDirectory], cuts: Sequence[Cut]) -> None:
        self.errors: dict[PartitionLog, StorageError] = {}
        """Logs that could not be cut, and why: those that a failing disk took offline, those that were not to be had
        (deleted, or offline before), and those that are as they were, of which the error passes."""
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
        """Cut, with the checkpoints before and after, unless that was done already: a pool keeps what it has no thread
        for, and may do it later. Blocking."""
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
                    log.ends_as_cut(task)  # nobody else touches that while the log refuses all use
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
        """Take in what came of it: the logs can be used again, or are offline, whatever went wrong, a mistake of ours
        too: a log that stayed busy would be led and fetched for by nobody. Then see `errors`."""
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
        """Take a log offline whose truncation failed in a way that nobody foresaw: what is left of it is unknown."""
        self.errors[log] = StorageError(f"truncating {log.directory} failed: {error!r}")
        log.fail(self.errors[log])
