"""A disk that is slow for some logs."""

import asyncio
import os
import threading
from pathlib import Path

from barnabas.storage.os_files import OsFiles
from tools.waiting import PATIENCE_S


class SlowDisk(OsFiles):
    """Syncs of the files of logs whose names begin with `name` wait until `go_on` is set, or `PATIENCE_S`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.begun: dict[str, str] = {}
        """The thread that was first to sync each log."""
        self.go_on = threading.Event()
        self._changed = threading.Condition()

    def sync(self, descriptor: int) -> None:
        log = Path(os.readlink(f"/proc/self/fd/{descriptor}")).parent.name
        if log.startswith(self._name):
            with self._changed:
                self.begun.setdefault(log, threading.current_thread().name)
                self._changed.notify_all()
            assert self.go_on.wait(PATIENCE_S)
        super().sync(descriptor)

    def wait_until_reached(self, count: int = 1) -> None:
        """Return when the syncs of `count` logs have begun."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.begun) >= count, PATIENCE_S), (
                f"{len(self.begun)} flushes began"
            )

    async def reached(self, count: int = 1) -> None:
        """Like `wait_until_reached`, on an event loop."""
        await asyncio.to_thread(self.wait_until_reached, count)
