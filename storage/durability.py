"""The flush state of one log: its recovery point, and the content of the next flush.

Source: UnifiedLog.flush, LocalLog.markFlushed; Kafka syncs in the calling thread, here `FlushTask` does it in another.
"""

from __future__ import annotations

from collections.abc import Sequence

from barnabas.storage.flush import FlushTask
from barnabas.storage.log_context import LogContext
from barnabas.storage.log_health import LogHealth
from barnabas.storage.segment import TXN_INDEX_SUFFIX, Segment


class Durability:
    """The recovery point of one log, the files and names that wait for a sync, and the flush under way, if any: never
    two at a time.

    `recovery_point` is the offset up to which all batches are on the disk, with or without their index files (see
    `recovery_point_to_write`).

    Ownership: the event loop; the `FlushTask` runs in a thread.
    """

    __slots__ = (
        "_context",
        "_directory_number",
        "_files",
        "_flushing",
        "_has_names",
        "_health",
        "_last_flush_ms",
        "_seal",
        "is_unnamed",
        "lacks_hints",
        "recovery_point",
    )

    def __init__(self, context: LogContext, health: LogHealth, recovery_point: int) -> None:
        self.recovery_point = recovery_point
        self.is_unnamed = False
        """No segment's name is known to be on the disk."""
        self.lacks_hints = False
        """A full disk prevented writing files that the next start would have used."""
        self._context = context
        self._health = health
        self._flushing: FlushTask | None = None
        self._last_flush_ms = context.clock.now_ms()
        self._files: tuple[str, ...] = ()
        """Paths of files, other than segments, whose content waits for a sync. A tuple, which costs nothing while
        empty.
        """
        self._has_names = False
        """The log's directory has names that may not be on the disk."""
        self._directory_number = 0
        """The number of the log's own directory in `context.names`, while its name may not be on the disk."""
        self._seal: int | None = None
        """The base offset of the oldest segment that was sealed since the last flush, if any."""

    # --- what waits for a flush

    def note_directory(self, first_file: str) -> None:
        """Note that the log was created, with a first file: a flush is due at once."""
        self._files += (first_file,)
        self._directory_number, self._has_names = self._context.names.note_name(), True
        self.is_unnamed = True

    def note_files(self, *paths: str) -> None:
        """Note files whose content the next flush syncs, and whose names are on the disk or are not needed there; no
        flush becomes due.
        """
        self._files += paths

    def note_names(self, *paths: str) -> None:
        """Note that names were added to or removed from the log's directory; `paths` are new files whose content the
        flush has to sync. A flush becomes due.
        """
        self._files += paths
        self._has_names = True

    def note_seal(self, base_offset: int, *indexes: str) -> None:
        """Note that a segment was sealed, with its index files written, and a new one created: a flush becomes due."""
        self.note_names(*indexes)
        if self._seal is None:
            self._seal = base_offset

    def truncates_to(self, offset: int, *, starts_anew: bool) -> None:
        """Prepare for a truncation to `offset`: neither the recovery point nor a flush under way covers later appends.
        `starts_anew` says that the log loses all its segments, one after the other.
        """
        self.is_unnamed |= starts_anew
        self.recovery_point = min(self.recovery_point, offset)
        if self._flushing is not None:
            self._flushing.end_offset = min(self._flushing.end_offset, offset)
            self._flushing.note_move()  # its leader epochs are those before the truncation
        self._has_names = True

    def truncated_to(self, recovery_point: int) -> None:
        """The truncation that `truncates_to` announced is done; everything before `recovery_point` is on the disk."""
        self.recovery_point = recovery_point

    def note_move(self) -> None:
        """The log's directory is about to be renamed: a flush under way must not create a name there."""
        if self._flushing is not None:
            self._flushing.note_move()

    def note_deletion(self) -> None:
        """The log was deleted and its directory renamed: nothing waits for a sync."""
        self._files = ()

    # --- flushing

    @property
    def is_flushing(self) -> bool:
        """Whether a flush is under way."""
        return self._flushing is not None

    def is_due(self, now_ms: int, log_end_offset: int, flush_ms: int) -> bool:
        """Whether there are names that may not be on the disk, or `flush.ms` has passed since the last complete flush
        and there is unflushed data.
        """
        return self._has_names or self._is_overdue(now_ms, log_end_offset, flush_ms)

    def active_segment_is_due(self, now_ms: int, log_end_offset: int, flush_ms: int) -> bool:
        """Whether a flush has to include the active segment's records: `flush.ms` has passed, or that segment may not
        be on the disk.
        """
        return self.is_unnamed or self._is_overdue(now_ms, log_end_offset, flush_ms)

    def _is_overdue(self, now_ms: int, log_end_offset: int, flush_ms: int) -> bool:
        # By a clock that was set back the last flush would be in the future, and the next one as far away.
        self._last_flush_ms = min(self._last_flush_ms, now_ms)
        return self.recovery_point < log_end_offset and now_ms - self._last_flush_ms >= flush_ms

    def prepare_flush(
        self,
        directory: str,
        end_offset: int,
        unflushed: Sequence[Segment],
        leader_epochs: tuple[str, bytes] | None,
        *,
        includes_active_segment: bool,
    ) -> FlushTask | None:
        """Capture a flush of everything up to `end_offset`; None if there is nothing to flush. The caller must report
        its end to `complete`.

        `unflushed` are the segments from the recovery point on; the others are on the disk already. `leader_epochs` is
        the path and new content of `leader-epoch-checkpoint`, if it has to be written. The active segment's index files
        are not worth a write; those of sealed segments are among the files that wait for a sync. With
        `includes_active_segment` the flush extends to the log end offset.
        """
        has_data = self.recovery_point < end_offset
        if not (has_data or leader_epochs or self._has_names or self._files):
            return None
        segments, others = [], list(self._files)
        if has_data:
            for segment in unflushed:
                segments.append(segment.file)
                self._context.cache.hold(segment.file)
                if segment.has_txn_index:
                    others.append(segment.path(TXN_INDEX_SUFFIX))
            known = {file.path for file in segments}
            others = [path for path in others if path not in known]  # a new log's first file may have records already
        self._flushing = FlushTask(
            self._context.cache, directory, end_offset, segments, others,
            self._has_names or leader_epochs is not None, self._context.names, self._directory_number,
            next(self._context.flush_numbers), leader_epochs, unsynced_seal=self._seal,
            includes_active_segment=includes_active_segment,
        )  # fmt: skip
        self._files = ()
        self._seal = None
        self._directory_number, self._has_names = 0, False
        return self._flushing

    def complete(self, task: FlushTask, directory: str) -> None:
        """Process the outcome of a flush that has run; `directory` is the log's current directory. A failed flush takes
        the log offline, unless the directory was renamed meanwhile, or the flush may be repeated.
        """
        self._flushing = None
        has_stayed = task.directory == directory
        if task.may_be_repeated or (task.moved and has_stayed and task.error is None):
            self._files += tuple(task.others)
            self._seal = self._seal if task.unsynced_seal is None else task.unsynced_seal
            self._directory_number = self._directory_number or task.number
            self._has_names = True
            return
        if task.error is not None:
            if has_stayed:
                self._health.fail(task.error)
            return
        self.recovery_point = max(self.recovery_point, task.end_offset)
        if task.includes_active_segment:
            self._last_flush_ms = self._context.clock.now_ms()
            self.is_unnamed = False

    def is_complete(self, log_end_offset: int) -> bool:
        """Whether everything written is on the disk, including index files and snapshots for the next start."""
        return not self.lacks_hints and self.recovery_point == log_end_offset

    @property
    def recovery_point_to_write(self) -> int:
        """The recovery point for the checkpoint: not beyond a sealed segment whose index files may not be on the disk,
        because the next start does not check segments before the recovery point.
        """
        seals = [self._seal, self._flushing.unsynced_seal if self._flushing else None]
        return min([self.recovery_point, *(seal for seal in seals if seal is not None)])
