"""Leaders that move, partitions that are offline, brokers that stand still, slow and failed disks, links that are cut
one way, records that age: as clients meet them."""

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.clock import ManualClock
from barnabas.testing import ApiError, Broker, Cluster, ErrorCode, RecordedRequest
from barnabas.testing.contents.requests import ask
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tools.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

Owner = Broker | Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(group_initial_rebalance_delay_ms=0) as running:
        yield running


@pytest.fixture
def owner(request: pytest.FixtureRequest, broker: Broker, cluster: Cluster) -> Owner:
    return broker if request.param == "broker" else cluster


@pytest.fixture(autouse=True)
def as_before(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "cluster" in request.fixturenames:
        cluster: Cluster = request.getfixturevalue("cluster")
        cluster.faults.clear()
        for name in cluster.topic_names():
            cluster.delete_topic(name)


both = pytest.mark.parametrize("owner", ["broker", "cluster"], indirect=True)


def producer_of(owner: Owner, **config: Any) -> Producer:
    quick = {"linger.ms": 0, "retry.backoff.ms": 10, "topic.metadata.refresh.fast.interval.ms": 20}
    return Producer({"bootstrap.servers": owner.bootstrap_servers} | quick | config)


def values(owner: Owner, topic: str) -> list[bytes | None]:
    return [record.value for record in owner.topic(topic).records()]


# --- leaders --------------------------------------------------------------------------------------


def test_a_leader_moves_and_its_producer_follows(cluster: Cluster) -> None:
    cluster.create_topic("t")
    producer = producer_of(cluster)
    producer.produce("t", "before")
    assert producer.flush(PATIENCE_S) == 0
    former = cluster.leader("t")
    with cluster.recorded() as seen:
        assert cluster.faults.move_leader("t") == cluster.leader("t") != former
        producer.produce("t", "after")
        assert producer.flush(PATIENCE_S) == 0
        assert {asked.request.broker for asked in seen.requests("Produce") if asked.outcome == "ok"} == {
            cluster.leader("t")
        }
    assert values(cluster, "t") == [b"before", b"after"]
    assert cluster.faults.move_leader("t", to=former) == cluster.leader("t") == former


@both
def test_a_replica_that_cannot_lead_is_not_elected(owner: Owner) -> None:
    owner.create_topic("t")
    with pytest.raises(ApiError, match="broker 7 cannot lead it") as refused:
        owner.faults.move_leader("t", to=7)
    assert refused.value.error is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    with pytest.raises(ApiError, match="there is no partition t-1"):
        owner.faults.move_leader("t", 1)
    with pytest.raises(ValueError, match="the coordinator needs one name"):
        owner.faults.move_coordinator()
    owner.topic("t").produce("v")


def test_a_single_broker_has_no_other_leader(broker: Broker) -> None:
    broker.create_topic("t")
    with pytest.raises(ApiError, match="another broker cannot lead it: in sync and online are"):
        broker.faults.move_leader("t")


def test_the_coordinator_of_a_group_moves_and_its_member_stays(cluster: Cluster) -> None:
    topic = cluster.create_topic("t")
    config = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
    consumer = Consumer(config | {"heartbeat.interval.ms": 50})
    consumer.subscribe(["t"])
    while not consumer.assignment():
        consumer.poll(0.1)
    [member] = cluster.wait_group("g", members=1).members
    cluster.wait_in_sync()
    former = cluster.coordinator(group="g")
    with cluster.recorded() as seen:
        moved_to = cluster.faults.move_coordinator(group="g")
        assert moved_to == cluster.coordinator(group="g") != former
        answered: list[RecordedRequest] = []
        while not answered:
            consumer.poll(0.1)
            answered = [asked for asked in seen.requests("Heartbeat", broker=moved_to) if asked.outcome == "ok"]
    topic.produce("v")
    message = None
    while message is None:
        message = consumer.poll(0.1)
    consumer.commit(message, asynchronous=False)
    group = cluster.group("g")
    assert [each.member_id for each in group.members] == [member.member_id]
    assert group.offsets == {("t", 0): 1}
    consumer.close()


def test_the_coordinator_of_a_transaction_moves(cluster: Cluster) -> None:
    topic = cluster.create_topic("t")
    producer = producer_of(cluster, **{"transactional.id": "x"})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce("t", "v")
    producer.flush(PATIENCE_S)
    cluster.wait_in_sync()
    former = cluster.coordinator(transactional_id="x")
    with cluster.recorded() as seen:
        moved_to = cluster.faults.move_coordinator(transactional_id="x")
        assert moved_to == cluster.coordinator(transactional_id="x") != former
        producer.commit_transaction(PATIENCE_S)
        assert "ok" in [asked.outcome for asked in seen.requests("EndTxn", broker=moved_to)]
    assert len(topic.wait_records(1)) == 1
    assert cluster.faults.move_coordinator(transactional_id="x", to=former) == former
    assert cluster.coordinator(transactional_id="x") == former


@both
def test_a_leader_epoch_is_over(owner: Owner) -> None:
    """A fetch with the old epoch gets an error, and a client continues."""
    topic = owner.create_topic("t")
    topic.produce("1")
    config = {"bootstrap.servers": owner.bootstrap_servers, "group.id": "e", "auto.offset.reset": "earliest"}
    consumer = Consumer(config | {"topic.metadata.refresh.interval.ms": 50})
    consumer.subscribe(["t"])
    message = None
    while message is None:
        message = consumer.poll(0.1)
    epoch = owner.faults.raise_leader_epoch("t")
    assert owner.faults.raise_leader_epoch("t") == epoch + 1
    topic.produce("2")
    message = None
    while message is None or message.error() is not None:
        message = consumer.poll(0.1)
    assert message.value() == b"2"
    consumer.close()

    partition = FetchPartition(partition=0, current_leader_epoch=epoch, fetch_offset=0, partition_max_bytes=1000)
    request = FetchRequest(max_wait_ms=0, min_bytes=0, topics=[FetchTopic(topic="t", partitions=[partition])])
    leader = next(led.server for led in [owner.call(owner._leading("t", 0))])
    answer = owner.call(ask(leader, request, 12)).responses[0].partitions[0]
    assert answer.error_code == ErrorCode.FENCED_LEADER_EPOCH


@both
def test_a_partition_is_offline_for_a_while(owner: Owner) -> None:
    topic = owner.create_topic("t", partitions=2)
    owner.create_topic("u")
    producer = producer_of(owner)
    producer.produce("t", "before", partition=0)
    assert producer.flush(PATIENCE_S) == 0
    delivered = threading.Event()
    with owner.recorded() as seen:
        with owner.faults.partition_offline("t") as offline:
            assert repr(offline) == "<t-0 is offline, 0 hits>"
            producer.produce("t", "later", partition=0, on_delivery=lambda error, message: delivered.set())
            producer.produce("u", "now")
            producer.poll(0)
            seen.wait_request("Metadata", topic="t")
            offline.wait_hits()
            assert list(owner.faults) == [offline]
            topic.produce("the other partition", partition=1)
            assert not delivered.is_set()
        assert producer.flush(PATIENCE_S) == 0
    assert delivered.is_set()
    assert (len(owner.faults), offline.hits) == (0, offline.matches)
    assert [record.value for record in topic.records(partition=0)] == [b"before", b"later"]
    assert values(owner, "u") == [b"now"]


@both
def test_clear_ends_it_too(owner: Owner) -> None:
    topic = owner.create_topic("t")
    owner.faults.partition_offline("t")
    twice = owner.faults.partition_offline("t")
    owner.faults.clear()
    assert topic.produce("v").offset == 0
    twice.remove()
    gone = owner.faults.partition_offline("t")
    owner.delete_topic("t")
    gone.remove()


@both
def test_clear_leaves_no_fault(owner: Owner) -> None:
    """Of any kind: what holds up the undoing of another one goes before it."""
    topic = owner.create_topic("t", partitions=2)
    if isinstance(owner, Cluster):
        owner.wait_in_sync()
    leader = owner.call(owner._leading("t", 0)).server.node_id
    faults = owner.faults
    faults.hang_transaction("t")
    topic.produce("behind it", partition=0)
    faults.partition_offline("t", 1)
    faults.partition_offline("t", 0)
    faults.disk_slow(60_000)
    faults.disk_full(broker=leader)
    faults.pause(broker=leader)
    faults.leader_away("t")
    if isinstance(owner, Cluster):
        owner.cut(leader, (leader + 1) % 3)
        owner.cut((leader + 2) % 3, leader, one_way=True)
    faults.clear()
    assert list(faults) == []
    assert [record.value for record in topic.wait_records(1)] == [b"behind it"]
    topic.produce("to the other", partition=1)
    producer = producer_of(owner)
    producer.produce("t", "by a client", partition=0)
    assert producer.flush(PATIENCE_S) == 0
    if isinstance(owner, Cluster):
        owner.wait_in_sync()
    faults.clear()


def test_faults_that_cannot_be_undone_stay(broker: Broker) -> None:
    broker.create_topic("t").produce("v")
    hanging = broker.faults.hang_transaction("t")
    broker.faults.fail("Produce", "INVALID_RECORD")
    broker.kill()
    with pytest.raises(RuntimeError, match="does not run"):
        broker.faults.clear()
    assert list(broker.faults) == [hanging]
    broker.start()
    broker.faults.clear()
    assert list(broker.faults) == []
    assert len(broker.topic("t").records()) == 1


# --- disks and brokers ----------------------------------------------------------------------------


@pytest.mark.parametrize("owner", ["broker", "cluster"])
def test_a_slow_disk_keeps_writes_waiting_and_nothing_else(owner: str) -> None:
    """By the clock of the broker, which a test moves."""
    new: Callable[..., Owner] = Broker if owner == "broker" else Cluster
    with new(clock=ManualClock(), group_initial_rebalance_delay_ms=0) as slow:
        topic = slow.create_topic("t")
        topic.produce("before")
        producer = producer_of(slow)
        other = producer_of(slow)
        leader = slow.call(slow._leading("t", 0)).server.node_id
        with slow.recorded() as seen, slow.faults.disk_slow(60_000, broker=leader) as fault:
            producer.produce("t", "v")
            fault.wait_hits()
            assert producer.flush(0.2) == 1
            assert len(topic.records()) == 1
            other.list_topics(timeout=PATIENCE_S)
            assert seen.requests("Produce")[0].outcome == "waiting"
            slow.clock.advance(timedelta(minutes=1))
            assert producer.flush(PATIENCE_S) == 0
        assert fault.hits >= 1


def test_a_follower_with_a_slow_disk_leaves_the_isr() -> None:
    with Cluster(replica_lag_time_max_ms=500, min_insync_replicas=1) as cluster:
        topic = cluster.create_topic("t")
        leader = cluster.leader("t")
        slow = (leader + 1) % 3
        with cluster.faults.disk_slow(60_000, broker=slow):
            topic.produce("v")  # with acks=all: until the slow one is out of the ISR
            assert slow not in isr_of(cluster, "t")
        cluster.clock.advance(60_000)  # by which it has written what it waited with
        cluster.wait_in_sync()


def isr_of(cluster: Cluster, topic: str) -> set[int]:
    async def find() -> set[int]:
        return set((await cluster._leading(topic, 0)).partition.state.isr)

    return cluster.call(find())


def test_a_broker_of_a_cluster_ends_when_its_disk_fails(cluster: Cluster) -> None:
    topic = cluster.create_topic("t")
    leader = cluster.leader("t")
    producer = producer_of(cluster, **{"enable.idempotence": True})
    fault = cluster.faults.disk_fails(broker=leader)
    producer.produce("t", "v")
    assert producer.flush(PATIENCE_S) == 0
    assert fault.hits
    assert cluster.leader("t") != leader
    assert [record.value for record in topic.records()] == [b"v"]
    assert not cluster.brokers[leader].is_running
    fault.remove()
    cluster.brokers[leader].start()


@both
def test_a_paused_broker_answers_nothing_and_loses_nothing(owner: Owner) -> None:
    topic = owner.create_topic("t")
    producer = producer_of(owner)
    producer.produce("t", "before")
    assert producer.flush(PATIENCE_S) == 0
    leader = owner.call(owner._leading("t", 0)).server.node_id
    with owner.faults.pause(broker=leader) as paused:
        producer.produce("t", "meanwhile")
        paused.wait_hits()
        assert repr(paused).startswith(f"<pause (broker={leader}), ")
        assert repr(next(iter(owner.faults))).startswith(
            f"<pause (broker={leader}): hold everything (broker={leader}, from_brokers=True), "
        )
        assert producer.flush(0.3) == 1
        assert len(topic.records()) == 1
    assert paused.matches == paused.hits
    assert producer.flush(PATIENCE_S) == 0
    assert [record.value for record in topic.records()] == [b"before", b"meanwhile"]


def test_a_follower_that_is_paused_follows_no_more() -> None:
    with Cluster(replica_lag_time_max_ms=500, min_insync_replicas=1) as cluster:
        topic = cluster.create_topic("t")
        needed = {cluster.leader("t"), cluster.controller()}  # who is asked whether the ISR may shrink
        follower = min({0, 1, 2} - needed)
        with cluster.faults.pause(broker=follower):
            topic.produce("v")
            assert follower not in isr_of(cluster, "t")
        cluster.wait_in_sync()


def test_a_paused_leader_taken_for_dead_gets_no_requests() -> None:
    """It does not know yet that another broker leads."""
    with Cluster() as cluster:
        cluster.create_topic("t", partitions=3)
        led = next(index for index in range(3) if cluster.leader("t", index) != cluster.controller())
        former = cluster.leader("t", led)
        others = [broker.bootstrap_servers for broker in cluster.brokers if broker.number != former]
        with cluster.faults.pause(broker=former):
            cluster.expire_session(former)
            writer = Producer({"bootstrap.servers": ",".join(others), "enable.idempotence": True})
            writer.produce("t", "v", partition=led)
            assert writer.flush(PATIENCE_S) == 0
            assert cluster.brokers[former].server.replicas.partition_or_error("t", led).state.is_leader
            assert cluster.leader("t", led) != former
            assert [record.value for record in cluster.topic("t").wait_records(1)] == [b"v"]
        cluster.wait_in_sync()


def test_a_paused_controller_is_replaced_and_does_no_harm() -> None:
    """It carries out the commands and requests from before its session expired, and responds late."""
    with Cluster(group_initial_rebalance_delay_ms=0) as cluster:
        topic = cluster.create_topic("t", partitions=3)
        former = cluster.controller()
        others = [broker.bootstrap_servers for broker in cluster.brokers if broker.number != former]
        led = next(index for index in range(3) if cluster.leader("t", index) == former)
        producer = producer_of(cluster, **{"enable.idempotence": True})
        producer.produce("t", "before", partition=led)
        assert producer.flush(PATIENCE_S) == 0
        epoch = controller_epoch(cluster)
        with cluster.faults.pause(broker=former) as paused:
            late = AdminClient({"bootstrap.servers": cluster.brokers[former].bootstrap_servers})
            asked_too_late = late.create_topics([NewTopic("late", 1, 3)], request_timeout=60)["late"]
            producer.produce("t", "meanwhile", partition=led)
            paused.wait_hits(2)
            cluster.expire_session(former)
            assert cluster.controller() != former
            assert controller_epoch(cluster) > epoch
            admin = AdminClient({"bootstrap.servers": ",".join(others)})
            admin.create_topics([NewTopic("u", 1, replica_assignment=[[(former + 1) % 3, (former + 2) % 3]])])[
                "u"
            ].result(PATIENCE_S)
            writer = Producer({"bootstrap.servers": ",".join(others)})
            writer.produce("u", "of the new controller")
            assert writer.flush(PATIENCE_S) == 0
            now = cluster.controller()
            assert "u" not in cluster.brokers[former].server.metadata
        cluster.wait_in_sync()
        assert producer.flush(PATIENCE_S) == 0
        # As the former controller knows the new one by then, or not yet: librdkafka does not ask again by itself.
        refusal = asked_too_late.exception(PATIENCE_S)
        assert refusal is None or refusal.args[0].code() == KafkaError.NOT_CONTROLLER
        assert cluster.controller() == now
        assert [broker.server.controller.is_active for broker in cluster.brokers].count(True) == 1
        assert [record.value for record in topic.records(led)] == [b"before", b"meanwhile"]
        assert values(cluster, "u") == [b"of the new controller"]
        assert set(cluster.topic_names()) == ({"t", "u"} if refusal else {"late", "t", "u"})

        def are_told_the_same() -> bool | None:
            told = [
                {topic.name: topic.partitions for topic in server.metadata.topics()}
                for server in cluster.live_servers()
            ]
            return told[0] == told[1] == told[2] or None

        # Who made the topic that was asked for too late had its answer before the others heard of it.
        assert cluster.call(cluster._eventually(are_told_the_same, "brokers know different things"))


def controller_epoch(cluster: Cluster) -> int:
    [controller] = [each.server.controller for each in cluster.brokers if each.server.controller.is_active]
    return controller.context.election.epoch


def test_a_link_is_cut_one_way() -> None:
    """A follower that does not reach its leader falls behind; a leader that does not reach its follower needs not."""
    with Cluster(2, replica_lag_time_max_ms=2_000, min_insync_replicas=1) as cluster:
        topic = cluster.create_topic("t")
        leader = cluster.leader("t")
        follower = 1 - leader
        with cluster.cut(leader, follower, one_way=True):
            for _ in range(3):
                topic.produce("1")  # with acks=all
            assert isr_of(cluster, "t") == {0, 1}
        cluster.cut(follower, leader, one_way=True)
        topic.produce("3")
        assert isr_of(cluster, "t") == {leader}
        cluster.heal()
        cluster.wait_in_sync()


def test_a_cut_is_a_fault(cluster: Cluster) -> None:
    topic = cluster.create_topic("t")
    leader = cluster.leader("t")
    follower, other = (leader + 1) % 3, (leader + 2) % 3
    with cluster.cut(leader, follower) as cut, cluster.cut(follower, leader, one_way=True) as again:
        assert repr(cut).startswith(f"<cut {leader} <-> {follower}, ")
        assert repr(again).startswith(f"<cut {follower} -> {leader}, ")
        assert list(cluster.faults) == [cut, again]
        cut.wait_hits(2)  # a connection that broke, and one that cannot be had
        again.wait_hits()
        cut.remove()
        cut.remove()
        assert list(cluster.faults) == [again]
        hits = again.hits
        cluster.heal()
        assert list(cluster.faults) == []
    cluster.wait_in_sync()
    assert again.hits >= hits
    for one, two in ((0, 0), (0, 3), (-1, 1)):
        with pytest.raises(ValueError, match=f"two of the brokers 0 to 2 are cut off, not {one} and {two}"):
            cluster.cut(one, two)
    cluster.cut(leader, other)
    cluster.faults.clear()
    topic.produce("v")
    cluster.wait_in_sync()


# --- records --------------------------------------------------------------------------------------


@both
def test_records_age(owner: Owner) -> None:
    """A consumer that comes late finds what retention has left."""
    hour_ms = 3_600_000
    topic = owner.create_topic("t", partitions=2, configs={"retention.ms": hour_ms})
    other = owner.create_topic("u", configs={"retention.ms": hour_ms})
    for each in (topic, other):
        each.produce("old", partition=0)
    topic.produce("of the other partition", partition=1)
    if isinstance(owner, Cluster):
        owner.wait_in_sync()
    owner.faults.age_records("t", timedelta(minutes=59))
    assert len(topic.records()) == 2
    now_ms = owner.clock.now_ms()
    owner.faults.age_records("t", timedelta(hours=2), partition=0)
    topic.produce("new", partition=0)
    assert values(owner, "t") == [b"new", b"of the other partition"]
    assert values(owner, "u") == [b"old"]
    assert owner.clock.now_ms() < now_ms + hour_ms
    config = {"bootstrap.servers": owner.bootstrap_servers, "group.id": "a", "auto.offset.reset": "earliest"}
    consumer = Consumer(config)
    consumer.subscribe(["t"])
    read: set[bytes | None] = set()
    while len(read) < 2:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            read.add(message.value())
    assert read == {b"new", b"of the other partition"}
    consumer.close()
    owner.faults.age_records("t", 2 * hour_ms)
    assert values(owner, "t") == []
    for wrong in ({"topic": "v", "duration": 1}, {"topic": "t", "duration": 1, "partition": 2}):
        with pytest.raises(ApiError):
            owner.faults.age_records(**wrong)  # type: ignore[arg-type]
