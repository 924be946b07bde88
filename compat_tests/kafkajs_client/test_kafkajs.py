"""kafkajs, each scenario of `scenarios.js` in a Node.js process of its own."""

import json
import os
import secrets
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compat_tests.emptied_topic import END, QUICK_COMPACTION, make_emptied_topic
from tests.support.required import tool_missing
from tools.foreign.languages import ToolchainMissing, find_node, node_modules
from tools.processes import children

HERE = Path(__file__).parent

Scenario = Callable[..., Any]


@pytest.fixture(scope="session")
def node_environment() -> dict[str, str]:
    try:
        find_node()
    except ToolchainMissing as missing:
        tool_missing(missing)
    # Without this kafkajs explains at every start that its default partitioner is no longer that of version 1.
    return {**os.environ, "NODE_PATH": str(node_modules(HERE)), "KAFKAJS_NO_PARTITIONER_WARNING": "1"}


@pytest.fixture
def scenario(cluster: Any, node_environment: dict[str, str]) -> Scenario:
    """Run a scenario by its name; what it returned, or a failed test that shows its complaints."""

    def run(name: str, own: Any = None, **arguments: Any) -> Any:
        servers = (own or cluster).bootstrap_servers
        done = children.run(
            [find_node(), HERE / "scenarios.js", name, servers, json.dumps(arguments)],
            env=node_environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture
def group() -> str:
    """A consumer group nobody used before."""
    return f"kafkajs-{secrets.token_hex(6)}"


def test_keys_headers_nulls_and_timestamps_go_through(scenario: Scenario, topic: str, group: str) -> None:
    answer = scenario("roundTrip", topic=topic, group=group)

    [sent] = answer["sent"]
    assert (sent["partition"], sent["errorCode"], sent["baseOffset"]) == (0, 0, "0")
    shown = [(each["offset"], each["key"], each["value"], each["headers"]) for each in answer["messages"]]
    assert shown == [
        (0, "k", "one", {"h": "1"}),
        (1, None, "two", {}),
        (2, "k", None, {}),
        (3, "", "Žižkov 🚋", {}),
    ]
    assert answer["messages"][0]["timestamp"] == 1_700_000_000_000


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_acks(scenario: Scenario, topic: str, acks: int) -> None:
    assert scenario("acks", topic=topic, acks=acks, count=20) == {"high": 20}


def test_gzip(scenario: Scenario, topic: str, group: str) -> None:
    answer = scenario("gzip", topic=topic, group=group, count=500)

    assert answer["first"]["value"].startswith("value 0 ")
    assert (answer["last"]["offset"], answer["last"]["value"][:10]) == (499, "value 499 ")


def test_an_idempotent_producer_gets_consecutive_offsets(scenario: Scenario, topic: str) -> None:
    assert scenario("idempotent", topic=topic, count=20) == {"offsets": list(range(20))}


def test_a_group_shares_a_topic_and_survives_a_member(scenario: Scenario, make_topic: Any, group: str) -> None:
    answer = scenario("group", topic=make_topic(partitions=4), group=group, partitions=4)

    assert sorted(map(len, answer["both"])) == [2, 2]
    assert sorted(partition for each in answer["both"] for partition in each) == [0, 1, 2, 3]
    assert (answer["left"], answer["state"], answer["members"]) == (4, "Stable", 2)


def test_a_group_goes_on_from_its_committed_offset(scenario: Scenario, topic: str, group: str) -> None:
    assert scenario("committed", topic=topic, group=group) == {"values": ["2", "3"]}


def test_seek(scenario: Scenario, topic: str, group: str) -> None:
    assert scenario("seek", topic=topic, group=group) == {"value": "3"}


def test_topics_are_created_enlarged_configured_and_deleted(scenario: Scenario, topic_name: str) -> None:
    assert scenario("topics", topic=topic_name) == {
        "created": True,
        "again": False,
        "partitions": 3,
        "retention": ["60000", "70000"],
        "gone": True,
    }


def test_offsets_of_topics_and_groups(scenario: Scenario, topic: str, group: str) -> None:
    assert scenario("offsets", topic=topic, group=group) == {
        "byTime": "1",
        "committed": "2",
        "low": "1",
        "high": "3",
        "listed": True,
        "after": False,
    }


def test_timestamps_whose_largest_the_client_does_not_know(scenario: Scenario, topic: str) -> None:
    assert scenario("timestampsOfOtherLengths", topic=topic) == {"offset": "9"}


def test_a_timestamp_of_some_messages_only(scenario: Scenario, topic: str) -> None:
    assert scenario("timestampOfSomeMessages", topic=topic) == {"offset": "1"}


def test_the_cluster_describes_itself(scenario: Scenario, cluster: Any) -> None:
    answer = scenario("cluster")

    [broker] = answer["brokers"]
    assert f"{broker['host']}:{broker['port']}" == cluster.bootstrap_servers
    assert broker["nodeId"] == answer["controller"]
    assert len(answer["clusterId"]) == 22


def test_a_topic_is_created_by_producing_to_it(scenario: Scenario, topic_name: str, group: str) -> None:
    assert scenario("autoCreated", topic=topic_name, group=group) == {"value": "first"}


def test_a_record_that_is_too_large_is_refused(scenario: Scenario, topic: str) -> None:
    assert scenario("tooLarge", topic=topic) == {"type": "MESSAGE_TOO_LARGE"}


def test_the_emptied_tail_of_a_compacted_log_is_passed(scenario: Scenario, start_cluster: Any, group: str) -> None:
    own = start_cluster(QUICK_COMPACTION)
    topic = make_emptied_topic(own)

    answer = scenario("beyond", own, topic=topic, group=group)

    assert answer == {"high": END, "values": [[0, "kept"], [END, "next"], [END, "next"]]}
