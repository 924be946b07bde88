"""sarama, at the oldest protocol versions it offers that can talk to Kafka 4.3.0, and at the newest."""

from collections.abc import Callable
from typing import Any

import pytest

Scenario = Callable[..., Any]

OLD, NEW = "2.1.0", "4.1.0"


@pytest.mark.parametrize("version", [OLD, NEW])
def test_keys_headers_and_timestamps_go_through(sarama: Scenario, topic: str, version: str) -> None:
    assert sarama("roundTrip", topic=topic, version=version) == {
        "sent": 0,
        "offset": 0,
        "key": "k",
        "value": "Žižkov 🚋",
        "headers": {"h": "1"},
        "timestamp": 1_700_000_000_000,
    }


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_acks(sarama: Scenario, topic: str, acks: int) -> None:
    assert sarama("acks", topic=topic, acks=acks, count=20) == {"high": 20}


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_codecs(sarama: Scenario, topic: str, codec: str) -> None:
    assert sarama("codec", topic=topic, codec=codec, count=500, version=NEW) == {"same": 500}


def test_an_idempotent_producer_gets_consecutive_offsets(sarama: Scenario, topic: str) -> None:
    assert sarama("idempotent", topic=topic, count=20) == {"offsets": list(range(20))}


@pytest.mark.parametrize("version", [OLD, NEW])
def test_a_group_shares_a_topic_and_goes_on_from_its_commits(
    sarama: Scenario, make_topic: Any, group: str, version: str
) -> None:
    answer = sarama("group", topic=make_topic(partitions=4), group=group, partitions=4, version=version)

    assert answer == {"both": [2, 2], "later": ["later"]}


@pytest.mark.parametrize("version", [OLD, NEW])
def test_topics_are_created_enlarged_and_deleted(sarama: Scenario, topic_name: str, version: str) -> None:
    answer = sarama("topics", topic=topic_name, version=version)

    assert answer == {"exists": True, "partitions": 3, "retention": "60000", "listed": 3}


@pytest.mark.parametrize("version", [OLD, NEW])
def test_offsets_of_topics_and_groups(sarama: Scenario, topic: str, group: str, version: str) -> None:
    assert sarama("offsets", topic=topic, group=group, version=version) == {
        "byTime": 1,
        "committed": 2,
        "note": "note",
        "low": 1,
        "listed": True,
        "after": False,
    }
