"""A broker without descriptors for its flushes: what waits for one is refused, not lost, and works again later."""

import contextlib
import errno
import resource
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from barnabas.storage.descriptors import descriptor_reserve
from barnabas.testing import Broker
from tests.support.files import RuledFiles
from tools.processes.barnabas import BarnabasProcess
from tools.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.live]  # each refusal takes a second: so long a descriptor is waited for
FLUSHED = [{"barnabas.flush.before.ack": "true"}, {"log.flush.interval.messages": "1"}]


def idempotent_producer(bootstrap_servers: str) -> Producer:
    return Producer(
        {"bootstrap.servers": bootstrap_servers, "enable.idempotence": True, "linger.ms": 0, "log_level": 0,
         "reconnect.backoff.max.ms": 100, "retry.backoff.max.ms": 200}
    )  # fmt: skip


def produce(producer: Producer, value: bytes, refused: list[Any]) -> None:
    producer.produce("t", value, partition=0, on_delivery=lambda error, _: refused.append(error) if error else None)


def refuse(files: RuledFiles, partition: str) -> None:
    """There are no descriptors left for the files of a partition."""
    files.refuse("open", errno.EMFILE, lambda path: f"/{partition}/" in path)


@pytest.fixture
def left() -> RuledFiles:
    return RuledFiles()


@pytest.mark.parametrize("settings", FLUSHED, ids=["before the acknowledgement", "after each record"])
def test_a_flush_that_finds_no_descriptor_is_made_later(settings: dict[str, str], left: RuledFiles) -> None:
    refused: list[Any] = []
    with Broker(files=left, configs=settings) as broker:
        broker.create_topic("t")
        producer = idempotent_producer(broker.bootstrap_servers)
        produce(producer, b"0", refused)
        assert producer.flush(PATIENCE_S) == 0
        refuse(left, "t-0")
        produce(producer, b"1", refused)
        wait_until(lambda: len(left.refused) > 200, "no second flush")  # each looks for a descriptor a hundred times
        assert producer.flush(0) == 1
        left.heal()
        assert producer.flush(PATIENCE_S) == 0
        assert not refused
        assert [record.value for record in broker.topic("t").records()] == [b"0", b"1"]
        assert broker.is_running


def test_a_batch_that_failed_without_a_retry_is_committed_later(left: RuledFiles) -> None:
    """Its producer was told that it failed, which says nothing of whether it stays."""
    refused: list[Any] = []
    with Broker(files=left, configs=FLUSHED[0]) as broker:
        broker.create_topic("t")
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "retries": 0, "linger.ms": 0})
        produce(producer, b"0", refused)
        assert producer.flush(PATIENCE_S) == 0
        refuse(left, "t-0")
        produce(producer, b"1", refused)
        assert producer.flush(PATIENCE_S) == 0
        assert [error.name() for error in refused] == ["KAFKA_STORAGE_ERROR"]
        assert len(broker.topic("t").records()) == 1
        left.heal()
        wait_until(lambda: len(broker.topic("t").records()) == 2, "not committed")


@pytest.mark.parametrize("is_commit", [True, False], ids=["commit", "abort"])
def test_a_transaction_whose_end_is_flushed_late_ends(left: RuledFiles, is_commit: bool) -> None:
    with Broker(files=left, configs=FLUSHED[0] | {"transaction.state.log.num.partitions": "1"}) as broker:
        broker.create_topic("t")
        log = broker.server.log_manager.get("t", 0)  # type: ignore[union-attr]
        config = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "x", "log_level": 0}
        producer = Producer(config)
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        producer.produce("t", b"0", partition=0)
        assert producer.flush(PATIENCE_S) == 0
        ended: list[None] = []
        end = producer.commit_transaction if is_commit else producer.abort_transaction
        refuse(left, "__transaction_state-0")
        ending = threading.Thread(target=lambda: ended.append(end(60)))
        ending.start()
        wait_until(lambda: len(left.refused) > 100, "no second flush")
        assert (log.last_stable_offset, log.log_end_offset) == (0, 1), "its markers were written before its end is safe"
        left.heal()
        ending.join(PATIENCE_S)
        assert ended, "the producer was told of an error"
        wait_until(lambda: log.last_stable_offset == 2, "no marker")
        Producer(config).init_transactions(PATIENCE_S)


def test_a_transaction_whose_beginning_is_flushed_late_times_out(left: RuledFiles) -> None:
    settings = FLUSHED[0] | {
        "transaction.state.log.num.partitions": "1",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
    }
    with Broker(files=left, configs=settings) as broker:
        broker.create_topic("t")
        log = broker.server.log_manager.get("t", 0)  # type: ignore[union-attr]
        producer = Producer(
            {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "x", "transaction.timeout.ms": 5_000,
             "log_level": 0}
        )  # fmt: skip
        producer.init_transactions(PATIENCE_S)
        refuse(left, "__transaction_state-0")
        producer.begin_transaction()
        producer.produce("t", b"0", partition=0)
        wait_until(lambda: len(left.refused) > 100, "no second flush")
        left.heal()
        wait_until(lambda: log.log_end_offset > 0, "the record is not written")
        wait_until(lambda: log.last_stable_offset == 2, "not aborted")


