"""What one log knows of its producers: their state in memory, and the snapshots that it is built from after a start.

Source: org.apache.kafka.storage.internals.log.ProducerStateManager, as far as it is about files.
"""

from __future__ import annotations

from collections.abc import Iterable

from barnabas.storage.files import write_file
from barnabas.storage.local_log import LocalLog
from barnabas.storage.log_context import LogContext
from barnabas.storage.producer_builder import ProducerBuilder
from barnabas.storage.producer_state import ProducerState, encode_snapshot
from barnabas.storage.segment import SNAPSHOT_SUFFIX, Segment, file_name

_NEVER_MS = 1 << 63


class LogProducers:
    """The producers of one log.

    `state` is what is known of them at the log's end, None until somebody needs it: then `load` builds it from the
    newest snapshot and the batches behind that. `snapshots` are the offsets of the `.snapshot` files, ascending.

    Ownership: the event loop, but for `read_ids`.
    """

    __slots__ = ("_context", "_local", "snapshots", "state")

    def __init__(self, context: LogContext, local: LocalLog, snapshots: list[int], state: ProducerState | None) -> None:
        self.state = state
        self.snapshots = snapshots
        self._context = context
        self._local = local

    # --- the state

    def load(self, log_start_offset: int, log_end_offset: int, high_watermark: int) -> ProducerState:
        """Build the state, if it is not in memory. Blocking: a few small reads after a clean start, the last segment's
        headers after a truncation.

        Raises:
            StorageError: the disk refused.
        """
        if self.state is None:
            with self._local.health.refusing_if(f"reading the producers of {self._local.directory}"):
                self.state = self.builder().build(
                    self._local.segments, self.snapshots, log_start_offset, log_end_offset
                )
            self.state.forget_replicated(high_watermark)
        return self.state

    def read_ids(self, log_start_offset: int, log_end_offset: int) -> list[int]:
        """The ids that producers of the log have, or had a while ago. Blocking; any thread. Raises OSError."""
        if self.state is not None:
            return list(self.state.producers)
        # Nothing that the event loop goes by is touched, and no snapshot is newer than the end.
        segments, snapshots = list(self._local.segments), list(self.snapshots)
        return self._builder(_NEVER_MS).producer_ids(segments, snapshots, log_start_offset, log_end_offset)

    def _builder(self, expiration_ms: int) -> ProducerBuilder:
        context = self._context
        return ProducerBuilder(context.cache.files, self._local.directory, expiration_ms, context.clock.now_ms())

    def remove_expired(self, now_ms: int) -> None:
        """Forget producers that have not written for producer.id.expiration.ms, as it is now."""
        if self.state is not None:
            self.state.expiration_ms = self._context.producer_id_expiration_ms
            self.state.remove_expired(now_ms)

    # --- snapshots

    def take_snapshot(self, offset: int, state: ProducerState) -> None:
        """Write the state as of `offset`, of which there is no snapshot yet. Page cache only.

        Raises:
            StorageError: the disk refused.
        """
        path = self._path(offset)
        with self._local.health.refusing_if(f"writing {path}"):
            write_file(self._context.cache.files, path, encode_snapshot(state.producers.values()))
        self.snapshots.append(offset)
        if state.producers:
            self._local.durability.note_names(path)

    def forget_snapshots(self, doomed: Iterable[Segment], kept: int = -1) -> None:
        """The snapshots at the start of segments went with them, but for the one at `kept`."""
        bases = {segment.base_offset for segment in doomed} - {kept}
        self.snapshots[:] = [offset for offset in self.snapshots if offset not in bases]

    def builder(self) -> ProducerBuilder:
        """What builds the state of this log's producers, as of now."""
        return self._builder(self._context.producer_id_expiration_ms)

    def replace(self, state: ProducerState, snapshots: list[int]) -> None:
        """Batches were cut off: this is the state at the log's end, and these are the snapshots that are left."""
        self.state = state
        self.snapshots[:] = snapshots

    def _path(self, offset: int) -> str:
        return f"{self._local.directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"
