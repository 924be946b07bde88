"""How far one log is on the disk, and what the next flush has to bring there.

Source: UnifiedLog.flush, LocalLog.markFlushed; Kafka syncs inside the caller, here `FlushTask` does it in a thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from barnabas.storage.flush import FlushTask
from barnabas.storage.log_context import LogContext
from barnabas.storage.log_health import LogHealth
from barnabas.storage.segment import TXN_INDEX_SUFFIX, Segment


class Durability:
    """The recovery point of one log, the files and names that wait for a sync, and the flush that is under way, if one
    is: never two at a time.

    `recovery_point` is the offset up to which all batches are on the disk, index files beside them or not (see
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
        """The disk may not know the name of any segment."""
        self.lacks_hints = False
        """There was no room for what the next start would have believed."""
        self._context = context
        self._health = health
        self._flushing: FlushTask | None = None
        self._last_flush_ms = context.clock.now_ms()
        self._files: tuple[str, ...] = ()
        """Paths whose content waits for a sync, beside the segments'. A tuple, which costs nothing while empty."""
        self._has_names = False
        """The log's directory has names that the disk may not know."""
        self._directory_number = 0
        """Under which `context.names` has the name of the log's own directory, while the disk may not know it."""
        self._seal: int | None = None
        """The base offset of the oldest segment that was sealed since the last flush, if one was."""

    # --- what waits for a flush

    def note_directory(self, first_file: str) -> None:
        """The log was just created, with a first file: the next flush is due at once."""
        self._files += (first_file,)
        self._directory_number, self._has_names = self._context.names.note_name(), True
        self.is_unnamed = True

    def note_files(self, *paths: str) -> None:
        """Files were written whose names the disk knows, or need not know: the next flush syncs them; none is due."""
        self._files += paths

    def note_names(self, *paths: str) -> None:
        """Names came or went in the log's directory; `paths` are those of new files with content that counts. A flush
        is due.
        """
        self._files += paths
        self._has_names = True

    def note_seal(self, base_offset: int, *indexes: str) -> None:
        """A segment was sealed, with its index files written, and there is a new one: a flush is due."""
        self.note_names(*indexes)
        if self._seal is None:
            self._seal = base_offset

    def truncates_to(self, offset: int, *, starts_anew: bool) -> None:
        """The log is about to lose what is behind `offset`: neither the recovery point nor a flush under way covers
        what will be appended next. One that `starts_anew` loses all its segments, one after the other.
        """
        self.is_unnamed |= starts_anew
        self.recovery_point = min(self.recovery_point, offset)
        if self._flushing is not None:
            self._flushing.end_offset = min(self._flushing.end_offset, offset)
            self._flushing.note_move()  # its leader epochs are those of before
        self._has_names = True

    def truncated_to(self, recovery_point: int) -> None:
        """The log has lost what `truncates_to` announced; what is before `recovery_point` is on the disk."""
        self.recovery_point = recovery_point

    def note_move(self) -> None:
        """The log's directory is about to be renamed: a flush under way must make no name there."""
        if self._flushing is not None:
            self._flushing.note_move()

    def note_deletion(self) -> None:
        """The log's directory was renamed, and the log is none any more: nothing waits for a sync."""
        self._files = ()

    # --- flushing

    @property
    def is_flushing(self) -> bool:
        """Whether a flush is under way."""
        return self._flushing is not None

    def is_due(self, now_ms: int, log_end_offset: int, flush_ms: int) -> bool:
        """Whether there are names that the disk may not know, or `flush.ms` has passed since the last flush of all and
        there is something to flush.
        """
        return self._has_names or self._is_overdue(now_ms, log_end_offset, flush_ms)

    def all_is_due(self, now_ms: int, log_end_offset: int, flush_ms: int) -> bool:
        """Whether a flush has to bring the active segment's records to the disk, too: `flush.ms` has passed, or the
        disk may not know that segment.
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
        is_of_all: bool,
    ) -> FlushTask | None:
        """Capture a flush of everything up to `end_offset`; None if there is nothing to flush. `complete` must be told
        of it.

        `unflushed` are the segments from the recovery point's on, the others are on the disk already; `leader_epochs`
        is the path and new content of the epochs' file, if it has to be written. The active segment's index files are
        hints that are not worth a write; those of sealed segments are among the files that wait for a sync. A flush
        `is_of_all` that goes to the log's end.
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
            is_of_all=is_of_all,
        )  # fmt: skip
        self._files = ()
        self._seal = None
        self._directory_number, self._has_names = 0, False
        return self._flushing

    def complete(self, task: FlushTask, directory: str) -> None:
        """Take in the outcome of a flush that has run, where the log's directory is `directory` now. A failed one takes
        the log offline, unless its directory was moved away under it, or it may be repeated.
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
        if task.is_of_all:
            self._last_flush_ms = self._context.clock.now_ms()
            self.is_unnamed = False

    def is_complete(self, log_end_offset: int) -> bool:
        """Whether all that was written is on the disk, hints for the next start too."""
        return not self.lacks_hints and self.recovery_point == log_end_offset

    @property
    def recovery_point_to_write(self) -> int:
        """What the checkpoint may say: the recovery point, but not beyond a sealed segment whose index files may not be
        on the disk, for what lies before it is not looked at by the next start.
        """
        seals = [self._seal, self._flushing.unsynced_seal if self._flushing else None]
        return min([self.recovery_point, *(seal for seal in seals if seal is not None)])
