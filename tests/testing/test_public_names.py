"""The pages about testing name every public attribute, and the `repr` of each object shows its state."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from barnabas.clock import ManualClock
from barnabas.testing import (
    Broker,
    BrokerClock,
    Cluster,
    ClusterBroker,
    Fault,
    Faults,
    Group,
    GroupMember,
    Recording,
    Snapshot,
    Topic,
)

DOCS = Path(__file__).resolve().parents[2] / "docs"
TEXT = "".join(page.read_text() for page in [DOCS / "testing.md", *sorted((DOCS / "testing").glob("*.md"))])

KEYS_OF_KAFKA = {"rack", "id"}
"""Such as `broker.rack`."""


@pytest.mark.parametrize("kind", [Broker, BrokerClock, Cluster, ClusterBroker, Faults, Group, GroupMember, Topic])
def test_each_public_name_is_on_the_page(kind: type) -> None:
    public = [name for name in dir(kind) if not name.startswith("_")]
    assert [name for name in public if not re.search(rf"\b{name}\b", TEXT)] == []


def test_each_object_tells_what_it_is() -> None:
    with Broker(clock=ManualClock(now_ms=1_000)) as broker:
        told = repr(broker.faults)
        assert told == "<Faults: none>"
        fault = broker.faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER", topic="orders")
        broker.clock.advance(500)
        assert repr(broker) == f"<Broker {broker.bootstrap_servers}>"
        assert repr(broker.clock) == "<BrokerClock at 1500 ms, moved ahead by 500 ms>"
        assert repr(fault) == "<fail Produce NOT_LEADER_OR_FOLLOWER (topic='orders'), 0 hits>"
        assert repr(broker.faults) == f"<Faults: {fault!r}>"
        assert repr(broker.topic("orders")) == "Topic('orders')"
        assert repr(broker.recorded()) == "<Recording of 0 requests>"
        assert re.fullmatch(r"<Snapshot of \d+ files>", repr(broker.snapshot()))
        assert repr(broker.group("g")).startswith("Group(group_id='g', state='Dead'")


@pytest.mark.parametrize("new", [Broker, Cluster])
def test_what_does_not_run_tells_that(new: Callable[[], Broker | Cluster]) -> None:
    owner = new()
    assert repr(owner) == f"<{type(owner).__name__} not running>"
    assert re.fullmatch(r"<BrokerClock at \d+ ms, moved ahead by 0 ms>", repr(owner.clock))
    assert repr(owner.faults) == "<Faults: none>"


@pytest.mark.parametrize("kind", [Fault, Recording, Snapshot])
def test_each_kind_has_a_text_of_its_own(kind: type) -> None:
    assert kind.__repr__ is not object.__repr__


@pytest.mark.parametrize(("name", "kind"), [("broker", Broker), ("cluster", Cluster), ("faults", Faults)])
def test_each_name_on_the_page_is_public(name: str, kind: type) -> None:
    attributes = {*dir(kind), "clock", "faults", "brokers"}
    told = set(re.findall(rf"(?<![\w-]){name}\.([a-z]\w*)", TEXT)) - {"md"}  # which links to a page
    assert len(told) > 4
    assert {each for each in told if each not in attributes} <= KEYS_OF_KAFKA
