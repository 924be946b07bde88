"""A cluster that is as new again, or has a state of before: on all brokers, on the same addresses."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from barnabas.testing import Cluster
from tools.waiting import PATIENCE_S

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Where producers that live on bring no topic back, as they ask for theirs a second or two after a reset."""
    with Cluster(group_initial_rebalance_delay_ms=0, auto_create_topics_enable=False) as running:
        yield running


@pytest.fixture(autouse=True)
def as_new(cluster: Cluster) -> Iterator[None]:
    yield
    cluster.reset()


def read(cluster: Cluster, topic: str, count: int) -> None:
    """As group g, which commits."""
    config = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
    consumer = Consumer(config)
    consumer.subscribe([topic])
    found = 0
    while found < count:
        message = consumer.poll(0.1)
        found += message is not None and message.error() is None
    consumer.close()


def test_reset_leaves_nothing(cluster: Cluster) -> None:
    now_ms = cluster.clock.now_ms()
    addresses, cluster_id = cluster.bootstrap_servers, cluster.brokers[0].server.cluster_id
    producer = Producer({"bootstrap.servers": addresses, "reconnect.backoff.ms": 1, "reconnect.backoff.max.ms": 10})
    for _ in range(2):
        topic = cluster.create_topic("t", partitions=3)
        for number in range(3):
            producer.produce("t", "1", partition=number)
        assert producer.flush(PATIENCE_S) == 0
        read(cluster, "t", 3)
        cluster.faults.drop("Produce")
        cluster.cut(0, 1)
        cluster.brokers[2].kill()
        cluster.clock.advance(timedelta(days=1))
        cluster.reset()

        assert cluster.topic_names() == []
        assert cluster.group("g").state == "Dead"
        assert len(cluster.faults) == 0
        assert cluster.clock.now_ms() < now_ms + 3_600_000
        assert all(broker.is_running for broker in cluster.brokers)
        assert (cluster.bootstrap_servers, cluster.controller() in range(3)) == (addresses, True)
        assert cluster.brokers[0].server.cluster_id == cluster_id
    topic = cluster.create_topic("t")
    cluster.wait_in_sync(10)  # nobody is cut off
    assert topic.produce("1").offset == 0


def test_a_state_comes_back_as_often_as_wanted(cluster: Cluster) -> None:
    topic = cluster.create_topic("t", partitions=3, configs={"retention.ms": -1})
    for number in range(30):
        topic.produce(str(number), key=str(number))
    read(cluster, "t", 30)
    records, group = topic.records(), cluster.group("g")
    with_large_log = cluster.create_topic("large")
    for _ in range(4):
        with_large_log.produce(b"v" * 200_000)
    cluster.clock.advance(timedelta(hours=1))
    moved_ms = cluster.clock.now_ms()
    snapshot = cluster.snapshot()
    assert topic.records() == records
    for _ in range(2):
        cluster.topic("t").produce("more")
        cluster.topic("large").produce("more")
        cluster.delete_topic("t")
        cluster.create_topic("u")
        cluster.clock.advance(timedelta(hours=1))
        cluster.brokers[0].kill()
        cluster.restore(snapshot)
        assert cluster.topic_names() == ["large", "t"]
        assert cluster.topic("t").records() == records
        assert len(cluster.topic("large").records()) == 4
        assert cluster.group("g").offsets == group.offsets
        assert moved_ms <= cluster.clock.now_ms() < moved_ms + 3_600_000
        assert {cluster.leader("t", index) for index in range(3)} == {0, 1, 2}
        cluster.wait_in_sync()
    read(cluster, "large", 4)


def test_nothing_is_amiss_in_the_log(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.create_topic("t", partitions=3).produce("1")
    with caplog.at_level("WARNING"):
        snapshot = cluster.snapshot()
        cluster.restore(snapshot)
        cluster.reset()
    assert [record.getMessage() for record in caplog.records] == []


def test_an_open_transaction_is_part_of_a_state(cluster: Cluster) -> None:
    topic = cluster.create_topic("t")
    config = {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": "x", "reconnect.backoff.ms": 1}
    producer = Producer(config | {"reconnect.backoff.max.ms": 10})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce("t", "1")
    producer.flush(PATIENCE_S)
    snapshot = cluster.snapshot()
    assert topic.records() == []
    producer.commit_transaction(PATIENCE_S)
    assert len(topic.wait_records(1)) == 1
    cluster.restore(snapshot)
    assert cluster.topic("t").records() == []
    cluster.faults.abort_transaction("x")
    cluster.topic("t").produce("2")
    assert [record.value for record in cluster.topic("t").wait_records(1)] == [b"2"]


def test_snapshots_are_of_whole_clusters_and_of_this_one(cluster: Cluster) -> None:
    snapshot = cluster.snapshot()
    cluster.brokers[1].stop()
    with pytest.raises(RuntimeError, match="needs all brokers to run"):
        cluster.snapshot()
    snapshot.remove()
    with pytest.raises(ValueError, match="belongs to another cluster"):
        cluster.restore(snapshot)


def test_snapshots_go_with_their_cluster() -> None:
    with Cluster(2) as cluster:
        snapshot, data_dir = cluster.snapshot(), cluster.data_dir
        assert snapshot._directory.exists()
    assert not snapshot._directory.exists()
    assert not data_dir.exists()


@pytest.mark.parametrize(
    ("exchange", "told"),
    [
        (lambda cluster: cluster.reset(), "was reset"),
        (lambda cluster: cluster.snapshot(), "was started anew for a snapshot"),
        (lambda cluster: cluster.restart(), "was restarted"),
    ],
    ids=["reset", "snapshot", "restart"],
)
def test_a_call_that_is_under_way_ends(cluster: Cluster, exchange: Callable[[Cluster], Any], told: str) -> None:
    """Its answer would be that of brokers which have ended; who only looks for a leader looks at the next ones."""
    begun = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        asking = pool.submit(cluster.call, forever(begun))
        begun.wait()
        leading = pool.submit(cluster.leader, "later")
        exchange(cluster)
        with pytest.raises(RuntimeError, match=f"^the cluster {told} meanwhile$"):
            asking.result(PATIENCE_S)
        cluster.create_topic("later")
        assert leading.result(PATIENCE_S) in range(3)


async def forever(begun: threading.Event) -> None:
    begun.set()
    await asyncio.Event().wait()


@pytest.mark.parametrize("is_awaited", [False, True])
def test_a_call_ends_with_its_cluster(is_awaited: bool) -> None:
    begun = threading.Event()
    with Cluster(1) as cluster, ThreadPoolExecutor(1) as pool:
        ask = (
            (lambda: asyncio.run(cluster.call_async(forever(begun))))
            if is_awaited
            else (lambda: cluster.call(forever(begun)))
        )
        asking = pool.submit(ask)
        begun.wait()
        cluster.stop()
        with pytest.raises(RuntimeError, match=r"^the cluster stopped meanwhile$"):
            asking.result(PATIENCE_S)
