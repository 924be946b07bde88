"""A restart while something is wrong ends, and what is wrong can be mended meanwhile: by another thread, as there is
no other way out."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from barnabas.testing import Broker, Cluster
from barnabas.testing.interception.request import Request
from tests.testing.control_client import Answer, ControlClient
from tools.processes.barnabas import BarnabasControl
from tools.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.slow

FAULTS: dict[str, Callable[[Broker | Cluster], Any]] = {
    "pause": lambda owner: owner.faults.pause(broker=1),
    "disk_slow": lambda owner: owner.faults.disk_slow(1),
    "hold": lambda owner: owner.faults.hold(),
    "drop": lambda owner: owner.faults.drop(),
    "refuse": lambda owner: owner.faults.refuse(broker=1),
    "disk_full": lambda owner: owner.faults.disk_full(),
    "disk_fails": lambda owner: owner.faults.disk_fails(broker=1),
    "leader_away": lambda owner: owner.faults.leader_away("t"),
    "partition_offline": lambda owner: owner.faults.partition_offline("t"),
}
TOLD = ("LeaderAndIsr", "UpdateMetadata")
"""The controller's commands to brokers while others stop and start."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broker_restarts_in_any_fault(fault: str) -> None:
    with Broker(node_id=1) as broker:
        broker.create_topic("t")
        FAULTS[fault](broker)
        broker.restart()
        broker.faults.clear()
        broker.restart()  # after which a disk that broke is as it was
        assert broker.topic("t").records() == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_restart_of_a_cluster_ends_in_any_fault(fault: str) -> None:
    """In a TimeoutError, where one of the brokers cannot start."""
    with Cluster() as cluster:
        cluster.create_topic("t")
        FAULTS[fault](cluster)
        with suppress(TimeoutError):
            cluster.restart(timeout=0.5)  # Real time: in vain, where a broker cannot start
        cluster.faults.clear()
        for broker in cluster.brokers:
            if not broker.is_running:
                broker.start()
        cluster.restart()
        assert cluster.topic("t").records() == []


def test_a_failed_restart_names_the_broker_and_the_reason() -> None:
    with Cluster() as cluster:
        with cluster.faults.pause(broker=1):
            told = r"^broker 1 is not started: .*faults that separate brokers: <pause \(broker=1\).*waited 3 s"
            with pytest.raises(TimeoutError, match=told):
                cluster.restart(timeout=3)  # in which the others do start
            assert [broker.is_running for broker in cluster.brokers] == [True, False, True]
        cluster.brokers[1].start()


@pytest.mark.parametrize("how", ["remove", "clear", "reset"])
def test_a_fault_may_be_removed_while_brokers_restart(how: str) -> None:
    with Cluster() as cluster, ThreadPoolExecutor(1) as pool:
        cluster.create_topic("t")
        pause = cluster.faults.pause(broker=1)
        told = noticed(cluster, 1)
        restarting = pool.submit(cluster.restart, 20)
        assert told.wait(PATIENCE_S)
        assert "faults:\n  <pause (broker=1)" in cluster.report()
        if how == "remove":
            pause.remove()
        elif how == "clear":
            cluster.faults.clear()
        else:
            cluster.reset()
        restarting.result(PATIENCE_S)
        cluster.wait_in_sync()


def test_a_cut_may_be_healed_while_brokers_restart() -> None:
    with Cluster() as cluster, ThreadPoolExecutor(1) as pool:
        cluster.create_topic("t")
        cluster.cut(0, 1)
        told = noticed(cluster, 2)
        restarting = pool.submit(cluster.restart, 20)
        assert told.wait(PATIENCE_S)
        cluster.cut(0, 2).remove()
        cluster.heal()
        restarting.result(PATIENCE_S)


