"""`brokers drain` and `brokers rebalance` with real brokers: under load, asked at a terminal, interrupted, with brokers
that are dead, and what is refused."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from barnabas.testing import Broker, Cluster
from tools.processes import children
from tools.waiting import PATIENCE_S, wait_until

Run = Callable[..., Any]
Start = Callable[..., subprocess.Popen[bytes]]

LAG_MS = int(PATIENCE_S * 1000)
LAG_MS_SHORT = 500

pytestmark = [pytest.mark.slow, pytest.mark.live]


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """No follower lags behind for so long that it is not in sync, however busy the machine, unless a test asks for
    that."""
    with Cluster(4, replica_lag_time_max_ms=getattr(request, "param", LAG_MS)) as running:
        yield running


def held(run: Run, broker: int) -> int:
    return sum(row["replicas"] for row in run("brokers", "list", "--json").json if row["id"] == broker)


class Load:
    """Writes to a topic on a thread until `with` ends; what was refused is in `errors`."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.errors: list[object] = []
        self.count = 0
        self._producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True})
        self._topic = topic
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        assert self._producer.flush(PATIENCE_S) == 0

    def _write(self) -> None:
        while not self._over.is_set():
            self._producer.produce(self._topic, f"stage {self.count}", on_delivery=self._done)
            self.count += 1
            self._producer.poll(0.002)

    def _done(self, error: object, _: object) -> None:
        if error is not None:
            self.errors.append(error)


def test_a_broker_is_drained_under_load_and_switched_off(broker: Cluster, run: Run) -> None:
    broker.create_topic("stages", 8, 3)
    with Load(broker, "stages") as load:
        planned = run("brokers", "drain", "3", "--json").json
        assert (planned["brokers"], planned["executed"]) == ([3], False)
        assert len(planned["moves"]) == held(run, 3) > 0
        done = run("brokers", "drain", "3", "--yes")
        assert (done.status, done.out.splitlines()[-1]) == (
            0,
            "broker 3 has no replicas: it may be switched off, before others are drained or rebalanced",
        )
        assert held(run, 3) == 0
        broker.brokers[3].stop()
    assert load.errors == []
    assert run("consume", "stages", "-o", "earliest", "-e").out.count("stage") == load.count
    assert run("topics", "list", "--under-replicated", "--json").json == []
    unknown = run("brokers", "drain", "3", "--yes")
    assert unknown.err == "barnabas: there is no broker 3: the cluster has 0, 1, 2\n"


def test_two_brokers_are_drained_at_once(broker: Cluster, run: Run) -> None:
    """Neither gets what the other one had."""
    broker.create_topic("laps-of-two", 6, 2)
    done = run("brokers", "drain", "3", "0", "3", "--yes", "--json")
    assert (done.status, done.json["brokers"]) == (0, [0, 3]), done.err
    assert held(run, 0) == held(run, 3) == 0
    assert run("brokers", "drain", "0", "3").out == (
        "brokers 0, 3 have no replicas: they may be switched off, before others are drained or rebalanced\n"
    )


def test_a_broker_that_is_dead_is_drained(broker: Cluster, run: Run) -> None:
    broker.create_topic("legs", 4, 2)
    dead = next(number for number in range(4) if number != broker.controller())
    before = held(run, dead)
    broker.brokers[dead].kill()
    done = run("brokers", "drain", str(dead), "--yes", "--json")
    assert done.status == 0, done.err
    assert len(done.json["moves"]) == before > 0
    assert held(run, dead) == 0
    assert run("topics", "list", "--under-replicated", "--json").json == []


def test_partitions_that_only_a_dead_broker_has_are_named(broker: Cluster, run: Run) -> None:
    broker.create_topic("solo", 4, 1)
    broker.create_topic("legs", 4, 2)
    dead = next(number for number in range(4) if number != broker.controller())
    broker.brokers[dead].kill()
    done = run("brokers", "drain", str(dead), "--yes")
    assert done.status == 1
    [index] = [
        part["partition"]
        for part in run("topics", "describe", "solo", "--json").json[0]["partitions"]
        if part["leader"] < 0
    ]
    assert done.err.splitlines()[-1] == (
        f"barnabas: on broker {dead} there are partitions without a leader, solo-{index}: start brokers that have"
        " replicas of them, or delete topics that are lost"
    )
    assert held(run, dead) == 1


