"""`brokers list` and `topics list --under-replicated|--unavailable|--under-min-isr` of three brokers, one of which
stops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from barnabas.broker.cli.brokers import broker_rows
from barnabas.broker.cli.ill_partitions import UNAVAILABLE, UNDER_MIN_ISR, UNDER_REPLICATED, states
from barnabas.broker.client.placement import BrokerPlace, Placement
from barnabas.testing import Cluster

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def broker() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


@pytest.mark.parametrize(
    ("leader", "isr", "expected"),
    [
        (1, [1, 2], []),
        (1, [1], [UNDER_REPLICATED, UNDER_MIN_ISR]),
        (None, [2, 1], [UNAVAILABLE]),
        (None, [1], [UNDER_REPLICATED, UNAVAILABLE, UNDER_MIN_ISR]),
    ],
)
def test_states(leader: int | None, isr: list[int], expected: list[str]) -> None:
    assert states({"leader": leader, "replicas": [1, 2], "isr": isr, "min_isr": 2}) == expected


def test_bytes_that_a_broker_does_not_tell_are_not_none_at_all() -> None:
    brokers = {each: BrokerPlace("h", 9092) for each in (1, 2)}
    placement = Placement(brokers, {}, {("t", 0, 1): 5}, silent=frozenset([2]))
    assert [row["bytes"] for row in broker_rows(placement, 1)] == [5, None]


@pytest.mark.slow
def test_a_broker_that_stops_is_seen(broker: Cluster, run: Run) -> None:
    broker.create_topic("voyages", 2, 3, {"min.insync.replicas": 3})
    broker.create_topic("lonely", 3, 1, {"min.insync.replicas": 1})
    rows = run("brokers", "list", "--json").json
    assert [row["id"] for row in rows] == [0, 1, 2]
    assert sorted(row["state"] for row in rows) == ["controller", "up", "up"]
    assert [row["replicas"] for row in rows] == [3, 3, 3]
    assert sum(row["leads"] for row in rows) == 5
    assert run("topics", "list", "--under-replicated", "--unavailable").out == (
        "no partition is under-replicated or unavailable\n"
    )
    assert run("topics", "list", "--under-min-isr", "--json").json == []

    gone = next(number for number in (2, 1) if number != broker.controller())
    [port] = [row["port"] for row in rows if row["id"] == gone]
    broker.brokers[gone].stop()

    [away] = [row for row in run("brokers", "list", "--json").json if row["id"] == gone]
    assert (away["state"], away["port"], away["leads"], away["replicas"]) == ("away", None, 0, 3)
    assert away["not_in_sync"] >= 2
    table = run("brokers", "list").out
    assert "away" in table
    assert str(port) not in table
    ill = run("topics", "list", "--under-replicated", "--json").json
    assert {(row["topic"], row["partition"]) for row in ill} >= {("voyages", 0), ("voyages", 1)}
    assert all(row["min_isr"] == 3 for row in ill if row["topic"] == "voyages")
    assert {row["topic"] for row in run("topics", "list", "--under-min-isr", "--json").json} == {"voyages"}
    [leaderless] = run("topics", "list", "--unavailable", "--json").json
    assert (leaderless["topic"], leaderless["replicas"], leaderless["leader"]) == ("lonely", [gone], None)
    assert "unavailable" in run("topics", "list", "--unavailable").out
    broker.brokers[gone].start()
