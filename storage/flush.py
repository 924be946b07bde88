"""Bringing a log to the disk: captured on the event loop, run in a thread, completed on the event loop."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, field

from barnabas.storage.descriptors import DescriptorCache, LogFile
from barnabas.storage.errors import StorageError, is_passing
from barnabas.storage.files import TEMPORARY_SUFFIX, Files, unlink_if_exists, write_file


class SharedSync:
    """Syncs of one directory in which names are made: one that begins after a name was made is enough for it, however
    many wait.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made = 0
        self._synced = 0
        self._failure: OSError | None = None

    def note_name(self) -> int:
        """A name was made; returns its number, from 1 on. Event loop only."""
        self._made += 1
        return self._made

    def sync(self, files: Files, directory: str, number: int) -> None:
        """Return when the name of this number is on the disk. Blocking, any thread.

        Raises:
            OSError: a sync failed, this one or an earlier one, which a second try might cover up.
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

    `run` may be called from any thread, and does its work once; it touches nothing but what was captured. After it,
    whether it failed or not, the log's `complete_flush` has to be called on the event loop. A failed sync is final: a
    second try might claim success for pages that the first try lost.
    """

    cache: DescriptorCache
    directory: str
    end_offset: int
    segments: list[LogFile]
    others: list[str]
    """Paths of index files and snapshots: hints, which may be gone meanwhile."""
    names_dirty: bool
    """The directory has names that the disk does not know."""
    siblings: SharedSync
    number: int
    """Under which `siblings` has the name of the log's own directory, while the disk does not know that; else 0."""
    flush_number: int
    """No other flush in the log directory has it."""
    leader_epochs: tuple[str, bytes] | None = None
    unsynced_seal: int | None = None
    """The oldest segment that was sealed since the last flush, if one was."""
    is_of_all: bool = True
    """It goes to the log's end, and does not leave the active segment's records to the kernel."""
    error: StorageError | None = field(default=None, init=False)
    may_be_repeated: bool = field(default=False, init=False)
    """It failed for a cause that passes, and no sync did: the disk is full, or there was no descriptor to sync a file
    through, or no thread to do it."""
    moved: bool = field(default=False, init=False)
    """The log was about to move away while this flush was under way; its leader epochs may not be written."""
    _naming: threading.Lock = field(default_factory=threading.Lock, init=False)
    """Held while a file gets its name in `directory`, and while that is noted."""
    _turn: threading.Lock = field(default_factory=threading.Lock, init=False)
    _is_over: bool = field(default=False, init=False)
    """Whether it has run, or was given up: the segments are held no more."""

    def run(self) -> None:
        """Bring the files to the disk, unless the flush was given up. Blocking. Errors end in `error`."""
        with self._turn:
            if not self._is_over:
                self._bring_to_disk()
                self._end()

    def give_up(self, reason: str) -> None:
        """No thread could be started for it. A pool keeps what it was handed all the same, so a thread that comes free
        may begin, or have begun, with it: who is first decides.
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
            # Only a log whose directory was renamed for deletion loses its files under a flush.
            self.error = StorageError(f"the log was deleted while it was flushed: {error}")
        except OSError as error:
            self.may_be_repeated = is_passing(error)
            self.error = StorageError(f"bringing the log to the disk failed: {error}")
        except Exception as error:  # noqa: BLE001 (whatever it was, nobody knows what is on the disk)
            self.error = StorageError(f"bringing the log to the disk failed: {error!r}")

    def note_move(self) -> None:
        """The log's directory is about to be renamed, and its name may soon be another log's. Event loop only."""
        with self._naming:
            self.moved = True

    def _write_epochs(self, path: str, content: bytes) -> None:
        """Write the leader epochs under a temporary name of this flush, and rename that to `path` unless the log is
        about to move away: then the directory's name may be another log's. Raises OSError; on a full disk, too, where
        what was appended is safe all the same.
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
