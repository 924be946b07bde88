"""A broker whose disk is replaced, or that lacks one log, never has others cut what it has lost: neither where it was
the last one in sync nor where all had died at once."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ElectionType, Producer, TopicPartition
from confluent_kafka.admin import AdminClient  # type: ignore[attr-defined]

from barnabas.storage.checkpoints import HIGH_WATERMARK_FILE, LOST_LOGS_FILE
from barnabas.testing import Cluster
from barnabas.testing.cluster_broker import ClusterBroker
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


def leader_and_isr(cluster: Cluster) -> tuple[int, set[int]]:
    """Those of the topic's partition, by the controller's word."""

    async def find() -> tuple[int, set[int]]:
        controller = cluster.controlling()
        assert controller is not None
        state = controller.controller.cluster.topics[TOPIC].partitions[0]
        return state.leader, set(state.isr)

    return cluster.call(find())


def elect_unclean(cluster: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    result = admin.elect_leaders(ElectionType.UNCLEAN, [TopicPartition(TOPIC, 0)]).result(PATIENCE_S)
    assert [error for error in result.values() if error is not None] == []


def stop_all(cluster: Cluster) -> ClusterBroker:
    """One after the other; the last one, which is the only one in sync then."""
    for broker in cluster.brokers:
        broker.stop()
    return cluster.brokers[-1]


def lose(last: ClusterBroker, what: str) -> None:
    if what == "disk":
        empty(last)
    else:
        shutil.rmtree(folder(last) / f"{TOPIC}-0")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["disk", "log"])
def test_who_was_in_sync_before_leads_for_the_last_one_that_has_lost_its_log(cluster: Cluster, what: str) -> None:
    last = stop_all(cluster)
    lose(last, what)
    for broker in reversed(cluster.brokers):  # the one that lost it governs
        broker.start()
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
    assert leader_and_isr(cluster) == (-1, {last.number})
    assert f"`barnabas topics elect {TOPIC}:0 --unclean`" in caplog.text
    last.stop()
    assert lost_file(last).read_text() == f"0\n1\n{TOPIC} 0\n"
    last.start()
    assert leader_and_isr(cluster) == (-1, {last.number})
    elect_unclean(cluster)
    cluster.wait_heard()
    assert read(cluster) == RECORDS
    wait_forgotten(last)
    cluster.brokers[0].kill()
    cluster.brokers[1].kill()
    assert leader_and_isr(cluster) == (last.number, {last.number})
    assert read(cluster) == RECORDS, "it has fetched all"


@pytest.mark.slow
def test_that_two_have_to_be_in_sync_by_now_does_not_help_who_lost_what_it_acknowledged_alone() -> None:
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
        assert leader_and_isr(cluster) == (-1, {last.number})
        elect_unclean(cluster)
        cluster.wait_in_sync()
        assert read(cluster) == RECORDS, "who left last is elected: it has most"


@pytest.mark.slow
def test_where_all_have_died_the_one_with_an_empty_disk_waits_for_the_others(cluster: Cluster) -> None:
    for broker in cluster.brokers:
        broker.kill(heard=False)  # all at once
    replaced = cluster.brokers[0]
    empty(replaced)
    replaced.start()
    leader, isr = leader_and_isr(cluster)
    assert (leader, bool(isr), replaced.number in isr) == (-1, True, False)
    for broker in cluster.brokers[1:]:
        broker.start()
    assert read(cluster) == RECORDS
    wait_forgotten(replaced)


@pytest.mark.slow
def test_where_all_have_died_the_one_without_segments_does_not_lead(cluster: Cluster) -> None:
    """Its directory is there, and what was written down of the log, as after a kill: an empty log would cut others."""
    robbed = cluster.brokers[0]

    def is_written_down() -> bool | None:
        robbed.server.log_manager.checkpoint_high_watermarks()
        text = (folder(robbed) / HIGH_WATERMARK_FILE).read_text()
        return f"{TOPIC} 0 {len(RECORDS)}\n" in text or None

    cluster.call(cluster._until(is_written_down, PATIENCE_S, "the high watermark is not written down"))
    for broker in cluster.brokers:
        broker.kill(heard=False)  # all at once
    for path in (folder(robbed) / f"{TOPIC}-0").glob("*.log"):
        path.unlink()
    robbed.start()
    leader, isr = leader_and_isr(cluster)
    assert (leader, bool(isr), robbed.number in isr) == (-1, True, False)
    for broker in cluster.brokers[1:]:
        broker.start()
    assert read(cluster) == RECORDS
    limit.wait_until(lambda: list(folder(robbed).glob(f"{TOPIC}-0.*-stray")), "it was fetched anew")


@pytest.mark.slow
def test_who_deletes_the_file_gives_the_logs_up(cluster: Cluster) -> None:
    """Where all disks were replaced there is nobody to elect."""
    last = stop_all(cluster)
    for broker in cluster.brokers:
        empty(broker)
    for broker in cluster.brokers:
        broker.start()
    assert leader_and_isr(cluster) == (-1, {last.number})
    last.stop()
    lost_file(last).unlink()
    last.start()
    write(cluster)
    assert read(cluster) == RECORDS


@pytest.mark.slow
def test_what_nobody_else_has_begins_anew(caplog: pytest.LogCaptureFixture) -> None:
    with Cluster(1) as cluster:
        (broker,) = cluster.brokers
        cluster.create_topic(TOPIC)
        write(cluster)
        broker.stop()
        empty(broker)
        broker.start()
        assert f"{TOPIC}-0 is not new, has no log, and nobody else has one: it begins empty" in caplog.text
        write(cluster)
        assert read(cluster) == RECORDS
        assert not lost_file(broker).exists()


@pytest.mark.slow
def test_new_brokers_and_topics_have_lost_nothing(cluster: Cluster) -> None:
    assert not any(lost_file(broker).exists() for broker in cluster.brokers)
    assert not any(broker.server.log_manager.may_lack_logs for broker in cluster.brokers)