def test_a_user_at_a_terminal_is_asked(broker: Cluster, run: Run) -> None:
    broker.create_topic("laps", 2, 3)
    drained = run("topics", "describe", "laps", "--json").json[0]["partitions"][0]["replicas"][0]

    def answered(answer: bytes) -> tuple[int, str, str]:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "barnabas", "brokers", "drain", str(drained)],
            stdin=theirs, stdout=subprocess.PIPE, stderr=theirs,
            env=os.environ | {"BARNABAS_BOOTSTRAP_SERVER": broker.bootstrap_servers, "TERM": "xterm"},
        )  # fmt: skip
        os.close(theirs)
        shown = b""
        while b"[y/N] " not in shown:
            shown += os.read(ours, 1000)
        os.write(ours, answer)
        assert process.stdout is not None
        with process.stdout as file:
            out = file.read().decode()
        status = children.wait(process)
        try:
            while part := os.read(ours, 10_000):
                shown += part
        except OSError:  # the other end is closed
            pass
        os.close(ours)
        return status, out, shown.decode()

    status, out, shown = answered(b"n\n")
    assert (status, "nothing was changed" in shown) == (1, True)
    assert "laps" in out
    assert held(run, drained) > 0
    status, out, shown = answered(b"y\n")
    assert (status, out.splitlines()[-1]) == (
        0,
        f"broker {drained} has no replicas: it may be switched off, before others are drained or rebalanced",
    )
    assert "0 partitions left" in shown


def test_impossible_rebalances_and_drains_are_refused(broker: Cluster, run: Run) -> None:
    broker.create_topic("climbs", 1, 4)
    refused = run("brokers", "drain", "2", "--yes")
    assert (refused.status, refused.out) == (1, "")
    assert refused.err == (
        "barnabas: climbs-0 needs 4 brokers, and 3 can have it: start another one, or lower that first"
        " (barnabas topics reassign climbs --replication-factor 3)\n"
    )
    assert run("topics", "reassign", "climbs", "--replication-factor", "3", "--yes").status == 0
    assert run("brokers", "drain", "2", "--yes").status == 0
    unknown = run("brokers", "drain", "7", "--yes")
    assert (unknown.status, unknown.err) == (1, "barnabas: there is no broker 7: the cluster has 0, 1, 2, 3\n")
    with Broker() as single:
        alone = run("brokers", "drain", "1", "--yes", "-b", single.bootstrap_servers)
        assert (alone.status, alone.err) == (
            1,
            "barnabas: broker 1 is the only one: start another broker of the cluster, which can take its partitions. (A"
            " broker started without --zookeeper and --brokers forms no cluster.)\n",
        )


def shares(run: Run) -> tuple[list[int], list[int]]:
    """Replicas and led partitions of each broker."""
    rows = run("brokers", "list", "--json").json
    return [row["replicas"] for row in rows], [row["leads"] for row in rows]


def test_a_broker_that_joins_gets_its_share_under_load(broker: Cluster, run: Run) -> None:
    broker.brokers[3].stop()
    broker.create_topic("stages", 16, 3)
    with Load(broker, "stages") as load:
        broker.brokers[3].start()
        planned = run("brokers", "rebalance", "--json").json
        # What was written so far is a few records on a few partitions: no plan need be able to share them out.
        assert (planned["executed"], set(planned["uneven"]) <= {"bytes"}) == (False, True), planned["uneven"]
        done = run("brokers", "rebalance", "--yes", "--throttle", "100000000")
        assert done.status == 0, done.err
    assert "the throttle is removed" in done.err
    broker.wait_heard()
    replicas, leads = shares(run)
    assert replicas == [12, 12, 12, 12]
    assert max(leads) - min(leads) <= 1
    assert load.errors == []
    assert run("consume", "stages", "-o", "earliest", "-e").out.count("stage") == load.count


