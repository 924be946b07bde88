import itertools

import pytest

from barnabas.broker.replication.fetch_partition import FetchPartition, PartitionKey
from barnabas.broker.replication.fetch_sessions import EPOCH_MAX, EVICTION_MS_MIN, FetchPlan, FetchSessions
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.fetch import PartitionData
from barnabas.wire.names import ZERO_TOPIC_ID, TopicId

TOPIC_ID = TopicId(bytes(range(16)))


def sessions(slots: int = 10, partitions_max: int = 1000) -> FetchSessions:
    ids = itertools.count(101)
    return FetchSessions(slots, new_id=lambda: next(ids), partitions_max=partitions_max)


def asked(*partitions: int, offset: int = 0) -> list[FetchPartition]:
    return [FetchPartition("t", TOPIC_ID, partition, offset, 1000) for partition in partitions]


def data(
    partition: int, records: bytes = b"", high_watermark: int = 5, error: ErrorCode = ErrorCode.NONE
) -> PartitionData:
    return PartitionData(
        partition_index=partition, records=records, high_watermark=high_watermark, log_start_offset=0, error_code=error
    )


def plan(
    state: FetchSessions,
    session_id: int,
    epoch: int,
    partitions: list[FetchPartition],
    forgotten: list[PartitionKey] | None = None,
    now_ms: int = 0,
) -> FetchPlan:
    return state.plan(session_id, epoch, partitions, forgotten or [], uses_topic_ids=True, now_ms=now_ms)


def create(state: FetchSessions, *partitions: int, now_ms: int = 0) -> int:
    made = plan(state, 0, 0, asked(*partitions), now_ms=now_ms)
    error, session_id, told = state.finish(made, [(p, data(p.partition)) for p in made.partitions], now_ms)
    assert error == ErrorCode.NONE
    assert len(told) == len(partitions)
    return session_id


@pytest.mark.parametrize("name", ["x" * 250, "\U0001f600"])
def test_no_session_keeps_names_that_no_topic_can_have(name: str) -> None:
    state = sessions()
    strange = FetchPartition(name, ZERO_TOPIC_ID, 0, 0, 1000)
    made = state.plan(0, 0, [strange], [], uses_topic_ids=False, now_ms=0)
    error, session_id, told = state.finish(made, [(strange, data(0))], 0)
    assert (error, session_id, len(told), len(state)) == (ErrorCode.NONE, 0, 1, 0)

    known = FetchPartition("x" * 249, ZERO_TOPIC_ID, 0, 0, 1000)
    made = state.plan(0, 0, [known], [], uses_topic_ids=False, now_ms=0)
    _, session_id, _ = state.finish(made, [(known, data(0))], 0)
    assert session_id
    grown = state.plan(session_id, 1, [strange], [], uses_topic_ids=False, now_ms=0)
    assert (grown.error, len(state), state.partition_count) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0, 0)


def test_epoch_minus_one_makes_no_session() -> None:
    state = sessions()
    made = plan(state, 0, -1, asked(0))
    assert state.finish(made, [(p, data(0)) for p in made.partitions], 0)[1] == 0
    assert len(state) == 0


def test_an_incremental_reply_carries_only_changes() -> None:
    state = sessions()
    session_id = create(state, 0, 1, 2)
    made = plan(state, session_id, 1, [])
    results = [
        (p, data(p.partition, b"x" if p.partition == 1 else b"", 6 if p.partition == 2 else 5)) for p in made.partitions
    ]
    error, told_id, told = state.finish(made, results, 0)
    assert (error, told_id) == (ErrorCode.NONE, session_id)
    assert [p.partition for p, _ in told] == [1, 2]


def test_a_partition_with_data_goes_to_the_end_of_the_next_round() -> None:
    state = sessions()
    session_id = create(state, 0, 1, 2)
    made = plan(state, session_id, 1, [])
    state.finish(made, [(p, data(p.partition, b"x" if p.partition == 0 else b"")) for p in made.partitions], 0)
    assert [p.partition for p in plan(state, session_id, 2, []).partitions] == [1, 2, 0]


def test_an_error_is_told_and_forgets_the_high_watermark() -> None:
    state = sessions()
    session_id = create(state, 0)
    for epoch, error, expected in (
        (1, ErrorCode.NOT_LEADER_OR_FOLLOWER, 1),
        (2, ErrorCode.NONE, 1),
        (3, ErrorCode.NONE, 0),
    ):
        made = plan(state, session_id, epoch, [])
        assert len(state.finish(made, [(p, data(0, error=error)) for p in made.partitions], 0)[2]) == expected


