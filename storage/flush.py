"""Flushing a log to the disk: captured on the event loop, run in a thread, completed on the event loop."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, field

from barnabas.storage.descriptors import DescriptorCache, LogFile
from barnabas.storage.errors import StorageError, is_passing
from barnabas.storage.files import TEMPORARY_SUFFIX, Files, unlink_if_exists, write_file


class SharedSync:
    """Syncs of one directory in which names are created. One sync covers every name created before it began, however
    many callers wait.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made = 0
        self._synced = 0
        self._failure: OSError | None = None

    def note_name(self) -> int:
        """Register a new name; returns its number, from 1 on. Event loop only."""
        self._made += 1
        return self._made

    def sync(self, files: Files, directory: str, number: int) -> None:
        """Return once the name with this number is on the disk. Blocking, any thread.

        Raises:
            OSError: this sync or an earlier one failed; a second try might hide that.
        """
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if number <= self._synced:
                return
            made = self._made
            try:
                files.sync_directory(directory)
            except OSError as error:
                if not is_passing(error):  # else nothing was synced
                    self._failure = error
                raise
            self._synced = made


@dataclass(slots=True)
class FlushTask:
    """One flush of one log up to `end_offset`: data first, then indexes and snapshots, then names.

    `run` may be called from any thread, and works once; it uses only captured state. After it, failed or not, the event
    loop has to call the log's `complete_flush`. A failed sync is final: a second try might report success for pages
    that the first try lost.
    """

    cache: DescriptorCache
    directory: str
    end_offset: int
    segments: list[LogFile]
    others: list[str]
    """Paths of index files and snapshots: they can be rebuilt, and may be gone meanwhile."""
    names_dirty: bool
    """The directory has names that are not on the disk."""
    siblings: SharedSync
    number: int
    """The number of the log's own directory in `siblings`, while its name is not on the disk; else 0."""
    flush_number: int
    """Unique among the flushes of the log directory."""
    leader_epochs: tuple[str, bytes] | None = None
    unsynced_seal: int | None = None
    """The base offset of the oldest segment that was sealed since the last flush, if any."""
    includes_active_segment: bool = True
    """The flush extends to the log end offset: it includes the active segment's records."""
    error: StorageError | None = field(default=None, init=False)
    may_be_repeated: bool = field(default=False, init=False)
    """The flush failed with a transient error, and no sync failed: the disk is full, or there was no descriptor to sync
    a file through, or no thread to run it.
    """
    moved: bool = field(default=False, init=False)
    """The log was about to be renamed during this flush; its leader epochs may not be written."""
    _naming: threading.Lock = field(default_factory=threading.Lock, init=False)
    """Held while a file is renamed into `directory`, and while `moved` is set."""
    _turn: threading.Lock = field(default_factory=threading.Lock, init=False)
    _is_over: bool = field(default=False, init=False)
    """Whether the flush has run, or was cancelled: it holds no segments any more."""

    def run(self) -> None:
        """Flush the files to the disk, unless the flush was cancelled. Blocking. An error is stored in `error`."""
        with self._turn:
            if not self._is_over:
                self._bring_to_disk()
                self._end()

    def give_up(self, reason: str) -> None:
        """Cancel the flush because no thread could be started for it. The pool keeps its tasks nevertheless, so a
        thread that becomes free may run it, or be running it: the first of the two calls takes effect.
        """
        with self._turn:
            if not self._is_over:
                self.may_be_repeated = True
                self.error = StorageError(reason, passes=True)
                self._end()

    def _end(self) -> None:
        self._is_over = True
        for file in self.segments:
            self.cache.release(file)

    def _bring_to_disk(self) -> None:
        try:
            for file in self.segments:
                self._sync_segment(file)
            for path in self.others:
                self._sync_if_exists(path)
            if self.leader_epochs is not None:
                self._write_epochs(*self.leader_epochs)
            if self.names_dirty:
                self.cache.files.sync_directory(self.directory)
            if self.number:
                self.siblings.sync(self.cache.files, self.directory.rpartition("/")[0], self.number)
        except FileNotFoundError as error:
            # Only a log whose directory was renamed for deletion loses its files during a flush.
            self.error = StorageError(f"the log was deleted while it was flushed: {error}")
        except OSError as error:
            self.may_be_repeated = is_passing(error)
            self.error = StorageError(f"flushing the log failed: {error}")
        except Exception as error:  # noqa: BLE001 (after any error, the content of the disk is unknown)
            self.error = StorageError(f"flushing the log failed: {error!r}")

    def note_move(self) -> None:
        """The log's directory is about to be renamed, and another log may soon have its name. Event loop only."""
        with self._naming:
            self.moved = True

    def _write_epochs(self, path: str, content: bytes) -> None:
        """Write the leader epochs to a temporary file of this flush, and rename it to `path` unless the log is about to
        be renamed: another log's directory may have the name then. Raises OSError, also on a full disk, though the
        appended records are safe then.
        """
        files, temporary = self.cache.files, f"{path}.{self.flush_number}{TEMPORARY_SUFFIX}"
        has_name = False
        try:
            write_file(files, temporary, content, sync=True)
            with self._naming:
                if not self.moved:
                    files.rename(temporary, path)
                    has_name = True
        finally:
            if not has_name:
                with suppress(OSError):
                    unlink_if_exists(files, temporary)

    def _sync_segment(self, file: LogFile) -> None:
        descriptor = self.cache.open_privately(file)
        try:
            self.cache.files.sync(descriptor)
        finally:
            self.cache.files.close(descriptor)

    def _sync_if_exists(self, path: str) -> None:
        try:
            descriptor = self.cache.files.open(path)
        except FileNotFoundError:
            return
        try:
            self.cache.files.sync(descriptor)
        finally:
            self.cache.files.close(descriptor)
