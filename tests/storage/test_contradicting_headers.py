"""Batches whose header has another largest timestamp than their records: the log uses that of the records, as in Kafka,
on the leader and on its followers."""

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import crc32c
import pytest

from barnabas.storage.log import PartitionLog
from barnabas.storage.segment_removal import delete_old_segments
from barnabas.wire.compression import CompressionType
from barnabas.wire.record_batch import crc_is_valid, parse_header
from barnabas.wire.records import Record, build_batch

NOW = 1_700_000_000_000
"""The time of the log's clock."""
WEEK_MS = 7 * 24 * 60 * 60 * 1000


class Contradiction(NamedTuple):
    """The timestamps of a batch's records, and the largest one that its header claims."""

    timestamps: tuple[int, ...]
    claimed: int

    @property
    def right(self) -> int:
        return max(self.timestamps)

    @property
    def right_offset(self) -> int:
        return self.timestamps.index(self.right)

    def batch(self, codec: CompressionType = CompressionType.NONE) -> bytearray:
        records = [Record(offset, timestamp, None, b"x") for offset, timestamp in enumerate(self.timestamps)]
        batch = build_batch(records, compression=codec)
        struct.pack_into(">q", batch, 35, self.claimed)
        struct.pack_into(">I", batch, 17, crc32c.crc32c(bytes(batch[21:])))
        return batch


CONTRADICTIONS = {
    "small numbers, too small": Contradiction((1000, 5000, 2000), 2000),
    "small numbers, too large": Contradiction((1000, 5000, 2000), 9000),
    "before the first": Contradiction((NOW, NOW + 4000, NOW + 1000), NOW - 1),
    "of last week, too small": Contradiction((NOW - WEEK_MS, NOW, NOW - WEEK_MS), NOW - WEEK_MS),
    "a minute old, too small": Contradiction((NOW - 70_000, NOW - 5_000), NOW - 60_001),
    "of last week, too large": Contradiction((NOW - WEEK_MS, NOW - WEEK_MS - 1), NOW - 60_001),
    "a lone record, too small": Contradiction((NOW,), NOW - 3000),
    "a lone record, too large": Contradiction((NOW,), NOW + 3000),
}

pytestmark = pytest.mark.parametrize("made", [pytest.param(made, id=name) for name, made in CONTRADICTIONS.items()])


class Replica:
    """A log of a leader, or of a follower that copies it."""

    def __init__(self, leader: Any, follower: Any, tools: Any, **settings: Any) -> None:
        self._leader, self._tools = leader, tools
        self._logs = follower or leader
        self._leader.log(**settings)
        self._logs.log(**settings)

    @property
    def log(self) -> PartitionLog:
        found: PartitionLog = self._logs.log()
        return found

    def append(self, batch: bytearray) -> None:
        """Append to the leader's log, and copy what this log lacks."""
        leader = self._leader.log()
        self._leader.append_raw(leader, batch)
        if self.log is not leader:
            data = bytes(self._tools.read(leader, self.log.log_end_offset).records)
            self.log.append_as_follower(data, now_ms=self._logs.clock.now_ms())
        self.log.update_high_watermark(self.log.log_end_offset)

    def append_at(self, timestamp: int) -> None:
        self.append(self._tools.batch(b"y", timestamp=timestamp))

    def restart(self, *, clean: bool = True, without: str | None = None) -> None:
        """Close, or crash, delete the files with a suffix, and start again."""
        self._logs.stop(clean=clean)
        if without is not None:
            deleted = [path.unlink() for path in self._logs.path.glob(f"topic-0/*{without}")]
            assert deleted
        self._logs.start()
        self.log.update_high_watermark(self.log.log_end_offset)

    def bases(self) -> list[int]:
        return [segment.base_offset for segment in self.log.segments]


@pytest.fixture(params=["leader", "follower"])
def replica(request: pytest.FixtureRequest, make_logs: Any, tools: Any) -> Callable[..., Replica]:
    """Makes a log with the given settings."""

    def make(**settings: Any) -> Replica:
        follower = make_logs("follower") if request.param == "follower" else None
        return Replica(make_logs("leader"), follower, tools, **settings)

    return make


@pytest.mark.parametrize("codec", CompressionType)
@pytest.mark.parametrize("is_set", [False, True])
def test_the_header_is_stored_with_the_timestamp_of_the_records(
    replica: Callable[..., Replica], tools: Any, made: Contradiction, codec: CompressionType, *, is_set: bool
) -> None:
    """Also where the topic sets the codec that the batch has."""
    found = replica(compression_type=codec if is_set else None)
    found.append(made.batch(codec))
    stored = bytes(tools.read(found.log, 0).records)
    header = parse_header(stored)
    assert header.max_timestamp == made.right
    assert header.codec == codec
    assert crc_is_valid(stored, header)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_segment_that_begins_with_it_rolls_by_its_records(
    replica: Callable[..., Replica], made: Contradiction, restarts: bool
) -> None:
    found = replica(segment_ms=1000)
    found.append(made.batch())
    if restarts:
        found.restart()
    found.append_at(made.right + 1000)
    assert found.bases() == [0]
    found.append_at(made.right + 1001)
    assert found.bases() == [0, len(made.timestamps) + 1]


@pytest.mark.parametrize(("age_ms", "bases"), [(1000, [0]), (1001, [0, 1])])
def test_a_segment_rolls_by_its_records_times(
    replica: Callable[..., Replica], made: Contradiction, age_ms: int, bases: list[int]
) -> None:
    found = replica(segment_ms=1000)
    found.append_at(made.right - age_ms)
    found.append(made.batch())
    assert found.bases() == bases


@pytest.mark.parametrize(("restarts", "without"), [(False, None), (True, None), (True, ".timeindex")])
def test_retention_goes_by_its_records(
    replica: Callable[..., Replica], made: Contradiction, restarts: bool, without: str | None
) -> None:
    found = replica(retention_ms=1000, file_delete_delay_ms=0)
    found.append(made.batch())
    found.log.roll()
    if restarts:
        found.restart(without=without)
    assert delete_old_segments(found.log, made.right + 1000) == 0
    assert delete_old_segments(found.log, made.right + 1001) == 1
    assert found.log.log_start_offset == len(made.timestamps)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("rolls", [True, False])
def test_times_are_found_in_records_without_the_time_index(
    replica: Callable[..., Replica], made: Contradiction, rolls: bool, clean: bool
) -> None:
    found = replica(index_interval_bytes=0)
    found.append(made.batch())
    if rolls:
        found.log.roll()
    found.append_at(made.right + 1000)
    count = len(made.timestamps)
    expected = {
        made.timestamps[0]: (made.timestamps[0], 0),
        made.timestamps[0] + 1: (made.right, made.right_offset) if count > 1 else (made.right + 1000, 1),
        made.right: (made.right, made.right_offset),
        made.right + 1: (made.right + 1000, count),
        made.right + 1001: None,
    }
    for restarts in (False, True):
        if restarts:
            found.restart(clean=clean, without=".timeindex" if clean or rolls else None)
        looked_up = {time: found.log.timestamp_lookup().first_at_or_after(time) for time in expected}
        assert {time: each and (each.timestamp, each.offset) for time, each in looked_up.items()} == expected
        largest = found.log.timestamp_lookup().largest()
        assert largest is not None
        assert (largest.timestamp, largest.offset) == (made.right + 1000, count)
