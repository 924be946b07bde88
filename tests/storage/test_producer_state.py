"""A log's state of producers: batches in sequence, and duplicates; the state is bounded."""

import random
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import pytest

from barnabas.storage.producer_state import NO_OFFSET, ProducerEntry, ProducerState, beyond_their_share
from barnabas.storage.validation import AppendOrigin
from barnabas.wire.control_records import ControlRecordType, EndTxnMarker
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.record_batch import TRANSACTIONAL_MASK, RecordBatchHeader, parse_header
from barnabas.wire.records import Record, build_batch


def header(producer_id: int, *, transactional: bool = False, timestamp: int = 0) -> RecordBatchHeader:
    records = [Record(0, timestamp, None, b"")]
    return parse_header(
        build_batch(records, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=transactional)
    )


def test_the_producers_that_wrote_least_recently_are_forgotten() -> None:
    state = ProducerState(producers_max=100)
    state.record(header(-5 & 0xFFFF, transactional=True), 0)
    for producer_id in range(1, 1000):
        # Lying about time does not help; writing does.
        state.record(header(producer_id, timestamp=1 << 60 if producer_id < 50 else 0), 2 * producer_id)
        state.record(header(500), 2 * producer_id + 1)
    assert len(state.producers) <= 101
    assert {-5 & 0xFFFF, 500, 999, 998} <= state.producers.keys()
    assert not state.producers.keys() & set(range(1, 400))


def test_a_producer_expires_when_its_time_has_passed() -> None:
    state = ProducerState(expiration_ms=1_000)
    state.record(header(1, timestamp=5_000), 0)
    state.record(header(2, timestamp=5_001), 1)
    state.begin_verification(3, 0, 0, 5_000, bumps_epoch=False)
    state.begin_verification(4, 0, 0, 5_001, bumps_epoch=False)
    state.remove_expired(6_000)
    assert (list(state.producers), list(state.verifications)) == ([2], [4])


def test_open_transactions_are_never_forgotten() -> None:
    state = ProducerState(producers_max=100)
    for producer_id in range(200):
        state.record(header(producer_id, transactional=True), producer_id)
    assert len(state.producers) == len(state.ongoing) == 200


def test_a_log_with_few_producers_forgets_none() -> None:
    """Logs with many producers forget theirs."""
    states = [ProducerState() for _ in range(4)]
    for state, count in zip(states, (5, 300, 20, 200), strict=True):
        for producer_id in range(count):
            state.record(header(producer_id), producer_id)
    counts = {index: len(state.producers) for index, state in enumerate(states)}
    assert beyond_their_share(counts, 525) == {}
    assert beyond_their_share(counts, 225) == {1: 200, 3: 100}
    assert beyond_their_share({}, 225) == {}
    states[1].forget_oldest(200)
    assert set(states[1].producers) == set(range(200, 300))


def test_the_oldest_verification_is_forgotten_first() -> None:
    state = ProducerState()
    for producer_id in range(5):
        state.begin_verification(producer_id, 0, 0, 0, bumps_epoch=False)
    state.forget_oldest_verifications(3)
    assert set(state.verifications) == {3, 4}
    state.forget_oldest_verifications(3)
    assert not state.verifications


LAST_SEQUENCE = 2**31 - 1


def batch(sequence: int, *, epoch: int = 1, records: int = 3) -> RecordBatchHeader:
    return header(7)._replace(
        producer_epoch=epoch, base_sequence=sequence, last_offset_delta=records - 1, record_count=records
    )


