"""Finds the log directories that are too full to take records from clients.

A full disk is no failure: an append that does not fit is undone, and existing records can be read. But deletions,
compaction, coordinators and the metadata store need room to work, and so does an administrator. Clients are refused
before that room is used up.
"""

import logging

from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.storage.log_manager import LogManager

logger = logging.getLogger(__name__)

SHARE_MAX = 20
"""The reserve is at most this fraction of the file system: otherwise small disks would be all reserve."""


class DiskSpace:
    """Checks the free space of all log directories, and sets the remaining room of each in the replica manager; without
    a reserve there is no limit. Ownership: the event loop."""

    def __init__(self, log_manager: LogManager, reserve_bytes: int, replicas: ReplicaManager) -> None:
        self._log_manager = log_manager
        self._reserve_bytes = reserve_bytes
        self._replicas = replicas
        self._full: set[str] = set()
        self._capped: set[str] = set()
        self.free_bytes: dict[str, int] = {}
        """By log directory, as of the last check."""

    @property
    def full(self) -> list[str]:
        """The log directories that take no records from clients."""
        return sorted(self._full)

    def complaint(self) -> str | None:
        """A message about full log directories; None if there are none."""
        if not self._full:
            return None
        return (
            f"{' and '.join(self.full)} {'is' if len(self._full) == 1 else 'are'} full, records of clients are refused"
        )

    async def check(self) -> None:
        """Check the free space. A full directory takes records again when an eighth more than the reserve is free."""
        appended = self._replicas.appended_bytes
        spaces = await self._log_manager.threads.call(self._measure)
        self.free_bytes = {path: free for path, (_, free) in spaces.items()}
        if self._reserve_bytes > 0:
            rooms = {path: self._room(path, total, free) for path, (total, free) in spaces.items()}
            self._replicas.limit_appends({path: appended + room for path, room in rooms.items()})

    def _measure(self) -> dict[str, tuple[int, int]]:
        """The total and free bytes of each directory."""
        spaces = {}
        for path in map(str, self._log_manager.directories):
            try:
                spaces[path] = self._log_manager.space(path)
            except OSError as error:
                logger.error("asking for the free space of %s failed: %s", path, error)
        return spaces

    def _room(self, path: str, total: int, free: int) -> int:
        """Bytes that a directory may still take; negative if it is full."""
        reserve = min(self._reserve_bytes, total // SHARE_MAX)
        if reserve < self._reserve_bytes and path not in self._capped:
            self._capped.add(path)
            logger.info("barnabas.disk.reserve.bytes: %d on %s, a %dth of its file system", reserve, path, SHARE_MAX)
        if path in self._full and free >= reserve + reserve // 8:
            self._full.discard(path)
            logger.warning("%s has room again", path)
        elif path in self._full or free < reserve:
            if path not in self._full:
                logger.error("%s is full: records of clients are refused until there is room", path)
            self._full.add(path)
            return -1 << 62
        return free - reserve
