"""`Broker(security="sasl_ssl")`: clients with users, in a test."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiokafka
import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from barnabas.testing import Broker, Cluster
from tools.waiting import PATIENCE_S


def write(config: dict[str, Any], topic: str) -> None:
    producer = Producer(config)
    producer.produce(topic, b"hello")
    assert producer.flush(PATIENCE_S) == 0


def test_without_security_it_is_the_address() -> None:
    with Broker() as broker:
        assert broker.client_config() == {"bootstrap.servers": broker.bootstrap_servers}
        assert broker.client_config("alice", "aiokafka") == {"bootstrap_servers": broker.bootstrap_servers}
        with pytest.raises(ValueError, match="client='sarama': expected one of confluent_kafka"):
            broker.client_config("alice", "sarama")


def test_other_security_is_refused() -> None:
    with pytest.raises(ValueError, match='expected "sasl_ssl"'):
        Broker(security="kerberos")


def test_users_log_in() -> None:
    """Each with its own password, which a restart and a reset keep."""
    with Broker(security="sasl_ssl") as broker:
        alice = broker.client_config("alice")
        assert alice == broker.client_config("alice")
        assert alice["sasl.password"] != broker.client_config("bob")["sasl.password"]
        write(alice, "t")
        broker.restart()
        write(alice, "t")
        broker.reset()
        write(alice, "t")
        with pytest.raises(KafkaException):
            # Real time: librdkafka tries again until then.
            AdminClient(alice | {"sasl.password": "another"}).list_topics(timeout=5)


def test_aiokafka_and_java() -> None:
    with Broker(security="sasl_ssl") as broker:

        async def work() -> None:
            producer = aiokafka.AIOKafkaProducer(**broker.client_config("alice", "aiokafka"))
            await producer.start()
            try:
                await producer.send_and_wait("t", b"hello")
            finally:
                await producer.stop()

        asyncio.run(work())
        java = broker.client_config("alice", "java")
        assert java["security.protocol"] == "SASL_SSL"
        assert 'username="alice"' in java["sasl.jaas.config"]
        assert Path(java["ssl.truststore.location"]).exists()
    assert not Path(java["ssl.truststore.location"]).exists()


def test_a_directory_keeps_users(tmp_path: Path) -> None:
    with Broker(security="sasl_ssl", data_dir=tmp_path) as broker:
        config = broker.client_config("client")
        write(config, "t")
    with Broker(security="sasl_ssl", data_dir=tmp_path) as broker:
        assert broker.client_config("client")["sasl.password"] == config["sasl.password"]
        assert broker.topic_names() == ["t"]


def test_a_cluster() -> None:
    """Its users are everywhere at once, and a broker that was killed logs in to the others again."""
    with Cluster(security="sasl_ssl") as cluster:
        alice = cluster.client_config("alice")
        for broker in cluster.brokers:
            write(alice | {"bootstrap.servers": broker.bootstrap_servers}, "t")
        leader = cluster.leader("t")
        cluster.brokers[leader].kill()
        write(alice, "t")
        cluster.brokers[leader].start()
        cluster.wait_in_sync()
        bob = cluster.client_config("bob")
        cluster.restart()
        for config in (alice, bob):
            write(config, "t")
        assert len(cluster.topic("t").records()) == 6
        cluster.reset()
        write(bob, "t")
