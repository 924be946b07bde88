"""The news that brokers in processes have not received, by their own metadata."""

from collections.abc import Mapping
from typing import Any

import pytest

from tools.processes.settled import Partition, Telling, unsettled

BROKERS = {"h:1": 1, "h:2": 2, "h:3": 3}
LED = Partition(2, 5, frozenset({1, 2, 3}), frozenset({1, 2, 3}))
WELL = Telling(1, BROKERS, {("t", 0): LED}, (0, 0))


def told(**of_the_third: Any) -> Mapping[str, Telling]:
    return {"h:1": WELL, "h:2": WELL, "h:3": WELL._replace(**of_the_third)}


def test_all_have_heard() -> None:
    assert unsettled(told(), ["t"]) is None


@pytest.mark.parametrize(
    ("of_the_third", "expected"),
    [
        ({"brokers": {"h:1": 1, "h:3": 3}}, "the broker at h:3 knows those at h:1, h:3"),
        ({"controller": 2}, "brokers [1, 2] are told of as the controller"),
        ({"loading": (0, 14)}, "the coordinators at h:3 still read their logs: errors (0, 14)"),
        ({"partitions": {}}, "the broker at h:3 and the controller tell different things of t-0"),
        (
            {"partitions": {("t", 0): LED._replace(leader_epoch=4)}},
            "the broker at h:3 and the controller tell different things of t-0",
        ),
    ],
)
def test_a_broker_with_older_metadata_is_not_settled(of_the_third: dict[str, Any], expected: str) -> None:
    assert unsettled(told(**of_the_third)) == expected


@pytest.mark.parametrize(
    ("partition", "is_settled"),
    [
        (LED._replace(in_sync=frozenset({1, 2})), False),
        (LED._replace(leader=4), False),
        (LED._replace(leader=-1, in_sync=frozenset({1})), True),
        (LED._replace(replicas=frozenset({1, 2, 4}), in_sync=frozenset({1, 2})), True),
    ],
    ids=["a follower lags", "who leads is dead", "nobody can lead", "a replica is dead"],
)
def test_a_partition_is_settled_with_its_live_replicas_in_sync(partition: Partition, is_settled: bool) -> None:
    telling = WELL._replace(partitions={("t", 0): partition})
    assert (unsettled(dict.fromkeys(BROKERS, telling)) is None) == is_settled


def test_the_controller_does_not_know_a_topic() -> None:
    assert unsettled(told(), ["t", "u"]) == "the controller does not know u"
