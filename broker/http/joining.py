"""The joining of a broker: it is complete once all of its replicas have been in sync since its start."""

from __future__ import annotations

from collections.abc import Callable

from barnabas.broker.cluster.metadata import MetadataCache


class Joining:
    """The state of broker `node_id` from when it `is_ready` on. It is updated whenever the metadata change, not only on
    request: replicas that fall behind after joining do not count for a late request."""

    def __init__(self, metadata: MetadataCache, node_id: int, is_ready: Callable[[], bool]) -> None:
        self._metadata = metadata
        self._node_id = node_id
        self._is_ready = is_ready
        self._is_done = False
        self._awaited: tuple[str, int] | None = None
        """A partition of which this broker is not in sync yet: as long as that is so, no other one has
        to be checked."""

    def start(self) -> None:
        """Follow the metadata from now on."""
        self._metadata.listeners[self.look] = None
        self.look()

    def stop(self) -> None:
        """Stop following the metadata."""
        self._metadata.listeners.pop(self.look, None)

    def look(self) -> None:
        """Check whether the broker has joined by now; also called when it gets ready."""
        if self._is_done or not self._is_ready():
            return
        if self._awaited is None or not self._metadata.is_out_of_sync(self._node_id, *self._awaited):
            self._awaited = next(self._metadata.out_of_sync(self._node_id), None)
            self._is_done = self._awaited is None

    def lacking(self) -> int:
        """The number of replicas that have not been in sync yet since the start."""
        self.look()
        return 0 if self._is_done else sum(1 for _ in self._metadata.out_of_sync(self._node_id))
