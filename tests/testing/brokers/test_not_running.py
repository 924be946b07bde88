"""Each use of a broker, or of a cluster, that does not run fails at once, with an error that says so and gives
advice."""

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from barnabas.testing import ApiError, Broker, Cluster
from barnabas.testing.faults.fault_list import FaultList
from tests.testing.brokers.test_both import Owner

pytestmark = pytest.mark.slow

ARGUMENTS = {
    "api": "Produce",
    "error": 6,
    "topic": "t",
    "name": "t",
    "group": "g",
    "group_id": "g",
    "transactional_id": "x",
    "duration": 5,
    "count": 1,
    "value": "v",
    "way": "cut",
    "snapshot": None,
    "broker": 0,
    "one": 0,
    "other": 1,
    "user": "u",
}
ONE_OF = {
    **{name: {"group": "g"} for name in ("coordinator", "coordinator_away", "move_coordinator")},
    "deny": {"topic": "t"},
    "quota": {"user": "u", "producer_byte_rate": 1},
}
"""The methods that take one of several keywords, or need one."""

NEEDS_NONE = {"start", "stop", "is_running", "topic", "remove"}
"""The members that begin or end a run, report whether it runs, or return a handle before it runs."""

INSIDE = {"call", "call_async", "live_servers", "server"}
"""The members that are not for tests."""

MEANWHILE = {
    "bootstrap_servers", "cut", "data_dir", "heal", "recorded", "requests", "reset", "restart",
    "restore", "snapshot", "expire_session", "clear", "delay", "disconnect", "disk_fails", "disk_full", "disk_slow",
    "drop", "fail", "garble", "hold", "pause", "refuse", "throttle", "leader_away", "coordinator_away", "advance",
    "now_ms", "monotonic_ms", "certificate_expired", "certificate_of_other_host", "fail_authentication",
}  # fmt: skip
"""The members that work on a cluster without running brokers, or have an error of their own."""

Use = Callable[[], object]


def uses(found: object, left_out: set[str]) -> Iterator[tuple[str, Use]]:
    """Everything that something offers, by name, with some arguments."""
    for name, member in inspect.getmembers_static(type(found)):
        if name.startswith("_") or name in left_out:
            continue
        if isinstance(member, property):
            yield name, partial(getattr, found, name)
        elif inspect.isfunction(member):
            yield name, partial(_called, getattr(found, name))


def _called(method: Callable[..., Any]) -> object:
    needed = [p.name for p in inspect.signature(method).parameters.values() if p.default is p.empty and p.kind < 2]
    result = method(*[ARGUMENTS[name] for name in needed], **ONE_OF.get(method.__name__, {}))
    return asyncio.run(result) if inspect.iscoroutine(result) else result


def uses_of(owner: Owner, left_out: set[str]) -> list[tuple[str, Use]]:
    """All that tests do with a broker or a cluster, by name."""
    inside_faults = {name for name, _ in inspect.getmembers_static(FaultList)} - {"clear"}
    found = [
        *uses(owner, NEEDS_NONE | INSIDE | left_out),
        *uses(owner.faults, NEEDS_NONE | inside_faults | left_out),
        *uses(owner.clock, left_out),
        *uses(owner.topic("t"), left_out),
    ]
    assert {"report", "fail", "expire_member", "records"} <= {name for name, _ in found} | left_out
    return found


def silent(found: list[tuple[str, Use]], told: str) -> dict[str, object]:
    """The uses without that error: their results, or their other errors."""
    otherwise: dict[str, object] = {}
    for name, use in found:
        try:
            otherwise[name] = use()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is to say so
            if type(error) is not RuntimeError or str(error) != told:
                otherwise[name] = error
    return otherwise


