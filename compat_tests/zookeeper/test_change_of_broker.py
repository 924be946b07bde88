"""From Barnabas to Apache Kafka 3.9.1 and back: the same directory, the same ZooKeeper."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from compat_tests.conftest import create_topic
from compat_tests.zookeeper.conftest import broker_on
from compat_tests.zookeeper.kafka_broker import KafkaOnZooKeeper
from compat_tests.zookeeper.waiting import consume, produce, topic_of
from tools.processes.barnabas import BarnabasProcess
from tools.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.java

CHROOT = "/handed/over"


def admin_of(broker: Any) -> Any:
    from confluent_kafka.admin import AdminClient  # type: ignore[attr-defined]

    return AdminClient({"bootstrap.servers": broker.bootstrap_servers})


def topic_ids(admin: Any, names: list[str]) -> dict[str, str]:
    from confluent_kafka import TopicCollection

    described = admin.describe_topics(TopicCollection(names))
    return {name: str(described[name].result(PATIENCE_S).topic_id) for name in names}


def retention_of(admin: Any, name: str) -> str:
    from confluent_kafka.admin import ConfigResource  # type: ignore[attr-defined]

    resource = ConfigResource(ConfigResource.Type.TOPIC, name)
    value: str = admin.describe_configs([resource])[resource].result(PATIENCE_S)["retention.ms"].value
    return value


def use_barnabas(first: BarnabasProcess) -> dict[str, str]:
    create_topic(first.bootstrap_servers, "ours", 2, {"retention.ms": "86400000"})
    for value in ("a", "b", "c"):
        produce(first.bootstrap_servers, "ours", value)
    assert consume(first.bootstrap_servers, "ours", "readers", 3) == ["a", "b", "c"]
    produce(first.bootstrap_servers, "ours", "d")
    return topic_ids(admin_of(first), ["ours", "__consumer_offsets"])


def use_kafka(kafka: KafkaOnZooKeeper, ids: dict[str, str]) -> None:
    admin = admin_of(kafka)
    wait_until(lambda: topic_of(admin, "ours", 2))
    assert topic_ids(admin, list(ids)) == ids
    assert retention_of(admin, "ours") == "86400000"
    assert consume(kafka.bootstrap_servers, "ours", "readers", 1) == ["d"], "from the offset committed to Barnabas"
    assert produce(kafka.bootstrap_servers, "ours", "e") == 4
    create_topic(kafka.bootstrap_servers, "theirs", 1, {"retention.ms": "172800000"})
    assert produce(kafka.bootstrap_servers, "theirs", "f") == 0


def test_from_barnabas_to_kafka_and_back(zookeeper: Any, tmp_path: Path) -> None:
    hand_over(zookeeper, tmp_path)


def hand_over(zookeeper: Any, tmp_path: Path, address: str = "", keys: Mapping[str, str] | None = None) -> None:
    """With whatever speaks ZooKeeper's protocol at `zookeeper.address`, or at `address`; both brokers have `keys`."""
    connect_string = (address or zookeeper.address) + CHROOT
    with broker_on(zookeeper, CHROOT, **{**(keys or {}), "zookeeper.connect": connect_string}) as barnabas:
        ids = use_barnabas(barnabas)
        barnabas.stop()
        shutil.copytree(barnabas.log_dir, tmp_path / "data", ignore=shutil.ignore_patterns("metadata.sqlite*"))
        with KafkaOnZooKeeper(connect_string, tmp_path / "data", keys=keys) as kafka:
            use_kafka(kafka, ids)
            log = kafka.log_file.read_text(errors="replace")
            kafka.stop()
        assert " ERROR " not in log, log
        shutil.rmtree(barnabas.log_dir)
        shutil.copytree(tmp_path / "data", barnabas.log_dir)
        barnabas.start()
        admin = admin_of(barnabas)
        wait_until(lambda: topic_of(admin, "ours", 2))
        wait_until(lambda: topic_of(admin, "theirs"))
        assert topic_ids(admin, list(ids)) == ids
        assert retention_of(admin, "theirs") == "172800000"
        assert consume(barnabas.bootstrap_servers, "ours", "readers", 1) == ["e"], "from the offset committed to Kafka"
        assert consume(barnabas.bootstrap_servers, "theirs", "readers", 1) == ["f"]
        assert produce(barnabas.bootstrap_servers, "ours", "g") == 5
