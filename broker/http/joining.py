"""Whether a broker has joined its cluster since it was started: once all of its replicas have been in sync."""

from __future__ import annotations

from collections.abc import Callable

from barnabas.broker.cluster.metadata import MetadataCache


class Joining:
    """Of broker `node_id`, from when it `is_ready` on. It looks by itself whenever the metadata change, not only when
    somebody asks: whoever asks late, or once, is not told of what has fallen behind since."""

    def __init__(self, metadata: MetadataCache, node_id: int, is_ready: Callable[[], bool]) -> None:
        self._metadata = metadata
        self._node_id = node_id
        self._is_ready = is_ready
        self._is_done = False
        self._awaited: tuple[str, int] | None = None
        """One of the partitions that lack this broker: as long as it does, no other one has to be looked at."""

    def start(self) -> None:
        """Look at the metadata from now on."""
        self._metadata.listeners[self.look] = None
        self.look()

    def stop(self) -> None:
        """Look no longer."""
        self._metadata.listeners.pop(self.look, None)

    def look(self) -> None:
        """See whether the broker has joined by now; it is called when it gets ready, too."""
        if self._is_done or not self._is_ready():
            return
        if self._awaited is None or not self._metadata.is_out_of_sync(self._node_id, *self._awaited):
            self._awaited = next(self._metadata.out_of_sync(self._node_id), None)
            self._is_done = self._awaited is None

    def lacking(self) -> int:
        """How many replicas have yet to be in sync for the first time since the start."""
        self.look()
        return 0 if self._is_done else sum(1 for _ in self._metadata.out_of_sync(self._node_id))
