"""Each anomaly in its smallest history, and histories that must not be mistaken for one."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.soak.checker import check
from tools.soak.history import Assigned, History, Mode, Operation, Poll, Send, Status

OK, FAIL, INFO = Status.OK, Status.FAIL, Status.INFO


def send(value: int, offset: int | None = None, *, status: Status = OK, process: int = 0, key: str = "x") -> Operation:
    return Operation(process, status, [Send(key, value, offset)])


def poll(
    *records: tuple[int, int], status: Status = OK, process: int = 9, key: str = "x", mode: Mode = Mode.ASSIGN
) -> Operation:
    return Operation(process, status, [Poll({key: list(records)})], mode=mode)


def transaction(*parts: Send | Poll, status: Status = OK, process: int = 0) -> Operation:
    return Operation(process, status, list(parts), is_transaction=True)


def anomalies(*events: Operation | Assigned, final: dict[str, list[tuple[int, int]]] | None = None) -> set[str]:
    return set(check(History(list(events), final)).anomalies)


def test_a_quiet_history_is_valid() -> None:
    assert anomalies(send(1, 0), send(2, 1), poll((0, 1)), poll((1, 2)), final={"x": [(0, 1), (1, 2)]}) == set()


def test_markers_leave_gaps_that_are_no_skips() -> None:
    assert anomalies(transaction(Send("x", 1, 0)), transaction(Send("x", 2, 2)), poll((0, 1), (2, 2))) == set()


def test_inconsistent_offsets() -> None:
    assert "inconsistent-offsets" in anomalies(send(1, 0), send(2, 0))
    assert "inconsistent-offsets" in anomalies(send(1, 0), send(2), poll((0, 1)), poll((0, 2), process=8))


def test_duplicate() -> None:
    assert "duplicate" in anomalies(send(1, 0), poll((0, 1), (1, 1)))


def test_lost_write_between_values_that_were_read() -> None:
    assert "lost-write" in anomalies(send(1, 0), send(2, 1), send(3, 2), poll((0, 1), (2, 3)))


def test_a_value_beyond_what_was_read_is_not_lost_yet() -> None:
    assert anomalies(send(1, 0), send(2, 1), poll((0, 1))) == set()


def test_a_value_of_an_indeterminate_send_may_be_missing() -> None:
    assert anomalies(send(1, 0), send(2, status=INFO), send(3, 1), poll((0, 1), (1, 3))) == set()


def test_a_read_record_of_an_indeterminate_transaction_binds_all() -> None:
    events = [
        transaction(Send("x", 1, 0), Send("y", 1, 0), status=INFO),
        send(2, 1, key="y"),
        poll((0, 1)),
        poll((1, 2), key="y", process=8),
    ]
    assert "lost-write" in anomalies(*events)


def test_unseen() -> None:
    assert anomalies(send(1, 0), send(2, 1), final={"x": [(0, 1)]}) == {"unseen"}


def test_aborted_read() -> None:
    assert "G1a" in anomalies(transaction(Send("x", 1), status=FAIL), poll((0, 1)))


def test_a_send_that_failed_is_noticed_wherever_it_is_read() -> None:
    failed = send(1, status=FAIL)
    for status in Status:
        assert anomalies(failed, poll((0, 1), status=status)) == {"G1a"}
    assert anomalies(failed, final={"x": [(0, 1)]}) == {"G1a"}
    assert anomalies(failed, send(2, 0), poll((0, 2)), final={"x": [(0, 2)]}) == set()


def test_a_send_with_an_unknown_end_may_be_read() -> None:
    for status in Status:
        assert anomalies(send(1, status=INFO), poll((0, 1), status=status), final={"x": [(0, 1)]}) == set()


def test_a_record_read_by_a_failed_reader_binds_its_transaction() -> None:
    events = [
        transaction(Send("x", 1, 0), Send("y", 1, 0), status=INFO),
        send(2, 1, key="y"),
        poll((1, 2), key="y", process=8),
    ]
    assert "lost-write" in anomalies(*events, poll((0, 1), status=INFO))
    assert anomalies(*events) == set()


def test_precommitted_read() -> None:
    assert "precommitted-read" in anomalies(transaction(Send("x", 1, 0), Poll({"x": [(0, 1)]})))


def test_jumps_within_a_poll() -> None:
    sends = [send(value, value) for value in range(3)]
    assert "int-poll-skip" in anomalies(*sends, poll((0, 0), (2, 2)), poll((1, 1), process=8))
    assert "int-nonmonotonic-poll" in anomalies(*sends, poll((1, 1), (0, 0)), poll((2, 2), process=8))


def test_jumps_between_polls_count_for_assigned_keys_only() -> None:
    sends = [send(value, value) for value in range(3)]
    others = poll((1, 1), process=8)
    assert anomalies(*sends, poll((0, 0)), poll((2, 2)), others) == {"poll-skip"}
    assert anomalies(*sends, poll((1, 1)), poll((0, 0)), poll((2, 2), process=8)) == {"nonmonotonic-poll"}
    assert anomalies(*sends, poll((0, 0)), poll((2, 2), mode=Mode.SUBSCRIBE), others) == set()


def test_an_assignment_without_the_key_forgets_its_position() -> None:
    sends = [send(value, value) for value in range(2)]
    assert anomalies(*sends, poll((1, 1)), Assigned(9, frozenset()), poll((0, 0))) == set()
    assert anomalies(*sends, poll((1, 1)), Assigned(9, frozenset({"x"})), poll((0, 0))) == {"nonmonotonic-poll"}


def test_polls_that_failed_do_not_move_the_position() -> None:
    sends = [send(value, value) for value in range(3)]
    assert anomalies(*sends, poll((0, 0)), poll((1, 1), status=INFO), poll((1, 1), (2, 2))) == set()


def test_sends_in_another_order() -> None:
    assert "nonmonotonic-send" in anomalies(send(1, 1), send(2, 0))
    assert "int-nonmonotonic-send" in anomalies(transaction(Send("x", 1, 1), Send("x", 2, 0)))
    assert anomalies(send(1, 1, process=0), send(2, 0, process=1)) == set()


def test_transactions_that_read_from_each_other() -> None:
    first = transaction(Send("x", 1, 0), Poll({"y": [(0, 1)]}), process=0)
    second = transaction(Send("y", 1, 0), Poll({"x": [(0, 1)]}), process=1)
    assert "G1c" in anomalies(first, second)


def test_a_process_that_reads_what_it_writes_later() -> None:
    assert "G1c" in anomalies(poll((0, 1), process=0), send(1, 0, process=0))


def test_the_witness_of_a_circle_is_the_shortest_one() -> None:
    """Four operations read from each other all around, and two of them to and fro."""
    first, second, third, fourth = (
        transaction(
            Send("x", number, number),
            *(Poll({"x": [(read, read)]}) for read in reads),
            process=number,
        )
        for number, reads in enumerate(((3, 1), (0,), (1,), (2,)))
    )
    findings = check(History([first, second, third, fourth]))
    (witness,) = findings.anomalies["G1c"]
    assert witness.endswith("circle: 0 of process 0 -> 1 of process 1 -> 0 of process 0")


@pytest.mark.slow
def test_a_long_chain_of_operations_is_looked_at_once() -> None:
    """Time must not grow with the square of the number of operations: then this would take ten minutes."""
    count = 20_000
    chain = [at(send(number, number), 2 * number, 2 * number + 1) for number in range(count)]
    assert check(History([*chain])).is_valid


@pytest.mark.slow
def test_a_circle_of_very_many_operations() -> None:
    count = 500
    around = [
        transaction(
            Send("x", number, number), Poll({"x": [((number - 1) % count, (number - 1) % count)]}), process=number
        )
        for number in range(count)
    ]
    (witness,) = check(History([*around])).anomalies["G1c"]
    assert witness.count(" of process ") == count + 1


def lag(*events: Operation, healed: float = -inf) -> tuple[float, float]:
    findings = check(History(list(events), healed=healed))
    return findings.realtime_lag_s, findings.realtime_lag_after_faults_s


def test_realtime_lag_begins_when_more_records_are_known() -> None:
    writes = [at(send(value, value), value, value + 0.5) for value in range(3)]  # known at 0.5, 1.5 and 2.5
    assert lag(*writes, at(poll((0, 0)), 1, 2)) == (0, 0)
    assert lag(*writes, at(poll((0, 0)), 7, 8)) == (5.5, 5.5)
    assert lag(*writes, at(poll((0, 0), (1, 1), (2, 2)), 7, 8)) == (0, 0)
    assert lag(
        *writes,
        at(
            poll((0, 0)),
            7,
            8,
        ),
        at(poll(), 9, 10),
    ) == (7.5, 7.5)
    assert lag(*writes, at(poll(), 7, 8)) == (6.5, 6.5)
    assert lag(*writes, at(poll((0, 0)), 7, 8), at(poll((1, 1)), 8, 9), healed=8) == (5.5, 5.5)
    assert lag(*writes, at(poll((0, 0)), 7, 8), at(poll((1, 1), (2, 2)), 8, 9), healed=8) == (5.5, 0)


def test_lag_of_a_group_is_its_own_affair() -> None:
    assert lag(at(send(0, 0), 0, 1), at(poll(mode=Mode.SUBSCRIBE), 7, 8)) == (0, 0)


def at(operation: Operation, invoked: float, completed: float) -> Operation:
    operation.invoked, operation.completed = invoked, completed
    return operation


def test_a_poll_that_was_over_before_its_value_was_written() -> None:
    assert anomalies(at(send(1, 0), 1, 2), at(poll((0, 1)), 3, 4)) == set()
    assert anomalies(at(send(1, 0), 1, 3), at(poll((0, 1)), 2, 4)) == set()
    assert anomalies(at(poll((0, 1)), 1, 2), at(send(1, 0), 3, 4)) == {"G1c"}
    assert anomalies(at(poll((0, 1)), 1, 2), at(send(1, status=INFO), 3, inf)) == {"G1c"}


def test_moments_that_touch_are_no_order() -> None:
    assert anomalies(at(poll((0, 1)), 1, 2), at(send(1, 0), 2, 3)) == set()


def test_real_time_reaches_over_operations_in_between() -> None:
    between = [at(send(10 + number, 10 + number, process=number), number * 2, number * 2 + 1) for number in range(1, 4)]
    assert "G1c" in anomalies(at(poll((0, 1)), 0, 1), *between, at(send(1, 0, process=5), 9, 10))


def test_an_operation_with_an_unknown_end_precedes_no_other() -> None:
    events = [at(transaction(Send("x", 1), Poll({"y": [(0, 1)]}), status=INFO), 1, inf), at(poll((0, 1)), 2, 3)]
    assert anomalies(*events, at(send(1, 0, key="y", process=5), 4, 5)) == set()


def test_pairs_are_there_in_both_keys_and_in_the_same_order() -> None:
    def pair(value: int, status: Status = OK) -> Operation:
        return transaction(Send("x", value), Send("y", value), status=status)

    events = [pair(1), pair(2), pair(3, INFO)]
    same = {"x": [(0, 1), (2, 2)], "y": [(0, 1), (1, 2)]}
    assert anomalies(*events, final=same) == set()
    assert "pair" in anomalies(*events, final={**same, "x": [(0, 1), (2, 2), (3, 3)]})
    assert "pair" in anomalies(*events, final={**same, "y": [(0, 2), (1, 1)]})


def test_pairs_of_two_processes_may_interleave() -> None:
    pairs = [transaction(Send("x", value), Send("y", value), process=value) for value in (1, 2)]
    assert anomalies(*pairs, final={"x": [(0, 1), (1, 2)], "y": [(0, 2), (1, 1)]}) == set()


def test_torn_transactions() -> None:
    sends = (Send("x", 1, 0), Send("y", 1, 0))
    whole, half, nothing = {"x": [(0, 1)], "y": [(0, 1)]}, {"x": [(0, 1)]}, {}
    assert "torn-transaction" in anomalies(transaction(*sends), final=half)
    assert "torn-transaction" in anomalies(transaction(*sends, status=INFO), final=half)
    assert "torn-transaction" in anomalies(transaction(*sends, status=FAIL), final=whole)
    assert anomalies(transaction(*sends, status=INFO), final=nothing) == set()
    assert anomalies(transaction(*sends, status=INFO), final=whole) == set()


def test_double_consume() -> None:
    consumed = frozenset({("g", "x", 0)})
    twice = [Operation(process, OK, [], is_transaction=True, consumed=consumed) for process in (0, 1)]
    assert anomalies(*twice) == {"double-consume"}


def test_a_transaction_with_an_unknown_end_can_consume_twice() -> None:
    consumed = frozenset({("g", "x", 0)})
    known = Operation(0, OK, [Send("y", 1, 0)], is_transaction=True, consumed=consumed)
    unknown = Operation(1, INFO, [Send("y", 2)], is_transaction=True, consumed=consumed)
    failed = Operation(2, FAIL, [Send("y", 3)], is_transaction=True, consumed=consumed)
    assert anomalies(known, unknown, failed, poll((0, 1), key="y")) == set()
    assert anomalies(known, unknown, failed, poll((0, 1), (2, 2), key="y")) == {"double-consume"}
    assert anomalies(known, unknown, failed, final={"y": [(0, 1), (2, 2)]}) == {"double-consume"}


def test_unwritten_values_are_found() -> None:
    assert "unknown-value" in anomalies(send(1, 0), poll((0, 7)))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=30), st.integers(1, 5))
def test_a_log_that_keeps_its_promises_shows_none(writes: list[tuple[int, int]], batch: int) -> None:
    """Several producers write to one log, one reader follows it: whatever the interleaving, nothing is found."""
    log: list[int] = []
    events: list[Operation | Assigned] = []
    read = 0
    for process, count in writes:
        for _ in range(count):
            events.append(send(len(log), len(log), process=process))
            log.append(len(log))
        records = [(offset, log[offset]) for offset in range(read, min(len(log), read + batch))]
        events.append(poll(*records))
        read += len(records)
    assert anomalies(*events, final={"x": list(enumerate(log))}) == set()
