"""The leader epoch history of one log."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

UNDEFINED_EPOCH: Final = -1
UNDEFINED_OFFSET: Final = -1


class LeaderEpochs:
    """Leader epochs and the first offset of each, ascending in both. Pure: the caller that changes it writes
    `leader-epoch-checkpoint`.

    `dirty` is set by every change and cleared by the caller that has captured the entries for writing.

    Source: org.apache.kafka.storage.internals.epoch.LeaderEpochFileCache (KIP-101, KIP-279).
    """

    __slots__ = ("_epochs", "_starts", "dirty")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        for epoch, start_offset in entries:
            self.assign(epoch, start_offset)
        self.dirty = False

    def __len__(self) -> int:
        return len(self._epochs)

    @property
    def entries(self) -> list[tuple[int, int]]:
        """Every leader epoch with records in the log, and its first offset, oldest first."""
        return list(zip(self._epochs, self._starts, strict=True))

    @property
    def latest_epoch(self) -> int:
        """The last leader epoch with records in the log; -1 if none is known."""
        return self._epochs[-1] if self._epochs else UNDEFINED_EPOCH

    @property
    def latest_start_offset(self) -> int:
        """The start offset of the latest epoch; -1 if none is known."""
        return self._starts[-1] if self._starts else UNDEFINED_OFFSET

    @property
    def earliest_entry(self) -> tuple[int, int] | None:
        """The first known leader epoch and its first offset."""
        return (self._epochs[0], self._starts[0]) if self._epochs else None

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Record that `epoch` starts at `start_offset`, and remove contradicting entries; returns whether anything
        changed.
        """
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"leader epoch {epoch} at offset {start_offset} is invalid: neither may be negative")
        if self._epochs and epoch == self._epochs[-1] and start_offset >= self._starts[-1]:
            return False
        while self._epochs and (self._epochs[-1] >= epoch or self._starts[-1] >= start_offset):
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self.dirty = True
        return True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The last epoch up to `epoch`, and its end offset; (-1, -1) beyond the latest one."""
        if epoch == UNDEFINED_EPOCH or not self._epochs or epoch > self._epochs[-1]:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == self._epochs[-1]:
            return epoch, log_end_offset
        higher = bisect_right(self._epochs, epoch)
        if higher == 0:
            return epoch, self._starts[0]
        return self._epochs[higher - 1], self._starts[higher]

    def epoch_for(self, offset: int) -> int:
        """The epoch of `offset`; -1 if the offset precedes all entries."""
        slot = bisect_right(self._starts, offset) - 1
        return self._epochs[slot] if slot >= 0 else UNDEFINED_EPOCH

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove epochs that start at or beyond `end_offset`."""
        while self._starts and self._starts[-1] >= end_offset:
            self._epochs.pop()
            self._starts.pop()
            self.dirty = True

    def truncate_from_start(self, start_offset: int) -> None:
        """Remove epochs that end before `start_offset`; the epoch that contains it now starts there."""
        slot = bisect_right(self._starts, start_offset) - 1
        if slot < 0 or (slot == 0 and self._starts[0] == start_offset):
            return
        del self._epochs[:slot], self._starts[:slot]
        self._starts[0] = start_offset
        self.dirty = True

    def clear(self) -> None:
        """Remove all entries."""
        if self._epochs:
            self._epochs.clear()
            self._starts.clear()
            self.dirty = True
