"""Each anomaly of a compacted topic in its smallest history, and what compaction may do without being told of one."""

from collections.abc import Sequence
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.soak.compacted import (
    READING_S,
    KeyedHistory,
    KeyedOperation,
    KeyedRecord,
    KeyedWrite,
    Reading,
    check_keyed,
)
from tools.soak.history import Status

OK, FAIL, INFO = Status.OK, Status.FAIL, Status.INFO


def write(
    number: int, offset: int | None = None, *, key: str = "k", deletes: bool = False, status: Status = OK
) -> KeyedOperation:
    return KeyedOperation(status, [KeyedWrite(0, key, number, deletes, offset)])


def reading(*records: tuple[int, int], deletes: Sequence[int] = (), end: float = inf, seconds: float = 0.0) -> Reading:
    """(offset, number) of one key's records."""
    found = [KeyedRecord(0, offset, "k", number, number in deletes) for offset, number in records]
    return Reading(found, {0: end}, seconds)


def anomalies(*events: KeyedOperation | Reading) -> set[str]:
    return set(
        check_keyed(
            KeyedHistory(
                [event for event in events if isinstance(event, KeyedOperation)],
                [event for event in events if isinstance(event, Reading)],
            )
        ).anomalies
    )


def test_the_newest_value_is_enough() -> None:
    assert anomalies(write(1, 0), write(2, 1), reading((1, 2))) == set()
    assert anomalies(write(1, 0), write(2, 1), reading((0, 1), (1, 2))) == set()


def test_a_newest_value_that_is_gone() -> None:
    assert anomalies(write(1, 0), reading()) == {"lost-newest"}
    assert anomalies(write(1, 0), write(2, 1), reading((0, 1))) == {"lost-newest"}
    assert anomalies(write(1, 0, deletes=True), write(2, 1), reading((0, 1), deletes=[1])) == {"lost-newest"}


def test_a_loss_counts_in_the_reading_that_shows_it() -> None:
    events = [write(1, 0), write(2, 5), write(3, 9), reading((9, 3))]
    assert anomalies(*events, reading((0, 1), end=6)) == {"lost-newest"}
    assert anomalies(*events, reading((0, 1), end=5)) == set()


def test_a_newer_value_of_an_unknown_send_may_be_there() -> None:
    for status in (OK, INFO):
        assert anomalies(write(1, 0), write(2, status=status), reading((1, 2))) == set()
    assert anomalies(write(1, 0), write(2, status=INFO), reading((0, 1))) == set()
    assert anomalies(write(1, 0), write(2, status=INFO), reading()) == {"lost-newest"}


def test_a_value_read_once_must_stay() -> None:
    events = [write(1, 0), write(2, status=INFO), reading((1, 2))]
    assert anomalies(*events, reading((0, 1))) == {"lost-newest"}
    assert anomalies(*events, reading((0, 1), end=1)) == set()


def test_a_read_record_of_a_transaction_binds_all() -> None:
    both = KeyedOperation(INFO, [KeyedWrite(0, "k", 2), KeyedWrite(0, "other", 3)])
    assert anomalies(write(1, 0), both, reading((0, 1))) == set()
    assert anomalies(write(1, 0), both, reading((0, 1), (1, 2))) == {"lost-newest"}


def test_a_deletion_goes_in_the_end() -> None:
    events = [write(1, 0), write(2, 1, deletes=True)]
    assert anomalies(*events, reading((1, 2), deletes=[2])) == set()
    assert anomalies(*events, reading()) == set()


def test_a_deleted_key_that_comes_back() -> None:
    assert anomalies(write(1, 0), write(2, 1, deletes=True), reading((0, 1))) == {"deleted-key"}


def test_a_long_reading_may_miss_a_deletion_and_nothing_else() -> None:
    slow = reading((0, 1), seconds=READING_S * 2)
    assert anomalies(write(1, 0), write(2, 1, deletes=True), slow) == set()
    assert anomalies(write(1, 0), write(2, 1), slow) == {"lost-newest"}


def test_a_deletion_with_an_unknown_end_is_allowed() -> None:
    events = [write(1, 0), write(2, 1), write(3, deletes=True, status=INFO)]
    assert anomalies(*events, reading((1, 2))) == set()
    assert anomalies(*events, reading()) == set()
    assert anomalies(*events, reading((0, 1))) == {"lost-newest"}


def test_a_deletion_that_failed_or_came_before_explains_nothing() -> None:
    assert anomalies(write(1, 0), write(2, deletes=True, status=FAIL), reading()) == {"lost-newest"}
    assert anomalies(write(1, deletes=True, status=INFO), write(2, 1), reading()) == {"lost-newest"}


def test_a_value_whose_write_failed() -> None:
    assert anomalies(write(1, 0), write(2, status=FAIL), reading((0, 1), (1, 2))) == {"G1a"}


def test_offsets_are_used_once() -> None:
    assert anomalies(write(1, 0), write(2, 0), reading((0, 2))) == {"inconsistent-offsets"}
    assert "inconsistent-offsets" in anomalies(write(1, 0), write(2, status=INFO), reading((0, 1)), reading((0, 2)))
    assert anomalies(write(1, 0), reading((0, 1), (1, 1))) == {"duplicate"}


def test_offsets_of_a_reading_grow() -> None:
    assert "int-nonmonotonic-poll" in anomalies(write(1, 0), write(2, 1), reading((1, 2), (0, 1)))


def test_writes_of_a_key_in_another_order() -> None:
    assert "nonmonotonic-key" in anomalies(write(1, 1), write(2, 0), reading((0, 2), (1, 1)))


@pytest.mark.parametrize(
    "record",
    [
        KeyedRecord(0, 1, "k", 7, is_deletion=False),
        KeyedRecord(0, 1, "k", b"?", is_deletion=False),
        KeyedRecord(0, 1, None, 2, is_deletion=False),
        KeyedRecord(0, 1, "k", 2, is_deletion=True),
        KeyedRecord(1, 1, "k", 2, is_deletion=False),
    ],
)
def test_unwritten_records_are_found(record: KeyedRecord) -> None:
    assert "unknown-value" in anomalies(write(1, 0), write(2, 1), Reading([record], {0: inf}))


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), min_size=1, max_size=30),
    st.data(),
)
def test_only_records_that_compaction_may_remove_are_no_loss(
    given_writes: list[tuple[str, bool]], data: st.DataObject
) -> None:
    """Superseded records may be there or not, deletions that are the newest of their key too."""
    operations = [write(number, number, key=key, deletes=deletes) for number, (key, deletes) in enumerate(given_writes)]
    log = [
        KeyedRecord(0, number, key, number, is_deletion=deletes) for number, (key, deletes) in enumerate(given_writes)
    ]
    newest = {record.key: record for record in log}
    is_kept = {record: data.draw(st.booleans()) for record in log}
    values = [record for record in newest.values() if not record.is_deletion]
    # A deletion goes after what it deletes, so it stays as long as anything older of its key does.
    needed = {newest[record.key] for record in log if record != newest[record.key] and is_kept[record]} | set(values)
    kept = [record for record in log if is_kept[record] or record in needed]
    assert not check_keyed(KeyedHistory(operations, [Reading(kept, {0: inf})])).anomalies
    if values:
        lost = data.draw(st.sampled_from(values))
        rest = [record for record in kept if record != lost]
        assert set(check_keyed(KeyedHistory(operations, [Reading(rest, {0: inf})])).anomalies) == {"lost-newest"}
