"""`topics reassign` and `topics elect` with real brokers: the plan, the move, what is refused, Ctrl-C and going on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from barnabas.broker.cli.move_plan import Plan, Situation, as_arguments, some_text
from barnabas.broker.cli.moves import _turns
from barnabas.broker.cli.reassignment import _targets
from barnabas.broker.client.client import ClientError
from barnabas.broker.client.placement import Placement
from barnabas.broker.client.reassignments import Reassignment
from barnabas.testing import Cluster
from tools.processes import children

Run = Callable[..., Any]

pytestmark = [pytest.mark.slow, pytest.mark.live]


@pytest.fixture(scope="module")
def broker() -> Iterator[Cluster]:
    with Cluster(4, auto_leader_rebalance_enable=False) as running:  # a test has others lead for a while
        yield running


def replicas(run: Run, topic: str) -> list[list[int]]:
    (described,) = run("topics", "describe", topic, "--json").json
    return [part["replicas"] for part in described["partitions"]]


def place(run: Run, topic: str, at: list[int]) -> None:
    """A topic of one partition, on these brokers."""
    run("topics", "create", topic, "-p", "1", "-r", str(len(at)))
    done = run("topics", "reassign", topic, "--replicas", ",".join(map(str, at)), "--yes")
    assert (done.status, replicas(run, topic)) == (0, [at]), done.err


def test_partitions_move_where_they_should(broker: Cluster, run: Run) -> None:
    run("topics", "create", "tours", "-p", "3", "-r", "2")
    lines = b"".join(b"tour %d\n" % number for number in range(500))
    assert run("produce", "tours", "-q", stdin=lines).status == 0

    planned = run("topics", "reassign", "tours", "--brokers", "1,2", "--json").json
    assert planned["executed"] is False
    assert {tuple(sorted(each["to"])) for each in planned["moves"]} == {(1, 2)}
    refused = run("topics", "reassign", "tours", "--brokers", "1,2")
    assert (refused.status, refused.err) == (
        1,
        "barnabas: nothing was changed: standard input is not a terminal, so nothing can be confirmed; "
        "pass --yes to go on\n",
    )
    done = run("topics", "reassign", "tours", "--brokers", "1,2", "--yes", "--json")
    assert (done.status, done.json["executed"], done.json["moves"]) == (0, True, planned["moves"])
    assert {tuple(sorted(each)) for each in replicas(run, "tours")} == {(1, 2)}
    assert run("consume", "tours", "-o", "earliest", "-e").out.count("tour") == 500
    again = run("topics", "reassign", "tours", "--brokers", "1,2", "--yes")
    assert again.out == "nothing to do: all replicas are there already\n"

    done = run("topics", "reassign", "tours:1", "--replicas", "3,0,1", "--yes")
    assert done.out.splitlines()[-1] == "all replicas are where they should be"
    assert replicas(run, "tours")[1] == [3, 0, 1]
    broker.wait_heard()
    assert broker.leader("tours", 1) == 3
    assert run("topics", "reassign", "tours", "-r", "1", "--yes").status == 0
    assert [len(each) for each in replicas(run, "tours")] == [1, 1, 1]


@pytest.mark.parametrize(
    ("options", "status", "expected"),
    [
        (["--brokers", "1,7"], 1, "there is no broker 7: the cluster has 0, 1, 2, 3"),
        (["--replicas", "9"], 1, "there is no broker 9"),
        (["-r", "5"], 1, "walks-0 needs 5 brokers, and 4 can have it: start another one"),
        (["--replicas", "1,1"], 2, "names a broker twice"),
        (["--replicas", "x"], 2, "is not ID,ID"),
        (["--cancel", "-r", "1"], 2, "--cancel goes alone"),
        (["--cancel", "--throttle", "1"], 2, "--cancel goes alone"),
        (["--replicas", "1", "-r", "1"], 2, "--replicas excludes --brokers"),
        (["--replicas", "1", "--brokers", "1"], 2, "--replicas excludes --brokers"),
        ([], 2, "give --replicas, or --brokers"),
    ],
)
def test_impossible_moves_are_refused(
    broker: Cluster, run: Run, options: list[str], status: int, expected: str
) -> None:
    run("topics", "create", "walks", "-p", "1", "-r", "1", "--if-not-exists")
    done = run("topics", "reassign", "walks", "--yes", *options)
    assert (done.status, done.out) == (status, "")
    assert expected in done.err
    if status == 1:
        assert done.err.count("\n") == 1


def test_a_topic_deleted_meanwhile_is_reported() -> None:
    situation = Situation(Placement({}, {}), {})
    with pytest.raises(ClientError, match="deleted during the move: walks-0 and 1 other"):
        _targets(situation, [("walks", 0), ("walks", 1)], [1], None, None)


def configs(run: Run, *resource: str) -> dict[str, str]:
    found = run("configs", "describe", *resource, "--json").json
    return {each["name"]: each["value"] for each in found if "throttled" in each["name"] and not each["is_default"]}


def test_at_most_at_once_partitions_move_at_a_time(broker: Cluster, run: Run) -> None:
    run("topics", "create", "treks", "-p", "5", "-r", "2")
    run("topics", "reassign", "treks", "--brokers", "0,1", "--yes")
    with broker.recorded() as seen:
        done = run("topics", "reassign", "treks", "--brokers", "2,3", "--at-once", "2", "--yes")
        asked = [len(each.request.partitions) for each in seen.requests("AlterPartitionReassignments")]
    assert done.status == 0, done.err
    assert done.err.splitlines()[0] == "5 partitions to move, 2 at a time; to continue after Ctrl-C, repeat the command"
    assert asked == [2, 2, 1]
    assert {tuple(sorted(each)) for each in replicas(run, "treks")} == {(2, 3)}


def test_a_throttle_is_set_again_for_each_turn(broker: Cluster, run: Run) -> None:
    """Between two nothing is under way, and somebody else may have taken it away."""
    run("topics", "create", "jaunts", "-p", "2", "-r", "1")
    run("topics", "reassign", "jaunts", "--brokers", "0", "--yes")
    with broker.recorded() as seen:
        line = ["topics", "reassign", "jaunts", "--replicas", "1", "--at-once", "1", "--throttle", "5000000", "--yes"]
        done = run(*line)
        assert done.status == 0, done.err
        lists = [
            next(config.value for config in resource.configs if config.name.startswith("follower"))
            for each in seen.requests("IncrementalAlterConfigs")
            for resource in each.message.resources
            if resource.resource_name == "jaunts"
        ]
    assert lists == ["0:1", "1:1", None]
    assert configs(run, "broker", "1") == configs(run, "topic", "jaunts") == {}


def test_an_interrupted_runs_throttle_holds_for_later_partitions(broker: Cluster, run: Run) -> None:
    place(run, "jogs", [1])
    place(run, "runs", [1])
    line = ["topics", "reassign", "jogs", "runs", "--replicas", "2", "--at-once", "1", "--yes"]

    def begun(*options: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "barnabas", *line, *options],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=os.environ | {"BARNABAS_BOOTSTRAP_SERVER": broker.bootstrap_servers},
        )  # fmt: skip

    broker.cut(1, 2)
    try:
        with begun("--throttle", "5000000") as first:
            assert first.stderr is not None
            assert first.stderr.readline().startswith("2 partitions to move, 1 at a time")
            first.send_signal(signal.SIGINT)
            children.finish(first)
        assert configs(run, "topic", "runs") == {}
        with broker.recorded() as seen, begun() as again:
            assert again.stderr is not None
            assert again.stderr.readline().startswith("throttled to 5000000 bytes per second")
            broker.heal()
            _, err = children.finish(again)
            assert again.returncode == 0, err
            lists = [
                config.value
                for each in seen.requests("IncrementalAlterConfigs")
                for resource in each.message.resources
                for config in resource.configs
                if (resource.resource_name, config.name) == ("runs", "follower.replication.throttled.replicas")
            ]
    finally:
        broker.heal()
    assert lists == ["0:2", None]
    assert configs(run, "broker", "2") == configs(run, "topic", "runs") == {}


def test_reassignments_in_progress_have_a_turn_of_their_own() -> None:
    placement = Placement({}, {})
    situation = Situation(placement, {("t", 0): Reassignment((1, 2), (2,), (1,))})
    targets = {("t", index): (2, 3) for index in (1, 2, 3)}
    plan = Plan(situation, targets, awaited=[("t", 0)])
    assert [list(turn) for turn in _turns(plan, 2)] == [[], [("t", 1), ("t", 2)], [("t", 3)]]
    assert _turns(plan, None) == [targets]
    assert _turns(Plan(situation, {}), 2) == _turns(Plan(situation, {}), None) == []


def test_interrupted_it_goes_on(broker: Cluster, run: Run) -> None:
    place(run, "hikes", [1, 2])
    broker.wait_heard()
    broker.cut(broker.leader("hikes"), 3)  # so that 3 gets nothing
    line = ["topics", "reassign", "hikes", "--replicas", "3,2", "--yes"]
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "barnabas", *line, "--throttle", "5000000"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=os.environ | {"BARNABAS_BOOTSTRAP_SERVER": broker.bootstrap_servers},
        )  # fmt: skip
        with process:
            assert process.stderr is not None
            begun = process.stderr.readline()
            assert begun == "1 partition on the way; to wait again after Ctrl-C, repeat the command\n"
            process.send_signal(signal.SIGINT)
            _, err = children.finish(process)
        assert (process.returncode, err) == (128 + signal.SIGINT, "")
        assert configs(run, "broker", "3") == dict.fromkeys(
            ("leader.replication.throttled.rate", "follower.replication.throttled.rate"), "5000000"
        )
        assert configs(run, "topic", "hikes") == {
            "leader.replication.throttled.replicas": "0:1,0:2",
            "follower.replication.throttled.replicas": "0:3",
        }
        other = run("topics", "reassign", "hikes", "--replicas", "0,2", "--yes")
        assert (other.status, other.err) == (
            1,
            "barnabas: hikes-0 is moving to brokers 3,2 already: wait until it is there, or cancel that"
            " (barnabas topics reassign hikes:0 --cancel)\n",
        )
        with subprocess.Popen(
            [sys.executable, "-m", "barnabas", *line],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=os.environ | {"BARNABAS_BOOTSTRAP_SERVER": broker.bootstrap_servers},
        ) as again:  # fmt: skip
            assert again.stderr is not None
            told = [again.stderr.readline(), again.stderr.readline()]
            broker.heal()
            _, err = children.finish(again)
    finally:
        broker.heal()
    assert again.returncode == 0, err
    assert told == [
        "throttled to 5000000 bytes per second, as before: --throttle changes it\n",
        "1 partition on the way; to wait again after Ctrl-C, repeat the command\n",
    ]
    assert err == "the throttle is removed\n"
    assert replicas(run, "hikes") == [[3, 2]]
    assert configs(run, "broker", "3") == configs(run, "topic", "hikes") == {}


@pytest.mark.parametrize(("shown_on", "options"), [("stdout", []), ("stderr", ["--json"])])
def test_the_plan_is_shown_before_anything_moves(broker: Cluster, run: Run, shown_on: str, options: list[str]) -> None:
    """Also where nobody is asked, and where a pipe takes it."""
    topic = f"strolls-on-{shown_on}"
    place(run, topic, [1])
    broker.cut(1, 2)  # so that nothing can be done yet
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "barnabas", "topics", "reassign", topic, "--replicas", "2", "--yes", *options],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=os.environ | {"BARNABAS_BOOTSTRAP_SERVER": broker.bootstrap_servers, "PYTHONUNBUFFERED": ""},
        )  # fmt: skip
        stream = getattr(process, shown_on)
        assert stream.readline().split() == ["TOPIC", "PARTITION", "FROM", "TO", "BYTES"]
        assert stream.readline().split() == [topic, "0", "1", "2", "0"]
        assert stream.readline() == "1 partition to change, 0 bytes to copy\n"
    finally:
        broker.heal()
    out, err = children.finish(process)
    assert process.returncode == 0, err
    if options:
        assert (json.loads(out)["executed"], json.loads(out)["moves"][0]["to"]) == (True, [2])
    else:
        assert out == "all replicas are where they should be\n"
    assert err == "1 partition on the way; to wait again after Ctrl-C, repeat the command\n"


def test_cancel_ends_reassignments_in_progress(broker: Cluster, run: Run) -> None:
    place(run, "rides", [1])
    assert run("topics", "reassign", "rides", "--cancel").out == "no move is under way\n"
    broker.cut(1, 2)
    try:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "barnabas", "topics", "reassign", "rides", "--replicas", "2", "--yes"),
                *("--throttle", "5000000"),
            ],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=os.environ | {"BARNABAS_BOOTSTRAP_SERVER": broker.bootstrap_servers},
        )  # fmt: skip
        with process:
            assert process.stderr is not None
            process.stderr.readline()
            cancelled = run("topics", "reassign", "rides", "--cancel")
            assert cancelled.out == "rides-0 stays on its brokers\n"
            assert cancelled.err == "the throttle is removed\n"
            assert configs(run, "broker", "1") == configs(run, "topic", "rides") == {}
            _, err = children.finish(process)
        assert process.returncode == 1
        assert "rides-0 has replicas 1 instead of 2: another command has changed that; run this one again" in err
    finally:
        broker.heal()


def test_partitions_without_a_leader_are_named(broker: Cluster, run: Run) -> None:
    """There is nothing to copy from. When it is its turn."""
    place(run, "apneas", [1])
    place(run, "dives", [3])
    broker.brokers[3].stop()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "barnabas", "topics", "reassign", "apneas", "dives", "--replicas", "0"),
            *("--at-once", "1", "--yes"),
        ],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"BARNABAS_BOOTSTRAP_SERVER": broker.brokers[0].bootstrap_servers},
    )  # fmt: skip
    with process:
        assert process.stderr is not None
        process.stderr.readline()
        assert process.stderr.readline() == (
            "barnabas: there is no leader of dives-0: start brokers that have replicas, or cancel that"
            " (barnabas topics reassign dives:0 --cancel)\n"
        )
        broker.brokers[3].start()
        out, err = children.finish(process)
    assert (process.returncode, err) == (0, "")
    assert out.endswith("all replicas are where they should be\n")


def test_all_partitions_that_wait_for_a_broker_are_named() -> None:
    assert as_arguments([("t", 3), ("u", 0), ("t", 1)]) == "t:1,3 u:0"
    assert some_text([("t", 1)]) == "t-1"
    assert some_text([("t", 1), ("t", 2)]) == "t-1 and 1 other"
    assert some_text([("t", 1), ("t", 2), ("u", 0)]) == "t-1 and 2 others"


def test_a_broker_that_leaves_meanwhile_is_reported(broker: Cluster, run: Run) -> None:
    place(run, "swims", [0])
    broker.cut(0, 3)
    process = subprocess.Popen(
        [sys.executable, "-m", "barnabas", "topics", "reassign", "swims", "--replicas", "3", "--yes"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"BARNABAS_BOOTSTRAP_SERVER": broker.brokers[0].bootstrap_servers},
    )  # fmt: skip
    try:
        with process:
            assert process.stderr is not None
            process.stderr.readline()
            broker.brokers[3].stop()
            assert process.stderr.readline() == (
                "barnabas: broker 3 is away, and is to get swims-0: start it again, or cancel that"
                " (barnabas topics reassign swims:0 --cancel)\n"
            )
            broker.heal()
            broker.brokers[3].start()
            out, err = children.finish(process)
    finally:
        broker.heal()
    assert (process.returncode, err) == (0, "")
    assert out.endswith("all replicas are where they should be\n")


def test_elections(broker: Cluster, run: Run) -> None:
    place(run, "sails", [1, 2])
    broker.wait_heard()
    assert run("topics", "elect", "sails").out == "no election was needed\n"
    broker.brokers[1].stop()
    assert broker.leader("sails") == 2
    failed = run("topics", "elect", "sails", "--json")
    assert (failed.status, failed.json[0]["elected"]) == (1, False)
    assert failed.err == (
        "barnabas: sails-0 is not elected: The preferred leader is not available. (PREFERRED_LEADER_NOT_AVAILABLE):"
        " start the broker of its first replica, or wait until that is in sync"
        " (barnabas topics list --under-replicated)\n"
    )
    broker.brokers[1].start()
    assert run("topics", "elect", "sails").out == "sails-0 is led by its preferred replica\n"
    broker.wait_heard()
    assert broker.leader("sails", 0) == 1
    unnamed = run("topics", "elect", "--unclean")
    assert (unnamed.status, "name the topics" in unnamed.err) == (2, True)
    assert run("topics", "elect", "sails", "--unclean").out == "no election was needed\n"
