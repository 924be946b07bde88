"""What a log remembers of producers is bounded, whoever they are."""

import pytest

from barnabas.storage import producer_state
from barnabas.storage.producer_state import ProducerState, bound_producers
from barnabas.wire.record_batch import RecordBatchHeader, parse_header
from barnabas.wire.records import Record, build_batch


def header(producer_id: int, *, transactional: bool = False, timestamp: int = 0) -> RecordBatchHeader:
    records = [Record(0, timestamp, None, b"")]
    return parse_header(
        build_batch(records, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=transactional)
    )


def test_the_producers_that_wrote_least_recently_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_state, "PRODUCERS_MAX", 100)
    state = ProducerState()
    state.record(header(-5 & 0xFFFF, transactional=True), 0)
    for producer_id in range(1, 1000):
        # Lying about time does not help; writing does.
        state.record(header(producer_id, timestamp=1 << 60 if producer_id < 50 else 0), 2 * producer_id)
        state.record(header(500), 2 * producer_id + 1)
    assert len(state.producers) <= 101
    assert {-5 & 0xFFFF, 500, 999, 998} <= state.producers.keys()
    assert not state.producers.keys() & set(range(1, 400))


def test_open_transactions_are_never_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_state, "PRODUCERS_MAX", 100)
    state = ProducerState()
    for producer_id in range(200):
        state.record(header(producer_id, transactional=True), producer_id)
    assert len(state.producers) == len(state.ongoing) == 200


def test_a_log_with_few_producers_forgets_none_for_the_sake_of_others() -> None:
    states = [ProducerState() for _ in range(4)]
    for state, count in zip(states, (5, 300, 20, 200), strict=True):
        for producer_id in range(count):
            state.record(header(producer_id), producer_id)
    bound_producers(states, 525)
    assert [len(state.producers) for state in states] == [5, 300, 20, 200]
    bound_producers(states, 225)
    assert [len(state.producers) for state in states] == [5, 100, 20, 100]
    assert set(states[1].producers) == set(range(200, 300))
    bound_producers([], 225)