@pytest.mark.parametrize("first", [0, 100, LAST_SEQUENCE - 8])  # the last one wraps around
def test_a_retry_is_known_and_only_the_next_sequence_follows(first: int) -> None:
    def sequence(number: int) -> int:
        return (first + 3 * number) & LAST_SEQUENCE

    state = ProducerState()
    for number in range(6):
        assert state.check(batch(sequence(number)), AppendOrigin.CLIENT) is None
        state.record(batch(sequence(number)), 3 * number)
    for number in range(1, 6):  # the last five
        known = state.check(batch(sequence(number)), AppendOrigin.CLIENT)
        assert known is not None
        assert (known.first_offset, known.last_offset) == (3 * number, 3 * number + 2)
    assert state.check(batch(sequence(6)), AppendOrigin.CLIENT) is None
    for number in (0, 5, 7):  # too old, of another length, too early
        with pytest.raises(ApiError) as raised:
            state.check(batch(sequence(number), records=2), AppendOrigin.CLIENT)
        assert raised.value.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize(
    ("epoch", "sequence", "error"),
    [
        (2, 0, None),
        (2, 3, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (0, 3, ErrorCode.INVALID_PRODUCER_EPOCH),
        (0, 0, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_an_epoch_starts_at_sequence_0_and_fences_older_ones(
    epoch: int, sequence: int, error: ErrorCode | None
) -> None:
    state = ProducerState()
    state.record(batch(0), 0)
    if error is None:
        assert state.check(batch(sequence, epoch=epoch), AppendOrigin.CLIENT) is None
        return
    with pytest.raises(ApiError) as raised:
        state.check(batch(sequence, epoch=epoch), AppendOrigin.CLIENT)
    assert raised.value.error is error


def test_after_a_marker_the_sequence_continues_or_is_0() -> None:
    """It is 0 in a new epoch."""
    for marker_epoch, sequence in ((1, 3), (2, 0)):
        state = ProducerState()
        state.record(batch(0)._replace(attributes=TRANSACTIONAL_MASK), 0)
        with pytest.raises(ApiError) as raised:
            state.check(batch(3), AppendOrigin.CLIENT)  # outside of the open transaction
        assert raised.value.error is ErrorCode.INVALID_TXN_STATE
        marker = batch(-1, epoch=marker_epoch, records=1)
        state.record_marker(marker, 3, EndTxnMarker(ControlRecordType.COMMIT, 0))
        assert state.check(batch(sequence, epoch=marker_epoch), AppendOrigin.CLIENT) is None


class CountedLooks(OrderedDict[int, int]):
    """Counts the keys that were iterated."""

    looks = 0

    def __iter__(self) -> Iterator[int]:
        for key in super().__iter__():
            self.looks += 1
            yield key


COMMIT = EndTxnMarker(ControlRecordType.COMMIT, 0)


def marker_header(producer_id: int) -> RecordBatchHeader:
    return header(producer_id)._replace(base_sequence=-1)


def test_the_first_unstable_offset_is_found_without_a_search() -> None:
    """Every reader of committed data needs it after every produce, however many transactions are open."""
    state = ProducerState()
    for producer_id in range(10_000):
        state.record(header(producer_id, transactional=True), producer_id)
    state.ongoing = ongoing = CountedLooks(state.ongoing)
    ongoing.looks = 0
    for _ in range(100):
        assert state.first_unstable_offset == 0
    for producer_id in range(5_000):
        state.record_marker(marker_header(producer_id), 10_000 + producer_id, COMMIT)
        state.forget_replicated(10_001 + producer_id)
        assert state.first_unstable_offset == producer_id + 1
    assert ongoing.looks <= 2 * 5_100


class CountedSearches(dict[int, ProducerEntry]):
    """Counts the iterations over all producers."""

    searches = 0

    def values(self) -> Any:
        self.searches += 1
        return super().values()


def test_open_transactions_cause_no_search_for_idle_producers() -> None:
    """A new producer does not search all of them each time."""
    state = ProducerState(producers_max=100)
    state.producers = producers = CountedSearches()
    for producer_id in range(300):
        state.record(header(producer_id, transactional=True), producer_id)
    assert producers.searches == 0
    for producer_id in range(300, 401):
        state.record(header(producer_id), producer_id)
    assert producers.searches == 1, "to forget the one that wrote least recently"


@pytest.mark.parametrize("seed", range(20))
def test_the_first_unstable_offset_is_that_of_a_plain_search(seed: int) -> None:
    """Producers begin, end and are replicated in any order; at times the log is loaded again."""
    rng = random.Random(seed)
    state = ProducerState()
    unreplicated: dict[int, int] = {}
    high_watermark = 0
    for offset in range(400):
        producer_id = rng.randrange(30)
        entry = state.producers.get(producer_id)
        first = NO_OFFSET if entry is None else entry.transaction_first_offset
        if first != NO_OFFSET and rng.randrange(2):
            state.record_marker(marker_header(producer_id), offset, COMMIT)
            unreplicated[first] = offset
        else:
            state.record(header(producer_id, transactional=True), offset)
        if not rng.randrange(10):
            high_watermark = rng.randint(high_watermark, offset + 1)
            state.forget_replicated(high_watermark)
            unreplicated = {first: marker for first, marker in unreplicated.items() if marker >= high_watermark}
        if not rng.randrange(50):
            entries = list(state.producers.values())
            rng.shuffle(entries)
            state = ProducerState()
            state.load(entries, offset + 1, 0)
            unreplicated = {}
        open_since = {entry.transaction_first_offset for entry in state.producers.values()} - {NO_OFFSET}
        assert state.first_unstable_offset == min(open_since | unreplicated.keys(), default=None), f"at {offset}"
