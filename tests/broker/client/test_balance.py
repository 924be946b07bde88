"""A rebalance brings replicas, leaders and bytes within 10 % of each other, for any cluster."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given

from barnabas.broker.client.balance import is_even, plan_rebalance
from barnabas.broker.client.client import ClientError
from barnabas.broker.client.consumer import TopicPartition
from barnabas.broker.client.placement import Placement
from barnabas.broker.client.placement_plans import Loads, copied_bytes
from tests.broker.client.test_placement_plans import Replicas, after, placement, placements, rack_count


def changed(before: Placement, targets: dict[TopicPartition, Replicas]) -> Placement:
    partitions = {name: (replicas, before.partitions[name].bytes) for name, replicas in after(before, targets).items()}
    return placement(partitions, {broker: place.rack for broker, place in before.brokers.items()})


def loads(found: Placement) -> tuple[list[int], list[int], list[int]]:
    counted = Loads(found, list(found.brokers))
    by_broker: list[Counter[int]] = [counted.replicas, counted.leaders, counted.bytes]
    replicas, leaders, sizes = ([each[broker] for broker in found.brokers] for each in by_broker)
    return replicas, leaders, sizes


@given(placements())
def test_nothing_is_lost(before: Placement) -> None:
    for name, new in plan_rebalance(before).items():
        old = before.partitions[name].replicas
        assert len(set(new)) == len(new) == len(old)
        assert set(new) <= before.brokers.keys()
        assert new != old
        if all(place.rack is not None for place in before.brokers.values()):
            assert rack_count(before, new) >= rack_count(before, old)


@given(placements(with_racks=False))
def test_plans_are_even(before: Placement) -> None:
    found = changed(before, plan_rebalance(before))
    replicas, leaders, sizes = loads(found)
    assert is_even(replicas, 1)
    assert is_even(leaders, 1)
    assert is_even(sizes, max((place.bytes for place in before.partitions.values()), default=0))


@given(placements())
def test_balanced_replicas_stay(before: Placement) -> None:
    found = changed(before, plan_rebalance(before))
    assert plan_rebalance(found) == {}


def test_plans_end_where_no_balance_is_possible() -> None:
    """Sizes that five brokers cannot share within 10 %: once, each plan exchanged what the one before had moved."""
    replicas_and_bytes: list[tuple[Replicas, int]] = [((0,), 5), ((0,), 5), ((0,), 6), ((0, 1), 1), ((0, 1, 2), 6)]
    partitions = {("t", index): each for index, each in enumerate(replicas_and_bytes)}
    before = placement(partitions, dict.fromkeys(range(5)))
    found = changed(before, plan_rebalance(before))
    assert found != before
    assert plan_rebalance(found) == {}


@pytest.mark.parametrize("partition_count", [30, 300])
def test_a_new_broker_gets_its_share_and_no_more_is_copied(partition_count: int) -> None:
    """Three brokers with replication factor 3, 2 or 1 and sizes of all kinds; the fourth is empty."""
    partitions = {
        ("t", index): (tuple((index + each) % 3 for each in range(1 + index % 3)), 1_000 + 7 * index % 500)
        for index in range(partition_count)
    }
    before = placement(partitions, dict.fromkeys(range(4)))
    targets = plan_rebalance(before)
    _, _, sizes = loads(changed(before, targets))
    assert all(is_even(each, 1) for each in loads(changed(before, targets))[:2])
    assert is_even(sizes)
    assert copied_bytes(before, targets) <= 1.1 * sum(sizes) / 4


def test_leaders_alone_cost_nothing() -> None:
    before = placement({("t", index): ((0, 1, 2), 100) for index in range(9)}, dict.fromkeys(range(3)))
    targets = plan_rebalance(before)
    assert copied_bytes(before, targets) == 0
    assert loads(changed(before, targets))[1] == [3, 3, 3]


def test_with_racks_of_one_size_it_is_even() -> None:
    racks = {0: "a", 1: "a", 2: "b", 3: "b"}
    partitions: dict[TopicPartition, tuple[Replicas, int]] = {("t", index): ((0, 2), 10) for index in range(20)}
    before = placement(partitions, dict(racks))
    found = changed(before, plan_rebalance(before))
    assert list(loads(found)) == [[10] * 4, [5] * 4, [100] * 4]
    assert all(rack_count(found, place.replicas) == 2 for place in found.partitions.values())


@pytest.mark.slow
def test_thousands_of_partitions_take_a_moment() -> None:
    partitions = {
        ("t", index): (tuple((index * 7 + each) % 9 for each in range(3)), index * 37 % 10_007)
        for index in range(3_000)
    }
    before = placement(partitions, dict.fromkeys(range(10)))
    replicas, leaders, sizes = loads(changed(before, plan_rebalance(before)))
    assert is_even(replicas)
    assert is_even(leaders)
    assert is_even(sizes)


def test_a_broker_that_is_away_is_named() -> None:
    before = placement({("t", 0): ((1, 3), 10)}, dict.fromkeys((1, 2)))
    with pytest.raises(ClientError, match=r"broker 3 has replicas and is away: .* brokers drain 3"):
        plan_rebalance(before)


def test_one_broker_is_balanced() -> None:
    assert plan_rebalance(placement({("t", 0): ((1,), 10)}, {1: None})) == {}
