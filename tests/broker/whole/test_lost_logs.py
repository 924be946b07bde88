"""A broker whose disk is replaced, or that lacks one log, never has others cut what it has lost: neither where it was
the last one in sync nor where all had died at once."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ElectionType, Producer, TopicPartition
from confluent_kafka.admin import AdminClient  # type: ignore[attr-defined]

from barnabas.storage.checkpoints import HIGH_WATERMARK_FILE, LOST_LOGS_FILE
from barnabas.testing import Cluster
from barnabas.testing.brokers.cluster_broker import ClusterBroker
from tools import waiting as limit
from tools.waiting import PATIENCE_S

TOPIC = "kept"
RECORDS = [f"record {number}".encode() for number in range(500)]


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """With a topic; the fixture's parameter is its `min.insync.replicas`, which are two by default."""
    with Cluster(replica_lag_time_max_ms=2000) as running:
        running.create_topic(TOPIC, configs={"min.insync.replicas": getattr(request, "param", 2)})
        write(running)
        running.wait_in_sync()
        yield running


def write(cluster: Cluster) -> None:
    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})
    for value in RECORDS:
        producer.produce(TOPIC, value, partition=0, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(PATIENCE_S) == 0
    assert set(errors) == {None}


def read(cluster: Cluster) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "none"})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[bytes | None] = []
    while len(found) < len(RECORDS):
        batch = consumer.consume(len(RECORDS), timeout=PATIENCE_S)
        assert batch, f"only {len(found)} records are left"
        found += [message.value() for message in batch]
    consumer.close()
    return found


def folder(broker: ClusterBroker) -> Path:
    return broker._cluster.data_dir / str(broker.number)


def lost_file(broker: ClusterBroker) -> Path:
    return folder(broker) / LOST_LOGS_FILE


def wait_forgotten(broker: ClusterBroker) -> None:
    """The file goes, by a thread, a moment after the broker is in sync."""
    limit.wait_until(lambda: not lost_file(broker).exists(), f"{lost_file(broker)} is gone")


def empty(broker: ClusterBroker) -> None:
    shutil.rmtree(folder(broker))


def wait_partition(cluster: Cluster, is_so: Callable[[int, set[int]], bool]) -> None:
    """Wait for a leader and an ISR of which that is true, by the controller's word."""

    def look() -> bool | None:
        controller = cluster._controlling()
        topic = None if controller is None else controller.controller.cluster.topics.get(TOPIC)
        state = None if topic is None else topic.partitions[0]
        return True if state is not None and is_so(state.leader, set(state.isr)) else None

    cluster.call(cluster._until(look, PATIENCE_S, "the partition does not get there"))


def wait_for(cluster: Cluster, leader: int, isr: set[int]) -> None:
    wait_partition(cluster, lambda *found: found == (leader, isr))


def elect_unclean(cluster: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    result = admin.elect_leaders(ElectionType.UNCLEAN, [TopicPartition(TOPIC, 0)]).result(PATIENCE_S)
    assert [error for error in result.values() if error is not None] == []


def stop_all(cluster: Cluster) -> ClusterBroker:
    """One after the other; the last one, which is the only one in sync then: none may lag on a busy machine."""
    for broker in cluster.brokers:
        left = {each.number for each in cluster.brokers[broker.number :]}
        wait_partition(cluster, lambda _, isr, left=left: left <= isr)  # type: ignore[misc]
        broker.stop()
    return cluster.brokers[-1]


def lose(last: ClusterBroker, what: str) -> None:
    if what == "disk":
        empty(last)
    else:
        shutil.rmtree(folder(last) / f"{TOPIC}-0")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["disk", "log"])
