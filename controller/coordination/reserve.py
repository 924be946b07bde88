"""Disk space reserved for the metadata store, so that a broker can start and stop on a full disk.

The reserve is a file of zeros. Deleting it frees its bytes and its inode, which SQLite's write-ahead log needs if the
disk has no free inode.
"""

import os
from contextlib import suppress

_SIZE_MIN = 256 * 1024
_SIZE_MAX = 8 * 1024 * 1024
"""The minimum and maximum size of the reserve. The write-ahead log does not grow much above 4 MiB: SQLite then moves it
into the database, and restarts it."""


class DiskReserve:
    """The file of zeros beside the store's file, and about as large: a start may write as much, because it gives every
    partition a new leader epoch. `give_up` deletes it when the disk is full, `make` creates it again when there is
    space. Owned by the store's thread.
    """

    def __init__(self, store_path: str) -> None:
        self._store_path = store_path
        self._path = f"{store_path}-reserve"

    def make(self, *, share_max: float = 0.5) -> bool:
        """Extend the file to its full size, or by up to this share of the free space; returns whether it has its full
        size.
        """
        with suppress(OSError):
            size = min(max(_SIZE_MIN, os.stat(self._store_path).st_size), _SIZE_MAX)
            missing = size - (os.stat(self._path).st_size if os.path.exists(self._path) else 0)
            if missing <= 0:
                return True
            if os.path.exists(self._path) and not os.path.isfile(self._path):
                return False  # opening a pipe would block for ever
            system = os.statvfs(os.path.dirname(self._store_path) or ".")
            room = int(system.f_bavail * system.f_frsize * share_max)
            with open(self._path, "ab", buffering=0) as file:
                return file.write(bytes(min(missing, room))) == missing
        return False

    def give_up(self) -> bool:
        """Delete the file; returns whether it existed and was not empty."""
        try:
            found = os.stat(self._path).st_size > 0
            os.unlink(self._path)
        except OSError:
            return False
        return found
