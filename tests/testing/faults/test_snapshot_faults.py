"""Snapshots, resets and restores while there are faults: a state that comes back has nothing of them, and nobody waits
for what they keep from happening."""

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.testing import Broker, Cluster
from barnabas.testing.faults.faults import Faults

pytestmark = pytest.mark.slow

Owner = Broker | Cluster

STATE_FAULTS: list[Callable[[Faults], Any]] = [
    lambda faults: faults.hang_transaction("t"),
    lambda faults: faults.partition_offline("t"),
]
HINDRANCES: list[Callable[[Faults], Any]] = [
    lambda faults: faults.pause(broker=1),
    lambda faults: faults.hold("Fetch", from_brokers=True),
    lambda faults: faults.drop(from_brokers=True),
    lambda faults: faults.refuse(),
    lambda faults: faults.disk_full(),
    lambda faults: faults.disk_slow(3_600_000),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


@pytest.fixture
def owner(request: pytest.FixtureRequest) -> Iterator[Owner]:
    running: Owner = request.getfixturevalue(request.param)
    running.create_topic("t").produce("v")
    yield running
    running.reset()


both = pytest.mark.parametrize("owner", ["broker", "cluster"], indirect=True)


def values(owner: Owner) -> list[bytes | None]:
    return [record.value for record in owner.topic("t").records()]


@both
@pytest.mark.parametrize("make", STATE_FAULTS)
def test_a_snapshot_does_not_keep_what_a_fault_undoes(owner: Owner, make: Callable[[Faults], Any]) -> None:
    fault = make(owner.faults)
    with pytest.raises(RuntimeError, match=r"for ever: remove\(\) it first: \[<.*t-0.*>\]$"):
        owner.snapshot()
    assert list(owner.faults) == [fault]
    fault.remove()
    snapshot = owner.snapshot()
    make(owner.faults)
    owner.restore(snapshot)
    owner.topic("t").produce("w")
    assert (list(owner.faults), values(owner)) == ([], [b"v", b"w"])


@both
@pytest.mark.parametrize("make", HINDRANCES)
def test_a_snapshot_waits_for_no_fault(owner: Owner, make: Callable[[Faults], Any]) -> None:
    of_clients = owner.faults.fail("Heartbeat", "UNKNOWN_MEMBER_ID")
    make(owner.faults)
    snapshot = owner.snapshot()
    assert list(owner.faults) == [of_clients]
    owner.topic("t").produce("w")
    make(owner.faults)
    owner.restore(snapshot)
    assert (list(owner.faults), values(owner)) == ([], [b"v"])


def test_a_clusters_snapshot_does_not_keep_a_cut(cluster: Cluster) -> None:
    cluster.create_topic("t").produce("v")
    cluster.cut(0, 1)
    cluster.snapshot()
    assert (list(cluster.faults), values(cluster)) == ([], [b"v"])
    cluster.faults.pause(broker=1)
    cluster.reset()
    assert (list(cluster.faults), cluster.topic_names()) == ([], [])


def test_a_cluster_stops_without_waiting_for_faults(caplog: pytest.LogCaptureFixture) -> None:
    """Brokers ask the controller for its leave, for 20 s where nobody answers."""
    with Cluster() as cluster:
        cluster.create_topic("t").produce("v")
        cluster.faults.pause()
    assert [record.getMessage() for record in caplog.records if "leave" in record.getMessage()] == []
    assert list(cluster.faults) == []


def test_data_that_a_killed_broker_leaves_are_warned_of(tmp_path: Path) -> None:
    """Nobody could undo what the fault did once another broker has the data."""
    killed = Broker(data_dir=tmp_path).start()
    killed.create_topic("t").produce("v")
    killed.faults.hang_transaction("t")
    killed.kill()
    with pytest.warns(UserWarning, match=r"call start\(\), then stop\(\): \[<a transaction hangs in t-0"):
        killed.stop()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Broker(data_dir=tmp_path) as broker:
            broker.faults.hang_transaction("t")
            broker.kill()
            broker.start()
