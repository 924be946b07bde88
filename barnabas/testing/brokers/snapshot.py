"""A prepared state of a broker: its files after a clean shutdown, for repeated restores.

Log files are append-only, so a large one is not copied: the snapshot has a link to the very file that the broker
continues to write, and records its length. A restore truncates it to that length, unless another snapshot needs the
rest. All other files are copied.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Final

LINKED_BYTES_MIN: Final = 256 * 1024
"""Smaller log files are copied, too."""


class Snapshot:
    """The result of `Broker.snapshot()`, for `Broker.restore()`. Removed when its broker stops, or by `remove()`."""

    def __init__(self, directory: Path, clock_offset_ms: int, topics: Collection[str]) -> None:
        self._directory = directory
        self._clock_offset_ms = clock_offset_ms
        self._topics = topics
        """Its topics."""
        self._linked: dict[tuple[int, int], int] = {}
        """The length of each linked file, by its device and inode."""
        self._directories: list[str] = []
        self._files: list[str] = []

    def __repr__(self) -> str:
        return f"<Snapshot of {len(self._files)} files>"

    @property
    def _is_removed(self) -> bool:
        """Whether the snapshot's files are removed."""
        return not self._directory.exists()

    def remove(self) -> None:
        """Delete the snapshot's files."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def _take(self, source: Path) -> None:
        """Take the files of a broker that does not run. Raises OSError."""
        self._directory.mkdir()
        for folder, folders, names in os.walk(source):
            below = os.path.relpath(folder, source)
            for name in folders:
                self._directories.append(os.path.join(below, name))
                os.mkdir(self._directory / below / name)
            for name in names:
                self._files.append(os.path.join(below, name))
                self._take_file(os.path.join(folder, name), str(self._directory / below / name))

    def _take_file(self, source: str, target: str) -> None:
        found = os.stat(source)
        if source.endswith(".log") and found.st_size >= LINKED_BYTES_MIN:
            os.link(source, target)
            self._linked[found.st_dev, found.st_ino] = found.st_size
        else:
            shutil.copyfile(source, target)

    def _put_back(self, target: Path, others: Collection[Snapshot]) -> None:
        """Restore the files to `target`, which does not exist yet. Files of this snapshot's former restores must not be
        in use. Raises OSError.
        """
        target.mkdir()
        for name in self._directories:
            os.mkdir(target / name)
        for name in self._files:
            self._put_file_back(str(self._directory / name), str(target / name), others)

    def _put_file_back(self, source: str, target: str, others: Collection[Snapshot]) -> None:
        found = os.stat(source)
        identity = (found.st_dev, found.st_ino)
        size = self._linked.get(identity)
        if size is None:
            shutil.copyfile(source, target)
        elif found.st_size == size:
            os.link(source, target)
        elif all(other._linked.get(identity, 0) <= size for other in others):
            os.truncate(source, size)
            os.link(source, target)
        else:
            _copy_beginning(source, target, size)


def _copy_beginning(source: str, target: str, size: int) -> None:
    with open(source, "rb") as taken, open(target, "wb") as made:
        while size and (part := taken.read(min(size, 1024 * 1024))):
            made.write(part)
            size -= len(part)
