"""Replica placement against Kafka's own examples (AdminUtils.java's comments, AdminRackAwareTest.scala)."""

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.controller.operations.placement import PlacementError, assign_replicas, rack_alternated

NO_RACKS: dict[int, str | None] = dict.fromkeys(range(5))
RACKS: dict[int, str] = {0: "rack1", 1: "rack3", 2: "rack3", 3: "rack2", 4: "rack2", 5: "rack1"}


def first(_bound: int) -> int:
    return 0


def test_without_racks() -> None:
    assert assign_replicas(NO_RACKS, 10, 3, first) == {
        0: (0, 1, 2),
        1: (1, 2, 3),
        2: (2, 3, 4),
        3: (3, 4, 0),
        4: (4, 0, 1),
        5: (0, 2, 3),
        6: (1, 3, 4),
        7: (2, 4, 0),
        8: (3, 0, 1),
        9: (4, 1, 2),
    }


def test_racks_alternate() -> None:
    assert rack_alternated(RACKS) == [0, 3, 1, 5, 4, 2]
    assert rack_alternated({broker: rack for broker, rack in RACKS.items() if broker != 5}) == [0, 3, 1, 4, 2]
    assert rack_alternated({}) == []


def test_with_racks() -> None:
    assert assign_replicas(RACKS, 7, 3, first) == {
        0: (0, 3, 1),
        1: (3, 1, 5),
        2: (1, 5, 4),
        3: (5, 4, 2),
        4: (4, 2, 0),
        5: (2, 0, 3),
        6: (0, 4, 2),
    }


def test_one_broker() -> None:
    assert assign_replicas({7: None}, 3, 1, lambda bound: bound - 1) == {0: (7,), 1: (7,), 2: (7,)}


def test_the_first_broker_and_the_distance_are_drawn() -> None:
    draws = iter([3, 1])
    assert assign_replicas(NO_RACKS, 2, 2, lambda _bound: next(draws)) == {0: (3, 0), 1: (4, 1)}


def test_an_expansion_continues() -> None:
    whole = assign_replicas(NO_RACKS, 10, 3, first, start_index=2)
    part = assign_replicas(NO_RACKS, 2, 3, first, first_partition=3, start_index=2)
    assert part == {partition: whole[partition] for partition in (3, 4)}


def test_too_few_brokers() -> None:
    with pytest.raises(PlacementError, match=r"factor of 6 cannot .* only 5 broker"):
        assign_replicas(NO_RACKS, 1, 6, first)


def test_racks_of_some_brokers_only() -> None:
    with pytest.raises(PlacementError, match="have a rack"):
        assign_replicas({0: "a", 1: None}, 1, 1, first)


@given(
    rack_of=st.dictionaries(st.integers(0, 20), st.sampled_from("abcd"), min_size=1, max_size=9),
    partition_count=st.integers(1, 40),
    factor=st.integers(1, 9),
    draw=st.integers(0, 1000),
    with_racks=st.booleans(),
)
def test_replicas_are_distinct_and_spread(
    rack_of: dict[int, str], partition_count: int, factor: int, draw: int, with_racks: bool
) -> None:
    factor = min(factor, len(rack_of))
    brokers: Mapping[int, str | None] = dict(rack_of) if with_racks else dict.fromkeys(rack_of)
    assignment = assign_replicas(brokers, partition_count, factor, lambda bound: draw % bound)
    assert list(assignment) == list(range(partition_count))
    for replicas in assignment.values():
        assert len(set(replicas)) == factor
        if with_racks:
            assert len({rack_of[r] for r in replicas}) == min(factor, len(set(rack_of.values())))
    leaders = Counter(replicas[0] for replicas in assignment.values())
    assert max(leaders.values()) - min(leaders.get(broker, 0) for broker in brokers) <= 1
