"""Three brokers in one test, as users have them: real clients, and brokers that stop, die, lose their session and are
cut off from each other."""

import time
import warnings
from collections.abc import Coroutine, Iterator
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer

from barnabas.clock import ManualClock
from barnabas.testing import ApiError, Broker, Cluster, ErrorCode
from barnabas.testing.brokers.cluster_broker import ClusterBroker
from tools.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

TOPIC = "events"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        running.create_topic(TOPIC, 3)
        yield running


def idempotent_producer(cluster: Cluster) -> Producer:
    return Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "enable.idempotence": True,
            "message.timeout.ms": round(PATIENCE_S * 1000),
        }
    )


def write(
    cluster: Cluster, topic: str, values: list[str], partition: int = 0, producer: Producer | None = None
) -> None:
    """Produces with acks=all and idempotence, whatever becomes of the brokers meanwhile."""
    producer = producer or idempotent_producer(cluster)
    errors = []
    for value in values:
        producer.produce(topic, value, partition=partition, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(PATIENCE_S) == 0
    assert [error for error in errors if error is not None] == []


def read(cluster: Cluster, topic: str, count: int) -> list[str]:
    """The first records of all partitions, sorted."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": f"readers of {topic} {time.monotonic()}",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    found: list[str] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            found.append((message.value() or b"").decode())
    consumer.close()
    return sorted(found)


def test_clients_use_it_as_any_cluster(cluster: Cluster) -> None:
    cluster.create_topic("plain", 3)
    assert sorted(cluster.leader("plain", partition) for partition in range(3)) == [0, 1, 2]
    for partition in range(3):
        write(cluster, "plain", [f"{partition}-{number}" for number in range(100)], partition)
    assert read(cluster, "plain", 300) == sorted(f"{p}-{n}" for p in range(3) for n in range(100))


def test_a_killed_leader_is_replaced_without_a_loss(cluster: Cluster) -> None:
    cluster.create_topic("killed")
    write(cluster, "killed", ["before"])
    leader = cluster.leader("killed")
    cluster.brokers[leader].kill()
    assert not cluster.brokers[leader].is_running
    assert cluster.leader("killed") != leader
    write(cluster, "killed", ["after"])
    address = cluster.brokers[leader].bootstrap_servers
    cluster.brokers[leader].start()
    assert cluster.brokers[leader].bootstrap_servers == address
    cluster.wait_in_sync()
    assert read(cluster, "killed", 2) == ["after", "before"]


def test_a_broker_that_stops_hands_over_what_it_leads(cluster: Cluster) -> None:
    cluster.create_topic("stopped")
    leader = cluster.leader("stopped")
    cluster.brokers[leader].stop()
    cluster.brokers[leader].stop()
    assert cluster.leader("stopped") != leader
    write(cluster, "stopped", ["v"])
    cluster.brokers[leader].start()
    with pytest.raises(RuntimeError, match=f"broker {leader} runs already"):
        cluster.brokers[leader].start()


def test_a_broker_whose_session_expires_joins_again(cluster: Cluster) -> None:
    cluster.create_topic("expired")
    leader = cluster.leader("expired")
    cluster.expire_session(leader)
    assert cluster.leader("expired") != leader
    write(cluster, "expired", ["v"])
    assert read(cluster, "expired", 1) == ["v"]


def test_a_controller_with_an_expired_session_leads_nothing(cluster: Cluster) -> None:
    cluster.create_topic("of-each", partitions=3)
    former = cluster.controller()
    assert former in {cluster.leader("of-each", index) for index in range(3)}
    cluster.expire_session(former)
    assert cluster.controller() != former
    assert former not in {cluster.leader("of-each", index) for index in range(3)}


def test_a_lone_broker_has_no_session() -> None:
    with Broker() as broker, pytest.raises(RuntimeError, match=r"a lone broker has no session .*Cluster\(1\)"):
        broker.expire_session(0)
    with Cluster(1) as alone:
        topic = alone.create_topic("t")
        topic.produce("before")
        alone.expire_session(0)
        assert alone.controller() == alone.leader("t") == 0
        assert topic.produce("after").offset == 1


class KilledMeanwhile(Cluster):
    """Broker 1 is killed when something is about to be done to it."""

    def call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        if self.brokers[1].is_running:
            self.brokers[1].kill()
        return super().call(coroutine)


def test_a_broker_that_is_killed_meanwhile_is_not_waited_for() -> None:
    with KilledMeanwhile() as cluster, pytest.raises(RuntimeError, match="broker 1 ended before it registered again"):
        cluster.expire_session(1)


def test_a_broker_cut_off_from_the_controller_does_not_start() -> None:
    """It is told nothing, so that it serves nobody; whoever has it start is told why."""
    with Cluster() as cluster:
        cluster.create_topic("t")
        controller = cluster.controller()
        started = cluster.brokers[(controller + 1) % 3]
        started.kill()
        with cluster.cut(controller, started.number):
            told = rf"broker {started.number} is not started: .*<cut {controller} <-> {started.number}, .*waited 0\.2 s"
            with pytest.raises(TimeoutError, match=told):
                started.start(timeout=0.2)
            assert not started.is_running
        started.start()
        with pytest.raises(TypeError, match="timeout is a number of seconds, not '3'"):
            started.start("3")  # type: ignore[arg-type]


def test_a_follower_that_is_cut_off_leaves_the_isr(cluster: Cluster) -> None:
    cluster.create_topic("cut", configs={"min.insync.replicas": 2})
    cluster.clock.advance(timedelta(hours=1))  # by which nobody has fetched later
    leader = cluster.leader("cut")
    # The controller stores the ISR: a leader that does not reach it can let nobody go.
    (controller,) = (number for number, broker in enumerate(cluster.brokers) if broker.server.controller.is_active)
    follower = min({0, 1, 2} - {leader, controller})
    # The producer gets its id beforehand. Where the leader is the controller, a follower that is cut off from it has no
    # producer ids to give (KIP-730), and librdkafka may go on asking that follower.
    producer = idempotent_producer(cluster)
    write(cluster, "cut", ["before"], producer=producer)
    with cluster.cut(leader, follower):
        write(cluster, "cut", ["meanwhile"], producer=producer)
        asked = cluster.brokers[leader].server.replicas.partition_or_error("cut", 0)
        assert asked.leadership is not None
        assert follower not in asked.leadership.followers.isr, (
            "acknowledged before the follower had left the ISR, or had the record"
        )
        with pytest.raises(TimeoutError, match=r"^not in sync after 0\.1 s: \S+-\d at broker \d: leader \d, ISR \["):
            cluster.wait_in_sync(0.1)
    cluster.wait_in_sync()


def test_time_is_that_of_all_brokers(cluster: Cluster) -> None:
    before = cluster.clock.now_ms()
    cluster.clock.advance(3_600_000)
    for broker in cluster.brokers:
        assert broker.server.clock.now_ms() - before >= 3_600_000


def test_moved_time_makes_no_follower_lag() -> None:
    """Brokers wait for each other in real time: a follower that is about to fetch is in sync, whatever time it is."""
    with Cluster(3, replica_lag_time_max_ms=30_000) as cluster:
        topic = cluster.create_topic("t")
        leader = cluster.leader("t")
        leaderships = cluster.brokers[leader].server.replicas.leaderships
        assert leaderships is not None
        with cluster.cut(leader, (leader + 1) % 3), cluster.cut(leader, (leader + 2) % 3):
            producer = Producer({"bootstrap.servers": cluster.brokers[leader].bootstrap_servers, "acks": 1})
            producer.produce("t", "v")
            assert producer.flush(PATIENCE_S) == 0
            for _ in range(3):
                cluster.clock.advance(timedelta(hours=1))
        [record] = topic.wait_records(1)  # as soon as the others have it
        assert record.value == b"v"
        assert (leaderships.isr_shrinks, leaderships.failed_isr_updates) == (0, 0)


def test_errors_say_what_is_wrong(cluster: Cluster) -> None:
    with pytest.raises(ApiError) as caught:
        cluster.create_topic(TOPIC)
    assert caught.value.error is ErrorCode.TOPIC_ALREADY_EXISTS
    with pytest.raises(ApiError) as caught:
        cluster.create_topic("large", replication_factor=4)
    assert caught.value.error is ErrorCode.INVALID_REPLICATION_FACTOR
    with pytest.raises(TimeoutError, match=r"no broker leads nobody-0 \(waited 0\.1 s\)"):
        cluster.leader("nobody", timeout=0.1)
    for use in (
        lambda: cluster.expire_session(7),
        lambda: cluster.faults.pause(broker=7),
        lambda: cluster.faults.fail("Produce", 6, broker={0, 7}),
        lambda: cluster.faults.disk_full(broker=7),
    ):
        with pytest.raises(ValueError, match="this cluster has the brokers 0 to 2, not 7"):
            use()
    assert list(cluster.faults) == []
    with pytest.raises(IndexError, match="this cluster has the brokers 0 to 2, not 3"):
        _ = cluster.brokers[3]
    assert cluster.brokers[-1].number == 2
    assert [broker.number for broker in cluster.brokers[1:]] == [1, 2]
    with pytest.raises(ValueError, match="brokers is 1 or more, not 0"):
        Cluster(0)
    with pytest.raises(TypeError, match="brokers is a whole number, not 'x'"):
        Cluster("x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="racks has 2 entries for 3 brokers"):
        Cluster(racks=("a", "b"))
    with pytest.raises(RuntimeError, match="this cluster runs already"):
        cluster.start()


def test_a_cluster_that_does_not_run_says_so() -> None:
    assert repr(Cluster().brokers[1]) == "<ClusterBroker 1 not running>"
    with Cluster(1) as alone:
        address = alone.bootstrap_servers
        alone.brokers[0].kill()
        with pytest.raises(RuntimeError, match=r"broker 0 does not run: start\(\) it"):
            alone.brokers[0].kill()
        with pytest.raises(RuntimeError, match=r"no broker of this cluster runs: start\(\) one of its brokers"):
            alone.bootstrap_servers  # noqa: B018 - it raises
        assert (repr(alone), alone.brokers[0].bootstrap_servers) == ("<Cluster not running>", address)


def test_a_cluster_leaves_nothing_and_can_be_started_again() -> None:
    cluster = Cluster(2)
    for _ in range(2):
        with cluster:
            cluster.create_topic("again")
            assert {type(broker) for broker in cluster.brokers} == {ClusterBroker}
            data_dir = cluster.data_dir
            assert sorted(path.name for path in data_dir.iterdir()) == ["0", "1"]
        assert not data_dir.exists()


def test_misspelt_keywords_are_named() -> None:
    with pytest.warns(UserWarning, match=r"log\.retention\.milliseconds"), Cluster(1, log_retention_milliseconds=5):
        pass


def test_too_few_brokers_refuse_and_say_so(kafka_cluster: Cluster) -> None:
    """With the fixture, which is this test's own."""
    kafka_cluster.create_topic("few", configs={"min.insync.replicas": 3})
    kafka_cluster.brokers[(kafka_cluster.leader("few") + 1) % 3].kill()
    producer = Producer({"bootstrap.servers": kafka_cluster.bootstrap_servers, "message.timeout.ms": 1_500})
    outcome: list[KafkaError | None] = []
    producer.produce("few", "v", on_delivery=lambda error, _: outcome.append(error))
    producer.flush(PATIENCE_S)
    (error,) = outcome
    assert error is not None, "acknowledged by two"


def test_only_misspelt_keywords_are_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Cluster(2, default_replication_factor=2, min_insync_replicas=2) as two:
            two.create_topic("t")
    with pytest.warns(UserWarning, match="min.insync.replica "), Cluster(1, min_insync_replica=2):
        pass


@pytest.mark.parametrize("order", [(2, 1, 0), (0, 2, 1), (1, 0, 2)])
def test_a_cluster_whose_time_stands_still_stops(order: tuple[int, ...]) -> None:
    """A broker that stops asks the controller for its leave, and for a while there is none."""
    for _ in range(4):  # there is not, or not known, each time
        with Cluster(clock=ManualClock()) as cluster:
            cluster.create_topic("t", partitions=3)
            for number in order:
                cluster.brokers[number].stop()
