"""The planned replicas of partitions: rules that hold for any cluster."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.client.client import ClientError
from barnabas.broker.client.consumer import TopicPartition
from barnabas.broker.client.placement import BrokerPlace, PartitionPlace, Placement
from barnabas.broker.client.placement_plans import copied_bytes, plan_spread

Replicas = tuple[int, ...]


def placement(partitions: dict[TopicPartition, tuple[Replicas, int]], racks: dict[int, str | None]) -> Placement:
    """A placement of partitions with these replicas, all in sync, and bytes; brokers with their racks."""
    return Placement(
        {broker: BrokerPlace("h", 9092, rack) for broker, rack in racks.items()},
        {name: PartitionPlace(replicas, replicas, replicas[0], size) for name, (replicas, size) in partitions.items()},
    )


@st.composite
def placements(draw: st.DrawFn, *, with_racks: bool | None = None) -> Placement:
    """Two to six brokers, in racks or not, and up to 25 partitions that lie anyhow."""
    brokers = range(draw(st.integers(2, 6)))
    in_racks = draw(st.booleans()) if with_racks is None else with_racks
    racks = {each: f"r{draw(st.integers(0, 2))}" if in_racks else None for each in brokers}
    replicas = st.lists(st.sampled_from(brokers), min_size=1, max_size=3, unique=True).map(tuple)
    sizes = st.sampled_from([0, 1, 5, 100]) | st.integers(0, 1_000)
    found = draw(st.lists(st.tuples(replicas, sizes), max_size=25))
    return placement({("t", number): each for number, each in enumerate(found)}, racks)


def after(before: Placement, targets: dict[TopicPartition, Replicas]) -> dict[TopicPartition, Replicas]:
    return {name: targets.get(name, place.replicas) for name, place in before.partitions.items()}


def rack_count(before: Placement, replicas: Replicas) -> int:
    return len({before.brokers[each].rack for each in replicas if each in before.brokers})


@given(placements(), st.data())
def test_a_broker_is_emptied(before: Placement, data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(sorted(before.brokers)))
    staying = [each for each in before.brokers if each != gone]
    concerned = [name for name, place in before.partitions.items() if gone in place.replicas]
    if any(len(place.replicas) > len(staying) for place in before.partitions.values() if gone in place.replicas):
        with pytest.raises(ClientError, match="--replication-factor"):
            plan_spread(before, concerned, staying)
        return
    targets = plan_spread(before, concerned, staying)
    assert set(targets) == set(concerned)
    for name, new in targets.items():
        old = before.partitions[name].replicas
        assert gone not in new
        assert len(set(new)) == len(new) == len(old)
        assert set(old) - {gone} <= set(new), "what need not move stays"
        if before.brokers[gone].rack is not None:
            there = len({before.brokers[each].rack for each in staying})
            assert rack_count(before, new) >= min(rack_count(before, old), there, len(new))
    again = Placement(before.brokers, placement({k: (v, 0) for k, v in after(before, targets).items()}, {}).partitions)
    assert plan_spread(again, list(again.partitions), list(again.brokers)) == {}


@given(placements(), st.integers(1, 3))
def test_the_number_of_replicas_is_changed(before: Placement, factor: int) -> None:
    brokers = list(before.brokers)
    if factor > len(brokers) and before.partitions:
        with pytest.raises(ClientError, match="start another one"):
            plan_spread(before, list(before.partitions), brokers, factor)
        return
    for name, new in after(before, plan_spread(before, list(before.partitions), brokers, factor)).items():
        old = before.partitions[name].replicas
        assert len(set(new)) == len(new) == factor
        assert set(new) <= set(old) or set(old) <= set(new)
        assert new[: min(factor, len(old))] == old[:factor], "who is preferred stays so"


def test_replicas_out_of_sync_are_removed_first() -> None:
    place = PartitionPlace((1, 2, 3), (1, 3), 1, 5)
    before = Placement({each: BrokerPlace("h", 1) for each in (1, 2, 3)}, {("t", 0): place})
    assert plan_spread(before, [("t", 0)], [1, 2, 3], 2) == {("t", 0): (1, 3)}


def test_a_replica_on_a_broker_that_is_away_stays() -> None:
    """Broker 3 is away, and has a replica that is not in sync."""
    place = PartitionPlace((3, 1), (1,), 1, 5)
    before = Placement({each: BrokerPlace("h", 1) for each in (1, 2)}, {("t", 0): place})

    def targets(factor: int, brokers: list[int], keeping: list[int]) -> dict[TopicPartition, Replicas]:
        return plan_spread(before, [("t", 0)], brokers, factor, keeping=keeping, away=keeping)

    assert targets(2, [1, 2], [3]) == {}
    assert targets(3, [1, 2], [3]) == {("t", 0): (3, 1, 2)}
    assert targets(1, [1, 2], [3]) == {("t", 0): (1,)}, "who is not in sync goes first"
    assert targets(2, [1, 2], []) == {("t", 0): (2, 1)}, "it was not among the brokers that were asked for"
    with pytest.raises(ClientError, match=r"t-0 needs 4 brokers, and 3 can have it: start another one"):
        targets(4, [1, 2], [3])


@pytest.mark.parametrize(
    ("factor", "away", "expected"),
    [
        (3, [3], "2 can have it, as broker 3 is away: start it again, or another one if it is lost"),
        (4, [3, 4], "2 can have it, as brokers 3, 4 are away: start them again, or others if they are lost"),
        (
            4,
            [3],
            "2 can have it, as broker 3 is away: start it again, and another one besides, or ask for 3 at most",
        ),
    ],
)
def test_absent_brokers_are_named_if_too_few_are_left(factor: int, away: list[int], expected: str) -> None:
    before = placement({("t", 0): ((1,), 10)}, dict.fromkeys((1, 2)))
    with pytest.raises(ClientError) as refused:
        plan_spread(before, [("t", 0)], [1, 2], factor, keeping=away, away=away)
    assert str(refused.value) == f"t-0 needs {factor} brokers, and {expected}"


def test_all_topics_that_have_too_many_replicas_are_told_at_once() -> None:
    before = placement(
        {("t", 0): ((1, 2, 3), 10), ("t", 1): ((1, 2, 3), 10), ("u", 0): ((3, 1, 2), 10), ("v", 0): ((3,), 1)},
        dict.fromkeys((1, 2, 3)),
    )
    with pytest.raises(ClientError) as refused:
        plan_spread(before, list(before.partitions), [1, 2])
    assert str(refused.value) == (
        "t-0 (and 2 more) needs 3 brokers, and 2 can have it: start another one, or lower that first"
        " (barnabas topics reassign t u --replication-factor 2)"
    )


def test_replicas_go_where_there_is_least() -> None:
    before = placement(
        {("t", each): ((1,), 10) for each in range(4)} | {("u", 0): ((2,), 10)}, dict.fromkeys((1, 2, 3))
    )
    targets = plan_spread(before, list(before.partitions), [2, 3])
    assert sorted(after(before, targets).values()) == [(2,), (2,), (3,), (3,), (3,)] or sorted(
        after(before, targets).values()
    ) == [(2,), (2,), (2,), (3,), (3,)]
    assert copied_bytes(before, targets) == 40


def test_a_broker_that_is_not_there() -> None:
    before = placement({("t", 0): ((1,), 10)}, dict.fromkeys((1, 2)))
    with pytest.raises(ClientError, match="there is no broker 7: the cluster has 1, 2"):
        plan_spread(before, [("t", 0)], [1, 7])


def test_a_broker_that_is_away_is_no_place_to_go() -> None:
    before = placement({("t", 0): ((1, 3), 10)}, dict.fromkeys((1, 2)))
    with pytest.raises(ClientError, match="broker 3 is away: start it again first"):
        plan_spread(before, [("t", 0)], [1, 3])
