"""Checks that a compacted topic still has the last value of each key.

Every key belongs to one process, which numbers its writes; a write sets the key to its number, or deletes the key. The
number is in a header too, so that a deletion can be identified. The topic is read from its start to its end,
repeatedly, while it is written, killed and compacted, and once more at the end.

A write is certain when it was acknowledged, or when a record of its transaction was read: uncommitted data must not be
read. A reading must reflect the newest certain write of each key below its end (the last reading: of all writes): its
last record of the key must be that write or a newer one.

- `lost-newest`: the write was a value, and the reading has an older write or none. None is fine if a newer deletion
  with an unknown result exists: deletions are removed too, after delete.retention.ms.
- `deleted-key`: the write was a deletion, and the reading has an older value.
- `nonmonotonic-key`: writes of a key are in another order than they were sent.
- `inconsistent-offsets`, `duplicate`, `unknown-value`, `G1a`, `int-nonmonotonic-poll`: as in tools/soak/checker.py.

Not an anomaly: a reading of more than READING_S returned a value whose deletion was written and removed before the
reading reached it. Nor are older records that compaction has not removed yet.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from tools.soak.checker import Findings
from tools.soak.history import Status, Value

DELETE_RETENTION_S = 6.0
READING_S = DELETE_RETENTION_S / 2
"""A deletion after a reading's start is kept for this time at least: the other half is for the compaction pass, which
uses the time of its own start.
"""

Place = tuple[int, int]
"""Partition and offset."""


@dataclass(frozen=True, slots=True)
class KeyedWrite:
    """One value or deletion; `offset` is the acknowledged one, None if the client received none."""

    partition: int
    key: str
    number: int
    is_deletion: bool = False
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class KeyedOperation:
    """Writes of one process that were acknowledged together, or are atomic."""

    status: Status
    writes: Sequence[KeyedWrite]


@dataclass(frozen=True, slots=True)
class KeyedRecord:
    """A record that was read; `number` is its content if no process can have written it."""

    partition: int
    offset: int
    key: Value
    number: Value
    is_deletion: bool


@dataclass(frozen=True, slots=True)
class Reading:
    """All committed records from the start of each partition to its end, in the order in which they arrived."""

    records: Sequence[KeyedRecord]
    ends: Mapping[int, float]
    seconds: float = 0.0


@dataclass(slots=True)
class KeyedHistory:
    """The writes of each process, in its order, and the readings; the last reading followed all writes."""

    operations: list[KeyedOperation] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)


class KeyedChecker:
    """One check of one history; `run` may be called once."""

    def __init__(self, history: KeyedHistory) -> None:
        self._history = history
        self._findings = Findings(operations=len(history.operations) + len(history.readings))
        self._writes: dict[tuple[Value, Value], tuple[KeyedOperation, KeyedWrite]] = {}
        self._places: dict[tuple[Value, Value], Place] = {}
        self._unsure_deletions: dict[str, list[int]] = defaultdict(list)
        """The writes with an unknown result."""
        self._certain: dict[str, list[tuple[float, KeyedWrite]]] = defaultdict(list)
        """The certain writes of each key by offset; infinite for an unknown offset."""

    def run(self) -> Findings:
        self._collect()
        for reading in self._history.readings:
            self._check_records(reading)
        self._check_places()
        self._order_certain()
        for reading in self._history.readings:
            self._check_newest(reading)
        return self._findings

    def _collect(self) -> None:
        for operation in self._history.operations:
            is_acknowledged = operation.status is Status.OK
            self._findings.acknowledged += is_acknowledged * len(operation.writes)
            for write in operation.writes:
                self._writes[write.key, write.number] = operation, write
                if write.is_deletion and operation.status is Status.INFO:
                    self._unsure_deletions[write.key].append(write.number)

    def _check_records(self, reading: Reading) -> None:
        """Check each record of a reading, and that offsets increase."""
        positions: dict[int, int] = {}
        for record in reading.records:
            where = f"partition {record.partition} at offset {record.offset}"
            if record.offset <= positions.get(record.partition, -1):
                self._findings.add("int-nonmonotonic-poll", f"{where}: it came after a later one")
            positions[record.partition] = record.offset
            operation, write = self._writes.get((record.key, record.number), (None, None))
            if operation is None or write is None:
                self._findings.add("unknown-value", f"{where}: nobody wrote {record.number!r} to {record.key!r}")
            elif (write.partition, write.is_deletion) != (record.partition, record.is_deletion):
                self._findings.add("unknown-value", f"{where}: {record} was written as {write}")
            elif operation.status is Status.FAIL:
                self._findings.add("G1a", f"{where}: {record.key} has {record.number}, but its write failed")

    def _check_places(self) -> None:
        """Check that an offset has one record, and a record one offset, in all readings."""
        taken: dict[Place, tuple[Value, Value]] = {}
        for place, write in self._all_places():
            if taken.setdefault(place, write) != write:
                where = f"partition {place[0]} at offset {place[1]}"
                self._findings.add("inconsistent-offsets", f"{where}: {taken[place]} and {write}")
            if self._places.setdefault(write, place) != place:
                self._findings.add("duplicate", f"{write} stands at {self._places[write]} and at {place}")

    def _all_places(self) -> Iterator[tuple[Place, tuple[Value, Value]]]:
        for operation in self._history.operations:
            for write in operation.writes:
                if operation.status is Status.OK and write.offset is not None:
                    yield (write.partition, write.offset), (write.key, write.number)
        for reading in self._history.readings:
            for record in reading.records:
                yield (record.partition, record.offset), (record.key, record.number)

    def _order_certain(self) -> None:
        for operation in self._history.operations:
            was_read = any((write.key, write.number) in self._places for write in operation.writes)
            if operation.status is Status.OK or (operation.status is Status.INFO and was_read):
                for write in operation.writes:
                    _, offset = self._places.get((write.key, write.number), (write.partition, inf))
                    self._certain[write.key].append((offset, write))
        for key, writes in self._certain.items():
            writes.sort(key=lambda found: (found[0], found[1].number))
            known = [write.number for offset, write in writes if offset < inf]
            if known != sorted(known):
                self._findings.add("nonmonotonic-key", f"{key}: its writes stand in the order {known}"[:500])

    def _check_newest(self, reading: Reading) -> None:
        last = {record.key: record for record in reading.records}
        for key, writes in self._certain.items():
            end = reading.ends[writes[0][1].partition]
            below = len(writes) if end == inf else bisect_left(writes, end, key=lambda found: found[0])
            if below:
                # Known offsets increase with the numbers.
                candidates = writes if end == inf else writes[below - 1 : below]
                newest = max((write for _, write in candidates), key=lambda write: write.number)
                self._compare(reading, newest, last.get(key))

    def _compare(self, reading: Reading, newest: KeyedWrite, found: KeyedRecord | None) -> None:
        """Compare the newest certain write of a key with its last record in a reading."""
        if found is not None and isinstance(found.number, int) and found.number >= newest.number:
            return
        may_be_deleted = newest.is_deletion or any(
            number > newest.number for number in self._unsure_deletions.get(newest.key, ())
        )
        if found is None or found.is_deletion:
            if not may_be_deleted:
                self._findings.add("lost-newest", f"{newest} is not there, nor anything newer")
        elif reading.seconds <= READING_S or not may_be_deleted:
            name = "deleted-key" if newest.is_deletion else "lost-newest"
            self._findings.add(name, f"{newest} is not there, but {found}")


def check_keyed(history: KeyedHistory) -> Findings:
    """Check for every anomaly."""
    return KeyedChecker(history).run()
