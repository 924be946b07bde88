"""Offsets that moved back are told from those that did not."""

from confluent_kafka import OFFSET_INVALID

from tools.soak.commits import moved_back

HERE, THERE = ("group", 0), ("group", 1)


def test_committed_offsets_do_not_go_back() -> None:
    assert moved_back({HERE: 5, THERE: 7}, {HERE: 5, THERE: 9}) == []


def test_a_smaller_offset_has_moved_back() -> None:
    assert moved_back({HERE: 5, THERE: 7}, {HERE: 4, THERE: 7}) == [
        "group group committed offset 5 of partition 0, found 4"
    ]


def test_an_offset_that_is_gone_has_moved_back() -> None:
    assert len(moved_back({HERE: 0}, {HERE: OFFSET_INVALID})) == 1


def test_other_groups_and_partitions_say_nothing() -> None:
    assert moved_back({HERE: 5}, {THERE: 1, ("another", 0): 1, ("never", 0): OFFSET_INVALID}) == []