@pytest.mark.parametrize("make", [Broker, Cluster])
@pytest.mark.parametrize("has_run", [False, True])
def test_a_broker_that_was_not_started_says_so_on_every_use(make: type[Owner], has_run: bool) -> None:
    owner = make()
    if has_run:
        owner.start().stop()
    what = "broker" if make is Broker else "cluster"
    # A broker never has a session, a cluster never certificates.
    its_own = {"expire_session"} if make is Broker else {"certificate_expired", "certificate_of_other_host"}
    told = f"this {what} does not run: start() it, or use it in a `with` block"
    assert silent(uses_of(owner, its_own), told) == {}
    if isinstance(owner, Cluster):
        own = list(uses(owner.brokers[0], NEEDS_NONE | {"begin", "end", "has_ended", "is_gone"}))
        assert {name for name, _ in own} == {"bootstrap_servers", "kill", "server"}
        assert silent([*own, ("start", owner.brokers[0].start)], told) == {}
    assert len(owner.faults) == 0


def test_a_cluster_without_brokers_says_so_at_once() -> None:
    """Nobody has to wait until the time is up."""
    with Cluster(2) as cluster:
        cluster.create_topic("t")
        cluster.recorded()
        for broker in cluster.brokers:
            broker.kill()
        found = uses_of(cluster, MEANWHILE)
        assert {"report", "topic_names", "wait_group_async", "move_leader"} <= {name for name, _ in found}
        assert silent(found, "no broker of this cluster runs: start() one of its brokers") == {}


def test_faults_prepared_before_a_start_apply_after_it() -> None:
    with Cluster(2) as cluster:
        for broker in cluster.brokers:
            broker.kill()
        before_ms = cluster.clock.now_ms()
        cluster.clock.advance(3_600_000)
        assert cluster.clock.now_ms() - before_ms >= 3_600_000
        with cluster.recorded() as seen, cluster.faults.fail("Produce", 6) as fault:
            for broker in cluster.brokers:
                broker.start()
            assert cluster.topic_names() == []
            assert (len(seen), fault.hits, len(cluster.faults)) == (0, 0, 1)


def test_recordings_outlive_their_broker() -> None:
    with Broker() as broker:
        recording = broker.recorded()
    assert broker.requests() == recording.requests() == []
    recording.stop()


def test_a_partition_without_a_future_leader_fails_at_once() -> None:
    with Cluster(2) as cluster:
        topic = cluster.create_topic("t", replication_factor=1)
        topic.produce("v")
        uses = (topic.records, lambda: topic.produce("w"), topic.delete_records)
        with cluster.faults.partition_offline("t"):
            for use in uses:
                with pytest.raises(ApiError, match=r"^LEADER_NOT_AVAILABLE: t-0 is offline by a fault: remove\(\) it"):
                    use()
        leader = cluster.leader("t")
        cluster.brokers[leader].kill()
        told = rf"t-0 has no leader: none of its replicas, at {leader}, runs: start\(\) one of them"
        for use in uses:
            with pytest.raises(ApiError, match=told):
                use()
        cluster.brokers[leader].start()
        assert [record.value for record in topic.records()] == [b"v"]


@pytest.mark.parametrize("make", [Broker, Cluster])
def test_a_stop_ends_waiting_calls_of_its_broker_only(make: type[Owner], caplog: pytest.LogCaptureFixture) -> None:
    begun = [threading.Event(), threading.Event()]

    async def forever(has_begun: threading.Event) -> None:
        has_begun.set()
        await asyncio.Event().wait()

    with ThreadPoolExecutor() as threads:
        with make() as owner:
            calls = [
                threads.submit(owner.call, forever(begun[0])),
                threads.submit(asyncio.run, owner.call_async(forever(begun[1]))),
            ]
            for each in begun:
                each.wait()
        for call in calls:
            with pytest.raises(RuntimeError, match=r"^the (broker|cluster) stopped meanwhile$"):
                call.result()
    # A controller may say that it cannot tell a broker any more which has stopped.
    others = [record for record in caplog.records if record.name != "barnabas.controller.broker_queue"]
    assert [record.getMessage() for record in others] == []
