"""Room on the disk that is kept for the metadata store, so that a broker can start, and stop, on a full one: bytes, and
with them a name, which the store's write-ahead log gets where the disk has no inodes left."""

import os
from contextlib import suppress

_SIZE_MIN = 256 * 1024
_SIZE_MAX = 8 * 1024 * 1024
"""SQLite moves its write-ahead log into the database every 4 MiB, and then goes on at its beginning."""


class DiskReserve:
    """A file of nothing beside the store's, as large as what one start may write: every partition gets a new leader
    epoch then. It is given up when the disk is full, and made again when there is room. Owned by one thread.
    """

    def __init__(self, store_path: str) -> None:
        self._store_path = store_path
        self._path = f"{store_path}-reserve"

    def make(self, *, share_max: float = 0.5) -> bool:
        """Take the room, or up to this share of what there is; whether it is all there."""
        with suppress(OSError):
            size = min(max(_SIZE_MIN, os.stat(self._store_path).st_size), _SIZE_MAX)
            missing = size - (os.stat(self._path).st_size if os.path.exists(self._path) else 0)
            if missing <= 0:
                return True
            if os.path.exists(self._path) and not os.path.isfile(self._path):
                return False  # opening a pipe would wait for ever
            system = os.statvfs(os.path.dirname(self._store_path) or ".")
            room = int(system.f_bavail * system.f_frsize * share_max)
            with open(self._path, "ab", buffering=0) as file:
                return file.write(bytes(min(missing, room))) == missing
        return False

    def give_up(self) -> bool:
        """Return the room to the disk; whether there was any."""
        try:
            found = os.stat(self._path).st_size > 0
            os.unlink(self._path)
        except OSError:
            return False
        return found
