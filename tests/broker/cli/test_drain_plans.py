"""The moves of partitions that `brokers drain` would make while brokers are away: plans alone."""

from __future__ import annotations

import pytest

from barnabas.broker.cli.brokers import plan_of_drain
from barnabas.broker.cli.move_plan import Situation
from barnabas.broker.client.client import ClientError
from barnabas.broker.client.placement import BrokerPlace, PartitionPlace, Placement
from barnabas.broker.client.reassignments import Reassignment


def situation(live: list[int], *replicas: tuple[int, ...]) -> Situation:
    """Partitions with these replicas, led by the first of them that is live, if any."""
    places = (PartitionPlace(each, each, next((broker for broker in each if broker in live), -1)) for each in replicas)
    return Situation(
        Placement({each: BrokerPlace("h", 9092) for each in live}, {("t", n): place for n, place in enumerate(places)}),
        {},
    )


def test_a_broker_away_with_shared_partitions_is_started_first() -> None:
    for replicas in [(1, 2, 3), (2, 3)]:
        with pytest.raises(ClientError) as refused:
            plan_of_drain(situation([1, 2, 4], replicas), [2])
        assert str(refused.value) == (
            "broker 3 has replicas and is away: start it again, or move its replicas to others"
            " (barnabas brokers drain 3)"
        )


def test_a_broker_away_without_shared_partitions_is_ignored() -> None:
    plan = plan_of_drain(situation([1, 2, 4], (1, 2), (1, 3)), [2])
    assert plan.targets == {("t", 0): (1, 4)}


def test_a_drain_without_a_target_asks_for_another_broker() -> None:
    with pytest.raises(ClientError, match="t-0 needs 2 brokers, and 1 can have it, as broker 3 is away"):
        plan_of_drain(situation([1, 2], (1, 2), (1, 3)), [2])
    with pytest.raises(ClientError, match="broker 2 is the only one that is there: start another broker"):
        plan_of_drain(situation([2], (2,), (3,)), [2])


def test_two_that_are_lost_may_be_drained_one_after_the_other() -> None:
    plan = plan_of_drain(situation([1, 4, 5], (1, 2, 3), (1, 3)), [2])
    assert {each: set(new) for each, new in plan.targets.items()} == {("t", 0): {1, 4, 5}}


def test_reassignments_in_progress_are_in_the_json() -> None:
    there = situation([1, 2, 4], (1, 4), (1, 2))
    there = Situation(there.placement, {("t", 0): Reassignment((1, 2, 4), (4,), (2,))})
    document = plan_of_drain(there, [2]).as_document()
    assert document["awaited"] == [{"topic": "t", "partition": 0, "to": [1, 4]}]
    assert [(move["partition"], move["to"]) for move in document["moves"]] == [(1, [1, 4])]


def test_several_are_drained_at_once() -> None:
    """None of them gets what the others had."""
    there = situation([1, 2, 3, 4, 5], (1, 4), (5, 4), (2, 3), (5,))
    plan = plan_of_drain(there, [4, 5])
    assert plan.targets.keys() == {("t", 0), ("t", 1), ("t", 3)}
    assert not {4, 5} & {broker for new in plan.targets.values() for broker in new}
    with pytest.raises(ClientError, match="there are no brokers 6, 7: the cluster has 1, 2, 3, 4, 5"):
        plan_of_drain(there, [4, 6, 7])
    told = "brokers 1, 2 are all: start another broker of the cluster, which can take their partitions"
    with pytest.raises(ClientError, match=told):
        plan_of_drain(situation([1, 2], (1, 2)), [1, 2])
    with pytest.raises(ClientError, match="brokers 2, 3 are all that are there: start another broker"):
        plan_of_drain(situation([2, 3], (2,), (4,)), [2, 3])


def test_a_broker_away_beside_drained_ones_is_started_first() -> None:
    with pytest.raises(ClientError, match="broker 3 has replicas and is away: start it again"):
        plan_of_drain(situation([1, 2, 4, 5], (1, 2, 3), (4,)), [2, 4])
    assert plan_of_drain(situation([1, 2, 4, 5], (1, 2, 3), (4,)), [3, 4]).targets.keys() == {("t", 0), ("t", 1)}
