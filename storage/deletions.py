"""Files of deleted segments and logs: they are renamed at once, and unlinked when no read uses them any more.

Source: kafka.log.LogManager.deleteLogs, LocalLog.deleteSegmentFiles, logDeleteDirName.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from barnabas.clock import Clock
from barnabas.storage.descriptors import DescriptorCache, LogFile
from barnabas.storage.errors import LogDeleted
from barnabas.storage.files import Files, unlink_if_exists
from barnabas.storage.log_context import DoomedFiles

logger = logging.getLogger(__name__)

DELETE_SUFFIX: Final = "-delete"
STRAY_SUFFIX: Final = "-stray"
_MAX_NAME_SIZE: Final = 255
_RETRY_MS: Final = 60_000
"""The delay before a failed removal is repeated."""


@dataclass(frozen=True, slots=True)
class _DoomedDirectory:
    """The directory of a deleted log: removed once `due_ms` (monotonic) has passed and no read uses its segments."""

    due_ms: int
    path: str
    segments: list[LogFile]


class Deletions:
    """The deleted files of a broker's logs, until they are unlinked.

    Ownership: the event loop, except `remove_due`.
    """

    def __init__(self, cache: DescriptorCache, clock: Clock) -> None:
        self._cache = cache
        self._files = cache.files
        self._clock = clock
        self._directories: deque[_DoomedDirectory] = deque()
        self._count = 0

    def away_name(self, topic: str, partition: int, suffix: str) -> str:
        """The new name of a deleted or stray log's directory: unique, and no longer than a file name may be. Kafka also
        truncates the topic.
        """
        self._count += 1
        suffix = f"-{partition}.{self._clock.now_ms():016x}{self._count:016x}{suffix}"
        return topic[: _MAX_NAME_SIZE - len(suffix)] + suffix

    def add_directory(self, path: str, delay_ms: int, segments: list[LogFile]) -> None:
        """Schedule the directory of a deleted log for removal after `delay_ms`."""
        self._directories.append(_DoomedDirectory(self._clock.monotonic_ms() + delay_ms, path, segments))

    def remove_due(self, doomed_files: Iterable[deque[DoomedFiles]]) -> int:
        """Remove the due directories of deleted logs, and the due files that the log directories' contexts have
        collected; returns the number of removed segments and directories. Blocking; any thread, one at a time.
        """
        now_ms = self._clock.monotonic_ms()
        count = sum(self._remove_files(doomed, now_ms) for doomed in doomed_files)
        for _ in range(len(self._directories)):
            deleted = self._directories.popleft()
            if deleted.due_ms > now_ms or any(segment.holders for segment in deleted.segments):
                self._directories.append(deleted)
            elif remove_tree(self._files, deleted.path):
                count += 1
            else:
                self._directories.append(_DoomedDirectory(now_ms + _RETRY_MS, deleted.path, []))
        return count

    def _remove_files(self, doomed: deque[DoomedFiles], now_ms: int) -> int:
        count = 0
        for _ in range(len(doomed)):
            files = doomed.popleft()
            if files.due_ms > now_ms:
                doomed.append(files)
                continue
            if isinstance(files.health.failure, LogDeleted):
                continue  # these files go with its directory
            try:
                self._unlink(files)
            except OSError as error:
                # Nothing reads these files any more: a failure costs only disk space.
                logger.warning("removing deleted segments failed: %s", error)
                doomed.append(DoomedFiles(now_ms + _RETRY_MS, files.health, files.segments, files.others))
                continue
            count += len(files.segments)
        return count

    def _unlink(self, files: DoomedFiles) -> None:
        for segment in files.segments:
            self._cache.unlink(segment)
        for path in files.others:
            unlink_if_exists(self._files, path)


def remove_tree(files: Files, path: str) -> bool:
    """Remove a deleted log's directory; returns whether that worked. Blocking."""
    try:
        for entry in files.list(path):
            unlink_if_exists(files, f"{path}/{entry.name}")
        files.remove_directory(path)
    except OSError as error:
        logger.warning("removing %s failed: %s", path, error)
        return False
    return True
