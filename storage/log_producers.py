"""The producers of one log: their state in memory, and the snapshots that it is rebuilt from after a start.

Source: org.apache.kafka.storage.internals.log.ProducerStateManager, the part that deals with files.
"""

from __future__ import annotations

from collections.abc import Iterable

from barnabas.storage.files import write_file
from barnabas.storage.local_log import LocalLog
from barnabas.storage.log_context import LogContext
from barnabas.storage.producer_builder import ProducerBuilder
from barnabas.storage.producer_snapshot import encode_snapshot
from barnabas.storage.producer_state import ProducerState
from barnabas.storage.segment import SNAPSHOT_SUFFIX, Segment, file_name

_NEVER_MS = 1 << 63


class LogProducers:
    """The producers of one log.

    `state` is their state at the log end offset, None before it is first needed: then `load` builds it from the newest
    snapshot and the batches behind it. `snapshots` are the offsets of the `.snapshot` files, ascending.

    Ownership: the event loop, except `read_ids`.
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
        """The ids of the log's producers, including some that have expired. Blocking; any thread. Raises OSError."""
        if self.state is not None:
            return list(self.state.producers)
        # Works on copies of the event loop's lists; no snapshot is newer than the end.
        segments, snapshots = list(self._local.segments), list(self.snapshots)
        return self._builder(_NEVER_MS).producer_ids(segments, snapshots, log_start_offset, log_end_offset)

    def _builder(self, expiration_ms: int) -> ProducerBuilder:
        context = self._context
        return ProducerBuilder(context.cache.files, self._local.directory, expiration_ms, context.clock.now_ms())

    def remove_expired(self, now_ms: int) -> None:
        """Remove producers that have not written for the current producer.id.expiration.ms."""
        if self.state is not None:
            self.state.expiration_ms = self._context.producer_id_expiration_ms
            self.state.remove_expired(now_ms)

    # --- snapshots

    def lacks_snapshot(self, offset: int, log_start_offset: int) -> bool:
        """Whether a snapshot at `offset`, the log end offset, would be of use, and there is none yet."""
        return offset > log_start_offset and not (self.snapshots and self.snapshots[-1] >= offset)

    def take_snapshot(self, offset: int, state: ProducerState) -> None:
        """Write a snapshot of the state at `offset`, the log end offset. Page cache only.

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
        """Remove the snapshots at the base offsets of deleted segments from the list, except the one at `kept`."""
        bases = {segment.base_offset for segment in doomed} - {kept}
        self.snapshots[:] = [offset for offset in self.snapshots if offset not in bases]

    def builder(self) -> ProducerBuilder:
        """A builder of this log's producer state, with the current settings."""
        return self._builder(self._context.producer_id_expiration_ms)

    def replace(self, state: ProducerState, snapshots: list[int]) -> None:
        """Replace the state after a truncation, and the list of snapshots by the remaining ones."""
        self.state = state
        self.snapshots[:] = snapshots

    def _path(self, offset: int) -> str:
        return f"{self._local.directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"
