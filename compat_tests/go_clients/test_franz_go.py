"""franz-go (kgo and its administration client kadm)."""

from collections.abc import Callable
from typing import Any

import pytest

Scenario = Callable[..., Any]


def test_keys_headers_nulls_and_timestamps_go_through(franz_go: Scenario, topic: str) -> None:
    messages = franz_go("roundTrip", topic=topic)["messages"]

    assert [(each["offset"], each["key"], each["value"], each["headers"]) for each in messages] == [
        (0, "k", "one", {"h": "1"}),
        (1, None, "two", {}),
        (2, "k", None, {}),
        (3, "", "Žižkov 🚋", {}),
    ]
    assert messages[0]["timestamp"] == 1_700_000_000_000


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_acks(franz_go: Scenario, topic: str, acks: int) -> None:
    assert franz_go("acks", topic=topic, acks=acks, count=20) == {"high": 20}


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_codecs(franz_go: Scenario, topic: str, codec: str) -> None:
    assert franz_go("codec", topic=topic, codec=codec, count=500) == {"same": 500}


def test_an_idempotent_producer_gets_consecutive_offsets(franz_go: Scenario, topic: str) -> None:
    answer = franz_go("idempotent", topic=topic, count=20)

    assert answer["offsets"] == list(range(20))
    assert answer["producerId"] >= 0
    assert answer["producerEpoch"] == 0


@pytest.mark.parametrize("balancer", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_a_group_shares_a_topic_and_survives_a_member(
    franz_go: Scenario, make_topic: Any, group: str, balancer: str
) -> None:
    answer = franz_go("group", topic=make_topic(partitions=4), group=group, partitions=4, balancer=balancer)

    assert (answer["both"], answer["protocol"]) == ([2, 2], balancer)


def test_a_static_member_comes_back_into_the_same_generation(franz_go: Scenario, topic: str, group: str) -> None:
    first, second = franz_go("staticMember", topic=topic, group=group)["generations"]

    assert first == second


def test_a_group_goes_on_from_its_committed_offset(franz_go: Scenario, topic: str, group: str) -> None:
    answer = franz_go("committed", topic=topic, group=group)

    assert (answer["values"], answer["committed"], answer["end"]) == (["2", "3"], 2, 4)


def test_topics_are_created_enlarged_configured_and_deleted(franz_go: Scenario, topic_name: str) -> None:
    answer = franz_go("topics", topic=topic_name)

    assert (answer["exists"], answer["partitions"], answer["retention"]) == (True, 3, ["60000", ""])


def test_offsets_of_topics_and_groups(franz_go: Scenario, topic: str, group: str) -> None:
    assert franz_go("offsets", topic=topic, group=group) == {
        "byTime": 1,
        "newest": 2,
        "committed": 2,
        "low": 1,
        "listed": True,
        "after": False,
    }


def test_the_cluster_describes_itself(franz_go: Scenario, cluster: Any) -> None:
    answer = franz_go("cluster")

    assert answer["brokers"] == [cluster.bootstrap_servers]
    assert len(answer["clusterId"]) == 22
    assert answer["logDirs"] == 1


def test_a_topic_is_created_by_producing_to_it(franz_go: Scenario, topic_name: str) -> None:
    assert franz_go("autoCreated", topic=topic_name) == {"value": "first"}


def test_a_record_that_is_too_large_is_refused(franz_go: Scenario, topic: str) -> None:
    assert franz_go("tooLarge", topic=topic) == {"tooLarge": True}


def test_a_topic_deleted_and_created_again_starts_empty(franz_go: Scenario, topic: str) -> None:
    assert franz_go("recreated", topic=topic) == {"values": ["old", "new"], "offset": 0}


def test_transactions_of_version_2(franz_go: Scenario, topic: str, group: str) -> None:
    answer = franz_go("transactions", topic=topic, group=group)

    assert answer["committed"] == ["0", "2"]
    assert answer["all"] == ["0", "1", "2"]
    first, second, third = answer["epochs"]
    assert (second, third) == (first + 1, first + 2), "every end brings a new epoch"