def test_a_rebalance_that_is_interrupted_goes_on(broker: Cluster, run: Run) -> None:
    broker.brokers[3].stop()
    broker.create_topic("stages", 8, 2)
    broker.brokers[3].start()
    for other in (0, 1, 2):
        broker.cut(3, other)  # so that it gets nothing

    def begun() -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "barnabas", "brokers", "rebalance", "--yes"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=os.environ | {"BARNABAS_BOOTSTRAP_SERVER": broker.brokers[0].bootstrap_servers},
        )  # fmt: skip
        assert process.stderr is not None
        assert "on the way; to wait again after Ctrl-C" in process.stderr.readline()
        return process

    with begun() as process:
        process.send_signal(signal.SIGINT)
        children.finish(process)
    assert process.returncode == 128 + signal.SIGINT
    planned = run("brokers", "rebalance", "--json").json
    assert (planned["moves"], [each["topic"] for each in planned["awaited"]]) == ([], ["stages"] * 4)
    with begun() as process:
        broker.heal()
        out, err = children.finish(process)
    assert process.returncode == 0, err
    assert "4 partitions already moving\n" in out
    assert shares(run)[0] == [4, 4, 4, 4]
    assert run("brokers", "rebalance", "--yes").out == (
        "replicas, leaders and bytes of all brokers are as even as they should be\n"
    )


def test_preferred_leaders_are_elected_where_others_lead(broker: Cluster, run: Run) -> None:
    broker.create_topic("stages", 4, 2)
    preferred = broker.leader("stages", 2)
    broker.brokers[preferred].stop()
    broker.brokers[preferred].start()
    planned = run("brokers", "rebalance", "--json").json
    assert (planned["moves"], planned["elections"]) == ([], [{"topic": "stages", "partition": 2}])
    unasked = run("brokers", "rebalance")
    assert (unasked.status, "nothing was changed" in unasked.err) == (1, True)
    assert unasked.out == "1 partition to be led by the preferred replica\n"
    assert broker.leader("stages", 2) != preferred
    assert run("brokers", "rebalance", "--yes").status == 0
    broker.wait_heard()
    assert broker.leader("stages", 2) == preferred


@pytest.mark.parametrize("broker", [LAG_MS_SHORT], indirect=True)
def test_leaders_that_have_lagged_behind_are_waited_for(broker: Cluster, run: Run, start: Start) -> None:
    broker.create_topic("stages", 1, 2)
    preferred = broker.leader("stages", 0)
    broker.brokers[preferred].stop()
    broker.brokers[preferred].start()
    leader = broker.leader("stages", 0)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "acks": 1})
    with broker.faults.hold("ElectLeaders") as hold:
        rebalance = start("brokers", "rebalance", "--yes")
        hold.wait_held(timeout=PATIENCE_S)
        with broker.faults.hold("Fetch", from_brokers=True, broker=leader) as lagging:
            lagging.wait_held(timeout=PATIENCE_S)
            producer.produce("stages", "one that it has not")
            assert producer.flush(PATIENCE_S) == 0
            wait_until(lambda: in_sync(run) == [leader], "a follower that lags behind")
            hold.release()
            wait_until(lambda: rebalance.poll() is not None or (hold.hits, hold.held) == (2, 1), "another attempt")
            assert rebalance.poll() is None, "it has given up"
    assert children.wait(rebalance) == 0
    broker.wait_heard()
    assert broker.leader("stages", 0) == preferred


def in_sync(run: Run) -> list[int]:
    """The replicas of the partition that are in sync."""
    return list(run("topics", "describe", "stages", "--json").json[0]["partitions"][0]["isr"])


def test_a_broker_that_is_away_has_to_be_seen_to_first(broker: Cluster, run: Run) -> None:
    broker.create_topic("stages", 4, 3)
    away = next(number for number in range(4) if number != broker.controller())
    broker.brokers[away].stop()
    refused = run("brokers", "rebalance", "--yes")
    assert (refused.status, refused.err) == (
        1,
        f"barnabas: broker {away} has replicas and is away: start it again, or move its replicas to others"
        f" (barnabas brokers drain {away})\n",
    )
    drained = next(number for number in range(4) if number != away)
    other = run("brokers", "drain", str(drained), "--yes")
    assert (other.status, other.err) == (1, refused.err)
    assert run("topics", "reassign", "stages", "-r", "3").out == "nothing to do: all replicas are there already\n"
    [gone] = run("topics", "reassign", "stages", "--brokers", f"{drained},{away}", "-r", "2").err.splitlines()
    assert gone == f"barnabas: broker {away} is away: start it again first"
