"""`barnabas serve --brokers 3`, and a client that says it is a broker: over real sockets, with what a red team did."""

import json
import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from barnabas.broker.cli.cluster_directory import NOTE_FILE, SECRET_FILE, kept_secret, new_secret
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ReplicaState,
)
from barnabas.wire.messages.metadata import MetadataRequest
from barnabas.wire.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from tools.attack import hostile
from tools.processes import children
from tools.processes.barnabas import BarnabasBrokers
from tools.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.live]


@pytest.fixture
def brokers() -> Iterator[BarnabasBrokers]:
    cluster = BarnabasBrokers(overrides={"min.insync.replicas": "2"})
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()
        cluster.close()


def admin_of(cluster: BarnabasBrokers) -> Any:
    return AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})


def create(cluster: BarnabasBrokers, topic: str) -> int:
    """The leader of the only partition of a new topic."""
    admin = admin_of(cluster)
    admin.create_topics([NewTopic(topic, 1, 3)])[topic].result(PATIENCE_S)
    cluster.wait_settled(topic)
    leader: int = admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions[0].leader
    return leader


def address_of(cluster: BarnabasBrokers, node_id: int, listener: str) -> str:
    note = json.loads((cluster.log_dir / NOTE_FILE).read_text())
    given = dict(each.split("://") for each in note[str(node_id)]["given"]["listeners"].split(","))
    return str(given[listener])


def test_a_client_is_no_controller(brokers: BarnabasBrokers) -> None:
    controller_id = admin_of(brokers).list_topics(timeout=PATIENCE_S).controller_id
    command = UpdateMetadataRequest(controller_id=controller_id, controller_epoch=2**31 - 1, broker_epoch=-1, type=2)
    for node_id in brokers.node_ids:
        with hostile.connect(address_of(brokers, node_id, "PLAINTEXT")) as client:
            answer = hostile.ask(client, command, 8, UpdateMetadataResponse)
            assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        for request, version in ((command, 8), (MetadataRequest(), 8)):
            with hostile.connect(address_of(brokers, node_id, "BARNABAS_BROKERS")) as client:
                client.sendall(hostile.frame(request, version))
                assert hostile.receive(client) is None, "it was closed"
    assert create(brokers, "letters") in brokers.node_ids
    assert admin_of(brokers).list_topics(timeout=PATIENCE_S).controller_id == controller_id
    assert "refused a command of the controller" not in brokers.log_text()


def test_a_client_is_no_follower(brokers: BarnabasBrokers) -> None:
    """While both followers stand still, nothing is acknowledged that they do not have, whoever says so."""
    leader = create(brokers, "letters")
    followers = [node_id for node_id in brokers.node_ids if node_id != leader]
    address = address_of(brokers, leader, "PLAINTEXT")
    topic_id = hostile.topic_id(address, "letters")

    def fetch_as(replica_id: int, replica_epoch: int) -> ErrorCode:
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=replica_id, replica_epoch=replica_epoch),
            max_wait_ms=0,
            topics=[FetchTopic(topic_id=topic_id, partitions=[FetchPartition(partition=0, fetch_offset=1)])],
        )
        with hostile.connect(address) as client:
            (topic,) = hostile.ask(client, request, 15, FetchResponse).responses
        return ErrorCode.of(topic.partitions[0].error_code)

    for follower in followers:
        children.pause(brokers.broker_pid(follower))
    told: list[Any] = []
    producer = Producer({"bootstrap.servers": address, "acks": "all", "log_level": 0})
    try:
        producer.produce("letters", b"x", on_delivery=lambda *answer: told.append(answer))
        wait_until(lambda: not producer.poll(0) and (brokers.log_dir / f"broker{leader}/letters-0").exists())
        for follower in followers:
            for epoch in (-1, 2**62):
                assert fetch_as(follower, epoch) is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        producer.poll(0)
        assert told == []
    finally:
        for follower in followers:
            os.kill(brokers.broker_pid(follower), signal.SIGCONT)
    producer.flush(PATIENCE_S)
    ((error, message),) = told
    assert (error, message.offset()) == (None, 0)
    brokers.wait_settled("letters")


def test_the_secret_is_in_one_file_readable_by_its_owner_only(brokers: BarnabasBrokers) -> None:
    """And it is given to a broker that a new parent starts beside those that outlived the former one."""
    path = brokers.log_dir / SECRET_FILE
    secret = path.read_text().strip()
    assert len(secret) == 64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    processes = subprocess.run(["ps", "axeww"], check=True, capture_output=True, text=True).stdout
    assert secret not in processes
    assert secret not in brokers.log_text()
    brokers.kill_parent()
    brokers.start()
    pid = brokers.broker_pid(1)
    brokers.kill_broker(1)
    wait_until(lambda: brokers.broker_pid(1) not in (0, pid))
    brokers.wait_settled()
    create(brokers, "letters")
    assert path.read_text().strip() == secret
    assert "does not accept the identity of this broker" not in brokers.log_text()


def test_brokers_with_another_secret_are_started_again(
    brokers: BarnabasBrokers,
) -> None:
    """Nobody can give the old one to a broker that is started beside them."""
    path = brokers.log_dir / SECRET_FILE
    before = {node_id: brokers.broker_pid(node_id) for node_id in brokers.node_ids}
    brokers.kill_parent()
    path.write_text(f"{'5e' * 32}\n")
    brokers.start()
    for node_id, pid in before.items():
        wait_until(lambda node_id=node_id, pid=pid: brokers.broker_pid(node_id) not in (0, pid))
    brokers.wait_settled()
    create(brokers, "letters")
    assert brokers.log_text().count(f"has another secret than {path}") == len(before)


def test_a_secret_that_others_may_know_is_none(tmp_path: Path) -> None:
    path = tmp_path / SECRET_FILE
    assert kept_secret(tmp_path) is None
    secret = new_secret(tmp_path)
    assert kept_secret(tmp_path) == secret
    path.chmod(0o640)
    assert kept_secret(tmp_path) is None
    second = new_secret(tmp_path)
    assert (kept_secret(tmp_path), stat.S_IMODE(path.stat().st_mode)) == (second, 0o600)
    assert second != secret


@pytest.mark.parametrize("content", [b"", b"\xff", b"zz" * 32])
def test_a_damaged_secret_is_none(tmp_path: Path, content: bytes) -> None:
    new_secret(tmp_path)
    (tmp_path / SECRET_FILE).write_bytes(content)
    assert kept_secret(tmp_path) is None