def test_partitions_are_added_changed_and_forgotten() -> None:
    state = sessions()
    session_id = create(state, 0, 1)
    made = plan(state, session_id, 1, asked(1, 7, offset=33), forgotten=[(TOPIC_ID, 0)])
    assert [(p.partition, p.fetch_offset) for p in made.partitions] == [(1, 33), (7, 33)]


def test_a_session_without_partitions_ends() -> None:
    state = sessions()
    session_id = create(state, 0)
    made = plan(state, session_id, 1, [], forgotten=[(TOPIC_ID, 0)])
    assert state.finish(made, [], 0)[:2] == (ErrorCode.NONE, 0)
    assert len(state) == 0


def test_errors_of_a_session() -> None:
    state = sessions()
    session_id = create(state, 0)
    assert plan(state, 999, 1, []).error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert plan(state, session_id, 2, []).error == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    wrong = state.plan(session_id, 1, [], [], uses_topic_ids=False, now_ms=0)
    assert wrong.error == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert state.finish(wrong, [], 0)[:2] == (ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, 0)


def test_a_full_fetch_closes_the_session_it_names() -> None:
    state = sessions()
    session_id = create(state, 0)
    plan(state, session_id, -1, asked(0))
    assert plan(state, session_id, 1, []).error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_session_overtaken_by_another_request_answers_an_error() -> None:
    state = sessions()
    session_id = create(state, 0)
    slow = plan(state, session_id, 1, [])
    plan(state, session_id, 2, [])
    assert state.finish(slow, [], 0) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, session_id, ())


def test_the_epoch_wraps_to_one() -> None:
    state = sessions()
    session_id = create(state, 0)
    state._sessions[session_id].epoch = EPOCH_MAX
    plan(state, session_id, EPOCH_MAX, [])
    assert plan(state, session_id, 1, []).error == ErrorCode.NONE


def test_without_room_a_fetch_gets_no_session_until_one_is_stale() -> None:
    state = sessions(slots=1)
    first = create(state, 0)
    assert create(state, 1, now_ms=1000) == 0
    second = create(state, 1, now_ms=EVICTION_MS_MIN + 1)
    assert second not in (0, first)
    assert plan(state, first, 1, []).error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_an_old_smaller_session_makes_room_for_a_larger_one() -> None:
    state = sessions(slots=1)
    small = create(state, 0)
    plan(state, small, 1, [], now_ms=EVICTION_MS_MIN)  # in use, so not stale
    assert create(state, 5, now_ms=EVICTION_MS_MIN + 1) == 0
    assert create(state, 5, 6, now_ms=EVICTION_MS_MIN + 1) != 0


def test_names_are_the_key_before_topic_ids() -> None:
    by_name = FetchPartition("t", ZERO_TOPIC_ID, 3, 0, 1)
    assert by_name.key == ("t", 3)
    assert asked(3)[0].key == (TOPIC_ID, 3)


def test_all_sessions_have_a_bounded_number_of_partitions() -> None:
    state = sessions(partitions_max=1000)
    half = 500
    first, second = create(state, *range(half)), create(state, *range(half - 1))
    assert create(state, 0) != 0
    assert create(state, 1) == 0
    assert plan(state, first, 1, asked(half)).error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(state) == 2
    assert create(state, *range(half)) != 0
    assert plan(state, second, 1, [], [(TOPIC_ID, 0)]).error == ErrorCode.NONE
    assert create(state, 7) != 0
    assert create(state, 8) == 0
    assert create(state, *range(half), now_ms=EVICTION_MS_MIN + 1) != 0


def test_the_count_of_partitions_follows_what_sessions_do() -> None:
    state = sessions(2)
    session_id = create(state, 0, 1, 2)
    assert plan(state, session_id, 1, asked(3), [(TOPIC_ID, 0), (TOPIC_ID, 1)]).error == ErrorCode.NONE
    assert state.partition_count == 2
    create(state, 5)
    create(state, 6, now_ms=EVICTION_MS_MIN + 1)
    assert state.partition_count == 2
    plan(state, session_id + 1, -1, [])
    plan(state, session_id + 2, -1, [])
    assert state.partition_count == 0