def test_the_replica_in_sync_before_replaces_a_lost_last_one(cluster: Cluster, what: str) -> None:
    last = stop_all(cluster)
    lose(last, what)
    for broker in reversed(cluster.brokers):  # the one that lost it governs
        broker.start()
    cluster.wait_in_sync()
    assert cluster.leader(TOPIC, 0) != last.number
    assert read(cluster) == RECORDS
    wait_forgotten(last)


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [1], indirect=True)
@pytest.mark.parametrize("what", ["disk", "log"])
def test_the_last_one_in_sync_does_not_lead_without_its_log(
    cluster: Cluster, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It may have acknowledged records alone: an administrator has to say that others lead."""
    last = stop_all(cluster)
    lose(last, what)
    for broker in reversed(cluster.brokers):  # the one that lost it governs
        broker.start()
    wait_for(cluster, -1, {last.number})
    assert f"`barnabas topics elect {TOPIC}:0 --unclean`" in caplog.text
    last.stop()
    assert lost_file(last).read_text() == f"0\n1\n{TOPIC} 0\n"
    last.start()
    wait_for(cluster, -1, {last.number})
    elect_unclean(cluster)
    cluster.wait_in_sync()
    assert read(cluster) == RECORDS
    wait_forgotten(last)
    cluster.brokers[0].kill()
    cluster.brokers[1].kill()
    wait_for(cluster, last.number, {last.number})
    assert read(cluster) == RECORDS, "it has fetched all"


@pytest.mark.slow
def test_a_minimum_raised_later_does_not_help_a_lone_lost_leader() -> None:
    """The default was raised in the files of all brokers while they were stopped."""
    with Cluster(replica_lag_time_max_ms=2000, min_insync_replicas=1) as cluster:
        cluster.create_topic(TOPIC)
        write(cluster)
        cluster.wait_in_sync()
        last = stop_all(cluster)
        lose(last, "log")
        cluster._configs["min.insync.replicas"] = "2"
        for broker in reversed(cluster.brokers):
            broker.start()
        wait_for(cluster, -1, {last.number})
        elect_unclean(cluster)
        cluster.wait_in_sync()
        assert read(cluster) == RECORDS, "who left last is elected: it has most"


@pytest.mark.slow
def test_after_all_deaths_an_empty_disk_waits_for_the_others(cluster: Cluster) -> None:
    for broker in cluster.brokers:
        broker.kill(heard=False)  # all at once
    replaced = cluster.brokers[0]
    empty(replaced)
    replaced.start()
    wait_partition(cluster, lambda leader, isr: leader == -1 and bool(isr) and replaced.number not in isr)
    for broker in cluster.brokers[1:]:
        broker.start()
    cluster.wait_in_sync()
    assert read(cluster) == RECORDS
    wait_forgotten(replaced)


@pytest.mark.slow
def test_after_all_deaths_a_log_without_segments_does_not_lead(cluster: Cluster) -> None:
    """Its directory is there, and what was written down of the log, as after a kill: an empty log would cut others."""
    robbed = cluster.brokers[0]

    def is_written_down() -> bool | None:
        robbed.server.log_manager.checkpoint(HIGH_WATERMARK_FILE)
        text = (folder(robbed) / HIGH_WATERMARK_FILE).read_text()
        return f"{TOPIC} 0 {len(RECORDS)}\n" in text or None

    cluster.call(cluster._until(is_written_down, PATIENCE_S, "the high watermark is not written down"))
    for broker in cluster.brokers:
        broker.kill(heard=False)  # all at once
    for path in (folder(robbed) / f"{TOPIC}-0").glob("*.log"):
        path.unlink()
    robbed.start()
    wait_partition(cluster, lambda leader, isr: leader == -1 and bool(isr) and robbed.number not in isr)
    for broker in cluster.brokers[1:]:
        broker.start()
    cluster.wait_in_sync()
    assert read(cluster) == RECORDS
    limit.wait_until(lambda: list(folder(robbed).glob(f"{TOPIC}-0.*-stray")), "it was fetched anew")


@pytest.mark.slow
def test_deleting_the_file_gives_the_lost_logs_up(cluster: Cluster) -> None:
    """Where all disks were replaced there is nobody to elect."""
    last = stop_all(cluster)
    for broker in cluster.brokers:
        empty(broker)
    for broker in cluster.brokers:
        broker.start()
    wait_for(cluster, -1, {last.number})
    last.stop()
    lost_file(last).unlink()
    last.start()
    cluster.wait_in_sync()
    write(cluster)
    assert read(cluster) == RECORDS


@pytest.mark.slow
def test_a_lost_log_without_another_replica_begins_anew(caplog: pytest.LogCaptureFixture) -> None:
    with Cluster(1) as cluster:
        (broker,) = cluster.brokers
        cluster.create_topic(TOPIC)
        write(cluster)
        broker.stop()
        empty(broker)
        broker.start()
        cluster.wait_in_sync()
        assert f"{TOPIC}-0 has lost its log, and no other broker has one: it begins empty" in caplog.text
        write(cluster)
        assert read(cluster) == RECORDS
        assert not lost_file(broker).exists()


@pytest.mark.slow
def test_new_brokers_and_topics_have_lost_nothing(cluster: Cluster) -> None:
    assert not any(lost_file(broker).exists() for broker in cluster.brokers)
    assert not any(broker.server.log_manager.lost.may_be_some for broker in cluster.brokers)
