"""One run of a cluster: a thread, its event loop, and the metadata store of the brokers that live there."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from barnabas.broker.event_loops import new_event_loop
from barnabas.clock import Clock
from barnabas.controller.coordination.embedded import EmbeddedStore
from barnabas.controller.coordination.owner_thread import OwnerThread
from barnabas.testing.brokers.log_lines import Lines, OwnStoreWorker
from barnabas.testing.waiting.calls import Calls

METADATA_FILE: Final = "metadata.sqlite"


class ClusterThread:
    """A thread that runs an event loop from construction until `end`; other threads ask it by `calls`, of which
    `check_ready` refuses those that need a running broker.
    """

    def __init__(self, clock: Clock, lines: Lines, check_ready: Callable[[], None]) -> None:
        self._clock = clock
        self._lines = lines
        self._store: EmbeddedStore | None = None
        self.calls = Calls("cluster", check_ready)
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), name="barnabas-cluster", daemon=True)
        self._thread.start()
        started.wait()

    def _run(self, started: threading.Event) -> None:
        self._lines.here()
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            self._loop = loop = runner.get_loop()
            self.turn = asyncio.Lock()
            """Held while all brokers are stopped, and started."""
            self.calls.begin(loop)
            loop.call_soon(started.set)
            loop.run_forever()
        self.calls.close()

    def end(self) -> None:
        """End the event loop, and return when the thread has ended."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    @property
    def store(self) -> EmbeddedStore:
        """The metadata store, which was opened."""
        assert self._store is not None
        return self._store

    async def open_store(self, directory: Path) -> None:
        """Open the metadata store in a directory, or create it there. On the event loop."""
        worker = OwnStoreWorker(OwnerThread(), self._lines)
        self._store = EmbeddedStore(str(directory / METADATA_FILE), self._clock, is_durable=False, worker=worker)
        await self._store.open()

    async def close_store(self) -> None:
        """Close the metadata store, if it was opened. On the event loop."""
        if self._store is not None:
            await self._store.close()
