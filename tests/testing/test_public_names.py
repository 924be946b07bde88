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
    Hold,
    RecordedRequest,
    Recording,
    Snapshot,
    Topic,
)
from barnabas.testing.faults.cuts import Cut
from barnabas.testing.faults.fault import FaultGroup
from barnabas.wire.messages.api_versions import ApiVersionsRequest
from tools.attack.hostile import connect, frame

DOCS = Path(__file__).resolve().parents[2] / "docs"
TEXT = "".join(page.read_text() for page in [DOCS / "testing.md", *sorted((DOCS / "testing").glob("*.md"))])
CODE = "\n".join(re.findall(r"^```.*?^```|`[^`\n]+`", TEXT, re.MULTILINE | re.DOTALL))
"""The code on the pages."""

KEYS_OF_KAFKA = {"rack", "id"}
"""Such as `broker.rack`."""


@pytest.mark.parametrize("kind", [Broker, BrokerClock, Cluster, ClusterBroker, Faults, Group, GroupMember, Topic])
def test_each_public_name_is_on_the_page(kind: type) -> None:
    public = [name for name in dir(kind) if not name.startswith("_")]
    assert [name for name in public if not re.search(rf"\b{name}\b", TEXT)] == []


def undocumented(found: object) -> list[str]:
    """The public names of an object, those of the instance included, that no code of the pages has."""
    public = [name for name in dir(found) if not name.startswith("_")]
    assert public
    return [name for name in public if not re.search(rf"\b{name}\b", CODE)]


def test_each_public_name_of_a_fault_is_on_the_page() -> None:
    with Broker() as broker:
        broker.create_topic("orders")
        faults: list[Fault | FaultGroup] = [
            broker.faults.hang_transaction("orders"),
            broker.faults.partition_offline("orders"),
            broker.faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER"),
            broker.faults.hold("Fetch"),
            broker.faults.garble("Fetch", "cut"),
            broker.faults.leader_away("away"),
            broker.faults.refuse(),
            broker.faults.disk_full(),
        ]
        broker.faults.clear()
    assert [(each, names) for each in faults if (names := undocumented(each))] == []
    assert len({type(each) for each in faults}) == len(faults)


def test_public_names_of_recordings_and_snapshots_are_documented() -> None:
    with Broker() as broker:
        with broker.recorded() as seen, connect(broker.bootstrap_servers) as connection:
            connection.sendall(frame(ApiVersionsRequest(), 2))
            request = seen.wait_request("ApiVersions")
        assert repr(request).endswith(" -> ok")
        assert undocumented(seen) == undocumented(request) == undocumented(broker.snapshot()) == []


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


@pytest.mark.slow
def test_a_running_cluster_tells_what_it_is() -> None:
    with Cluster(brokers=2) as cluster:
        assert repr(cluster) == f"<Cluster {cluster.bootstrap_servers}>"
        first, second = cluster.brokers
        assert repr(first) == f"<ClusterBroker 0 {first.bootstrap_servers}>"
        cut = cluster.cut(0, 1)
        assert repr(cut).startswith("<cut 0 <-> 1, ")
        assert undocumented(cut) == []
        cut.remove()
        second.stop()
        assert repr(second) == "<ClusterBroker 1 not running>"
        assert repr(cluster) == f"<Cluster {cluster.bootstrap_servers}>"


@pytest.mark.parametrize("new", [Broker, Cluster])
def test_calls_to_a_stopped_broker_say_so(new: Callable[[], Broker | Cluster]) -> None:
    owner = new()
    assert repr(owner) == f"<{type(owner).__name__} not running>"
    assert re.fullmatch(r"<BrokerClock at \d+ ms, moved ahead by 0 ms>", repr(owner.clock))
    assert repr(owner.faults) == "<Faults: none>"


@pytest.mark.parametrize("kind", [Cut, Fault, FaultGroup, Hold, RecordedRequest, Recording, Snapshot])
def test_each_kind_has_a_text_of_its_own(kind: type) -> None:
    assert kind.__repr__ is not object.__repr__


@pytest.mark.parametrize(("name", "kind"), [("broker", Broker), ("cluster", Cluster), ("faults", Faults)])
def test_each_name_on_the_page_is_public(name: str, kind: type) -> None:
    attributes = {*dir(kind), "clock", "faults", "brokers"}
    told = set(re.findall(rf"(?<![\w-]){name}\.([a-z]\w*)", TEXT)) - {"md"}  # which links to a page
    assert len(told) > 4
    assert {each for each in told if each not in attributes} <= KEYS_OF_KAFKA