def test_waits_go_on_while_brokers_restart() -> None:
    """Hits, held requests and recordings are none of the brokers' own; waits in vain end in time, or with the fault, or
    with the cluster."""
    cluster = Cluster().start()
    with ThreadPoolExecutor() as pool:
        cluster.create_topic("t")
        held = cluster.faults.hold(TOLD, broker=2, from_brokers=True)
        begun_before = pool.submit(held.wait_hits)
        cluster.faults.pause(broker=1)
        seen = cluster.recorded(from_brokers=True)
        told = noticed(cluster, 1)
        restarting = pool.submit(cluster.restart, 20)
        assert told.wait(PATIENCE_S)
        begun_before.result(PATIENCE_S)
        held.wait_hits()
        asyncio.run(held.wait_hits_async())
        held.wait_held()
        asyncio.run(held.wait_held_async())
        seen.wait_request()
        with pytest.raises(TimeoutError, match="requests are held, not 1000"):
            held.wait_held(1000, timeout=0.01)
        removed = cluster.faults.fail("Produce", 6)
        of_removed, of_stopped = pool.submit(removed.wait_hits), pool.submit(seen.wait_request, "Produce")
        removed.remove()
        with pytest.raises(RuntimeError, match="and no more can come: the fault has ended"):
            of_removed.result(PATIENCE_S)
        wait_until(lambda: seen._listeners)
        assert not restarting.done()
        cluster.stop()
        with pytest.raises(RuntimeError, match=r"^the cluster stopped meanwhile$"):
            of_stopped.result(PATIENCE_S)
        with suppress(RuntimeError):  # of the wait for all to be in sync
            restarting.result(PATIENCE_S)
    with pytest.raises(RuntimeError, match="this cluster does not run"):
        cluster.faults.hold()
    with pytest.raises(RuntimeError, match="this cluster does not run"):
        held.wait_hits()


def noticed(cluster: Cluster, broker: int) -> threading.Event:
    """Set when the controller tells a broker something, which is of a restart that goes on."""
    told = threading.Event()

    def notice(request: Request) -> bool:
        told.set()
        return False

    cluster.faults.hold(TOLD, broker=broker, from_brokers=True, predicate=notice)
    return told


def test_a_stop_does_not_wait_for_a_restart() -> None:
    cluster = Cluster().start()
    with ThreadPoolExecutor(1) as pool:
        cluster.create_topic("t")
        cluster.faults.pause(broker=1)
        told = noticed(cluster, 1)
        restarting = pool.submit(cluster.restart, 20)
        assert told.wait(PATIENCE_S)
        cluster.stop()
        with suppress(RuntimeError):  # of the wait for all to be in sync
            restarting.result(PATIENCE_S)
    assert not cluster.is_running


@pytest.mark.live
def test_a_pause_and_the_server_end_during_a_restart() -> None:
    with BarnabasControl() as process, ThreadPoolExecutor(1) as pool:
        control = ControlClient(process.url)
        control.done("POST", "/brokers", name="three", brokers=3)
        control.done("POST", "/brokers/three/create_topic", name="t")
        control.done("POST", "/brokers/three/wait_in_sync")
        fault, restarting = stuck_in_a_restart(control, pool)
        assert control.done("DELETE", f"/brokers/three/faults/{fault}")["hits"] > 0
        assert restarting.result(PATIENCE_S).status == 200
        stuck_in_a_restart(control, pool)
        process.stop(timeout_s=PATIENCE_S)


def stuck_in_a_restart(control: ControlClient, pool: ThreadPoolExecutor) -> tuple[int, Future[Answer]]:
    """The number of the fault that has a cluster restart for long, and what the restart will answer."""
    fault = control.done("POST", "/brokers/three/pause", node=1)["fault"]
    restarting = pool.submit(control.ask, "POST", "/brokers/three/restart")
    while all(node["is_running"] for node in control.done("GET", "/brokers/three")["nodes"]):
        control.done("GET", "/brokers/three/report")
    assert control.done("POST", f"/brokers/three/faults/{fault}/wait_hits")["hits"] > 0
    assert not restarting.done()
    return fault, restarting