def test_a_late_flush_of_committed_offsets_is_acknowledged(left: RuledFiles) -> None:
    settings = FLUSHED[0] | {"offsets.topic.num.partitions": "1", "offsets.commit.timeout.ms": "60000"}
    with Broker(files=left, configs=settings) as broker:
        broker.create_topic("t")
        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "log_level": 0})
        place = TopicPartition("t", 0)
        place.offset = 5
        consumer.commit(offsets=[place], asynchronous=False)
        log = broker.server.log_manager.get("__consumer_offsets", 0)  # type: ignore[union-attr]
        end_offset = log.log_end_offset
        refuse(left, "__consumer_offsets-0")
        place.offset = 7
        committing = threading.Thread(target=lambda: consumer.commit(offsets=[place], asynchronous=False))
        committing.start()
        wait_until(lambda: len(left.refused) > 100, "no second flush")
        assert log.high_watermark == end_offset
        left.heal()
        committing.join(PATIENCE_S)
        assert log.high_watermark == log.log_end_offset == end_offset + 1, "it was sent again"
        (found,) = consumer.committed([place], timeout=PATIENCE_S)
        assert found.offset == 7
        consumer.close()


def descriptors(pid: int) -> list[int]:
    return [int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()]


def test_idle_connections_leave_descriptors_to_log_and_store() -> None:
    """Earlier clients continue to write, and to create topics, when strangers want all descriptors."""
    refused: list[Any] = []
    with contextlib.ExitStack() as stack:
        http_port = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
        stack.pop_all().close()
        process = stack.enter_context(BarnabasProcess(FLUSHED[0] | {"barnabas.http.address": f"127.0.0.1:{http_port}"}))
        admin = AdminClient({"bootstrap.servers": process.bootstrap_servers})
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(PATIENCE_S)
        producer = idempotent_producer(process.bootstrap_servers)
        produce(producer, b"0", refused)
        assert producer.flush(PATIENCE_S) == 0
        limit = max(descriptors(process.pid)) + 60
        _, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (limit, hard))
        host, port = process.bootstrap_servers.split(":")
        for target in [http_port] * limit + [int(port)] * limit:
            stranger = stack.enter_context(socket.create_connection((host, target), timeout=PATIENCE_S))
            if target == http_port:
                stranger.send(b"GET /metrics HTTP/1.1\r\n")
        wait_until(lambda: "remaining descriptors are reserved for files" in process.log_text(), "nobody is refused")
        for number in range(3):
            produce(producer, b"1", refused)
            assert producer.flush(PATIENCE_S) == 0
            admin.create_topics([NewTopic(f"t-{number}", 1, 1)])[f"t-{number}"].result(PATIENCE_S)
        assert len(descriptors(process.pid)) < limit - descriptor_reserve(limit) // 2
        assert not refused
        assert "failed" not in process.log_text()


def test_a_topic_created_without_descriptors_is_served_later(left: RuledFiles) -> None:
    """Its client waits so long, and no longer than it likes."""
    with Broker(files=left) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        refuse(left, "t-0")
        waiting = admin.create_topics([NewTopic("t", 1, 1)], operation_timeout=30)["t"]
        refuse(left, "u-0")
        impatient = admin.create_topics([NewTopic("u", 1, 1)], operation_timeout=1)["u"]
        with pytest.raises(KafkaException, match="REQUEST_TIMED_OUT"):
            impatient.result(PATIENCE_S)
        waiting.result(PATIENCE_S)  # since its partition's files can be opened, by now
        left.heal()
        refused: list[Any] = []
        producer = idempotent_producer(broker.bootstrap_servers)
        for topic in ("t", "u"):
            producer.produce(topic, b"0", partition=0, on_delivery=lambda error, _: refused.append(error))
        assert producer.flush(PATIENCE_S) == 0
        assert refused == [None, None]
        for topic in ("t", "u"):
            assert len(broker.topic(topic).records()) == 1


def test_groups_find_their_coordinator_once_descriptors_are_free(left: RuledFiles) -> None:
    with Broker(files=left, configs={"offsets.topic.num.partitions": "4"}) as broker:
        broker.create_topic("t")
        refuse(left, "__consumer_offsets-2")
        committed: list[str] = []

        def commit(group: str) -> None:
            consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group, "log_level": 0})
            place = TopicPartition("t", 0)
            place.offset = 5
            deadline = time.monotonic() + PATIENCE_S
            while time.monotonic() < deadline:
                with contextlib.suppress(KafkaException):
                    consumer.commit(offsets=[place], asynchronous=False)
                    committed.append(group)
                    break
            consumer.close()

        groups = [f"g{number}" for number in range(8)]
        threads = [threading.Thread(target=commit, args=[group]) for group in groups]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(left.refused) > 1, "nobody asked again")
        left.heal()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert sorted(committed) == groups


def test_a_log_without_descriptors_at_the_start_is_opened_later(left: RuledFiles) -> None:
    with Broker(files=left) as broker:
        broker.create_topic("t")
        refused: list[Any] = []
        producer = idempotent_producer(broker.bootstrap_servers)
        produce(producer, b"0", refused)
        assert producer.flush(PATIENCE_S) == 0
        broker.kill()
        refuse(left, "t-0")
        broker.start()
        produce(producer, b"1", refused)
        wait_until(lambda: len(left.refused) > 1, "nobody tried again")
        left.heal()
        assert producer.flush(PATIENCE_S) == 0
        assert not refused
        assert [record.value for record in broker.topic("t").records()] == [b"0", b"1"]
