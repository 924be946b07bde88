"""A test's actions without a client are the same for one broker and for three."""

import asyncio
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from barnabas.testing import ApiError, Broker, Cluster, ErrorCode, Record
from barnabas.testing.waiting.conditions import brokers_of
from tools.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.slow

Owner = Broker | Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(group_initial_rebalance_delay_ms=0) as running:
        yield running


@pytest.fixture(scope="module")
def single() -> Iterator[Broker]:
    with Broker(group_initial_rebalance_delay_ms=0) as running:
        yield running


@pytest.fixture(params=["single", "cluster"])
def owner(request: pytest.FixtureRequest) -> Owner:
    found: Owner = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def name(owner: Owner, request: pytest.FixtureRequest) -> Iterator[str]:
    """Of a topic that is deleted after the test, if there is one."""
    readable = request.node.originalname.replace("test_", "")
    yield readable
    if readable in owner.topic_names():
        owner.delete_topic(readable)


def values(records: list[Record]) -> list[bytes | None]:
    return [record.value for record in records]


def test_records_come_from_whoever_leads(owner: Owner, name: str) -> None:
    topic = owner.create_topic(name, partitions=3)
    assert topic.partition_count == 3
    written = [topic.produce(str(index), partition=index, headers={"h": "1"}) for index in range(3)]
    assert topic.records() == written
    assert topic.records(partition=1) == written[1:2]
    with pytest.raises(ApiError) as unknown:
        topic.produce("v", partition=3)
    assert unknown.value.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("make", [Broker, Cluster])
def test_topics_have_num_partitions_partitions(make: type[Owner], caplog: pytest.LogCaptureFixture) -> None:
    with make(num_partitions=3) as owner:
        assert owner.create_topic("t").partition_count == 3
        assert owner.create_topic("u", partitions=None).partition_count == 3
        assert owner.create_topic("v", 2).partition_count == 2
        assert [record.getMessage() for record in caplog.records] == []
    # Who stops may be out of reach for others before they know, on a busy machine, and that is told.
    assert [told for record in caplog.records if "this broker stops" in (told := record.getMessage())] == []


def test_a_partition_that_does_not_exist_has_no_leader(owner: Owner, name: str) -> None:
    """Nobody has to wait for that to be told."""
    owner.create_topic(name, partitions=2)
    with pytest.raises(ApiError, match=f"topic {name} has the partitions 0 to 1, not 9"):
        owner.leader(name, 9)


def test_records_are_deleted_below_a_number(owner: Owner, name: str) -> None:
    topic = owner.create_topic(name)
    with pytest.raises(TypeError, match="offset is a whole number, not 'x'"):
        topic.delete_records("x")  # type: ignore[arg-type]
    with pytest.raises(ApiError, match="UNKNOWN_TOPIC_OR_PARTITION: there is no topic never"):
        owner.topic("never").delete_records()


def test_roles_of_brokers_are_reported(owner: Owner, name: str) -> None:
    owner.create_topic(name)
    known = {server.node_id for server in owner.live_servers()}
    assert {owner.leader(name), owner.controller()} <= known
    assert {owner.coordinator(group=name), owner.coordinator(transactional_id=name)} <= known
    with pytest.raises(ValueError, match=r"group=\.\.\. or transactional_id=\.\.\."):
        owner.coordinator()
    with owner.faults.partition_offline(name):
        with pytest.raises(TimeoutError, match=rf"no broker leads {name}-0 \(waited 0\.01 s\)"):
            owner.leader(name, timeout=0.01)
        with pytest.raises(TimeoutError, match=rf"not in sync after 0\.01 s: {name}-0 at broker \d: leader -1"):
            owner.wait_in_sync(0.01)
    assert owner.leader(name, 0) in known


def test_a_topic_is_named_or_given(owner: Owner, name: str) -> None:
    topic, other = owner.create_topic(name), f"another {name}"
    owner.wait_in_sync()
    with owner.faults.fail("Produce", 6, topic={topic, other}) as fault, owner.recorded() as seen:
        producer = Producer({"bootstrap.servers": owner.bootstrap_servers, "retry.backoff.ms": 1})
        producer.produce(name, "v")
        fault.wait_hits()
        seen.wait_request("Produce", topic=topic)
        fault.remove()
        assert producer.flush(PATIENCE_S) == 0
    assert repr(owner.faults.leader_away(topic, 0)) == f"<leader_away {name}-0, 0 hits>"
    with owner.faults.hang_transaction(topic), owner.faults.partition_offline(topic):
        pass
    owner.faults.raise_leader_epoch(topic)
    owner.faults.age_records(topic, 1)
    owner.faults.clear()
    assert owner.leader(topic) in {server.node_id for server in owner.live_servers()}


def test_an_unknown_transactional_id_is_an_error(owner: Owner) -> None:
    producer = Producer({"bootstrap.servers": owner.bootstrap_servers, "transactional.id": "somebody's"})
    producer.init_transactions(PATIENCE_S)
    for verb in (owner.faults.fence_producer, owner.faults.abort_transaction):
        for number in range(5):  # of coordinators at any broker
            with pytest.raises(ApiError, match=f"no producer has the transactional id nobody's {number}"):
                verb(f"nobody's {number}")
    owner.faults.fence_producer("somebody's")


@pytest.mark.parametrize("make", [Broker, Cluster])
def test_configs_are_keywords_or_a_mapping(make: type[Owner]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with make(configs={"num.partitions": 2, "auto.create.topics.enable": False}, num_partitions=3) as owner:
            assert owner.create_topic("t").partition_count == 2
    with pytest.raises(TypeError, match="configs is a mapping of Kafka's keys to their values, not 'num"):
        make(configs="num.partitions")  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [Broker, Cluster])
def test_a_restart_keeps_data_and_addresses(make: type[Owner]) -> None:
    with make() as owner:
        topic, address = owner.create_topic("t"), owner.bootstrap_servers
        topic.produce("before")
        if isinstance(owner, Cluster):
            owner.wait_in_sync()
            owner.brokers[0].kill()
        owner.restart()  # all are in sync on return: else nothing could be written
        assert owner.bootstrap_servers == address
        topic.produce("after")
        assert values(topic.records()) == [b"before", b"after"]
    with pytest.raises(RuntimeError, match="does not run"):
        owner.restart()


def test_configs_are_written_as_python_has_them(owner: Owner, name: str) -> None:
    configs = {"cleanup.policy": ["delete", "compact"], "preallocate": False, "segment.bytes": 1 << 20}
    owner.create_topic(name, configs=configs)
    (told,) = (
        server.configs.overrides("topics", name) for server in owner.live_servers() if server.controller.is_active
    )
    assert told == {"cleanup.policy": "delete,compact", "preallocate": "false", "segment.bytes": "1048576"}


def test_records_of_a_client_are_waited_for(owner: Owner, name: str) -> None:
    topic = owner.create_topic(name, partitions=2)
    producer = Producer({"bootstrap.servers": owner.bootstrap_servers})
    for value in ("a", "b", "c"):
        producer.produce(name, value)
    assert sorted(filter(None, values(topic.wait_records(3)))) == [b"a", b"b", b"c"]
    producer.flush(PATIENCE_S)
    with pytest.raises(TimeoutError, match=f"after 0.05 s topic {name} holds 3 records, not 4"):
        topic.wait_records(4, timeout=0.05)


def test_a_topic_that_comes_later_is_waited_for(owner: Owner, name: str) -> None:
    async def wait() -> list[Record]:
        waiting = asyncio.create_task(owner.topic(name).wait_records_async(1))
        await asyncio.to_thread(owner.create_topic, name)
        await asyncio.to_thread(owner.topic(name).produce, "v")
        return await waiting

    assert values(asyncio.run(wait())) == [b"v"]


def test_a_deleted_topic_is_gone(owner: Owner, name: str) -> None:
    owner.create_topic(name).produce("v")
    assert name in owner.topic_names()
    owner.delete_topic(name)
    assert name not in owner.topic_names()
    for refused in (owner.topic(name).records, lambda: owner.topic(name).partition_count):
        with pytest.raises(ApiError) as gone:
            refused()
        assert gone.value.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(ApiError):
        owner.delete_topic(name)


def test_records_are_deleted_up_to_an_offset(owner: Owner, name: str) -> None:
    topic = owner.create_topic(name, partitions=2)
    for partition in (0, 0, 0, 1):
        topic.produce("v", partition=partition)
    topic.delete_records(2)
    assert [(record.partition, record.offset) for record in topic.records()] == [(0, 2), (1, 0)]
    with pytest.raises(ApiError) as beyond:
        topic.delete_records(4)
    assert beyond.value.error is ErrorCode.OFFSET_OUT_OF_RANGE
    topic.delete_records(partition=1)
    topic.delete_records()
    assert topic.records() == []
    assert topic.produce("v", partition=0).offset == 3


def test_groups_are_told_by_their_coordinator(owner: Owner, name: str) -> None:
    owner.create_topic(name).produce("v")
    assert owner.group(name).state == "Dead"
    consumer = Consumer(
        {"bootstrap.servers": owner.bootstrap_servers, "group.id": name, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([name])
    message = None
    while message is None:
        message = consumer.poll(0.1)
    assert len(owner.wait_group(name, members=1).members) == 1
    with pytest.raises(TimeoutError, match=f"group {name} is Stable with 1 members, not Stable with 2"):
        owner.wait_group(name, members=2, timeout=0.05)
    consumer.close()
    assert asyncio.run(owner.wait_group_async(name, "Empty")).offsets == {(name, 0): 1}
    with pytest.raises(ValueError, match="not Unheard"):
        owner.wait_group(name, "Unheard")


def test_an_event_loop_is_not_blocked(owner: Owner, name: str) -> None:
    async def block() -> None:
        owner.wait_group(name)

    with pytest.raises(RuntimeError, match="await wait_group_async"):
        asyncio.run(block())


def test_a_cluster_is_an_asynchronous_context_too() -> None:
    async def use() -> list[str]:
        async with Cluster(2) as cluster:
            await asyncio.to_thread(cluster.create_topic, "t")
            return cluster.topic_names()

    assert asyncio.run(use()) == ["t"]


def test_records_are_there_when_the_leader_has_died(cluster: Cluster) -> None:
    topic = cluster.create_topic("survives")
    for number in range(20):
        topic.produce(str(number))
    leader = cluster.leader("survives")
    cluster.brokers[leader].kill()
    try:
        assert len(topic.records()) == 20
        assert topic.produce("after").offset == 20
    finally:
        cluster.brokers[leader].start()
    assert len(topic.wait_records(21)) == 21


def test_offline_partitions_are_named_and_not_counted(owner: Owner, name: str) -> None:
    topic = owner.create_topic(name, partitions=2)
    for partition in range(2):
        topic.produce("v", partition=partition)
    with owner.faults.partition_offline(name, 1):
        told = rf"^LEADER_NOT_AVAILABLE: {name}-1 is offline by a fault: remove\(\) it first$"
        for ask in (lambda: topic.produce("w", partition=1), topic.records, lambda: topic.delete_records(partition=1)):
            with pytest.raises(ApiError, match=told):
                ask()
        assert len(topic.wait_records(1)) == 1
        with pytest.raises(TimeoutError, match="holds 1 records, not 2"):
            topic.wait_records(2, timeout=0.05)
    assert len(topic.wait_records(2)) == 2


@pytest.mark.parametrize("make", [Broker, Cluster])
def test_a_restart_ends_what_it_undoes(make: type[Owner]) -> None:
    """Somebody leads the partition then: nobody meets the fault any more, so it is not listed, and counts nothing."""
    with make() as owner:
        owner.create_topic("t")
        offline = owner.faults.partition_offline("t")
        owner.restart()
        assert list(owner.faults) == []
        hits = offline.hits
        producer = Producer({"bootstrap.servers": owner.bootstrap_servers})
        producer.produce("t", "v")
        assert producer.flush(PATIENCE_S) == 0
        assert offline.hits == hits
        if isinstance(owner, Cluster):
            offline = owner.faults.partition_offline("t")
            owner.faults.move_leader("t")
            producer.produce("t", "v")
            assert producer.flush(PATIENCE_S) == 0
            owner.faults.clear()
            assert list(owner.faults) == []


@pytest.mark.parametrize("make", [Broker, Cluster])
def test_waits_over_a_restart(make: type[Owner]) -> None:
    """Those of a single broker end with its event loop, and say why."""
    with make() as owner, ThreadPoolExecutor(2) as pool:
        topic = owner.create_topic("t")
        fault = owner.faults.hold("Heartbeat")
        waits: list[Future[Any]] = [
            pool.submit(topic.wait_records, 1, timeout=PATIENCE_S),
            pool.submit(fault.wait_hits, timeout=PATIENCE_S),
        ]
        while owner.call(waiting_calls()) < 2:
            pass
        owner.restart()
        if isinstance(owner, Broker):
            for wait in waits:
                with pytest.raises(RuntimeError, match=r"^the broker was restarted meanwhile$"):
                    wait.result(PATIENCE_S)
            return
        topic.produce("v")
        assert values(waits[0].result(PATIENCE_S)) == [b"v"]
        fault.remove()
        with pytest.raises(RuntimeError, match="no more can come"):
            waits[1].result(PATIENCE_S)


async def waiting_calls() -> int:
    """How many calls wait for something."""
    return sum(brokers_of(task) is not None for task in asyncio.all_tasks())


@pytest.mark.parametrize("make", [Broker, Cluster])
def test_a_failed_creation_names_its_reason(make: type[Owner]) -> None:
    with make() as owner, ThreadPoolExecutor(1) as pool:
        full = owner.faults.disk_full()
        creating = pool.submit(owner.create_topic, "t")
        full.wait_hits()

        def is_over_later() -> bool:
            owner.clock.advance(31_000)  # again, as the first hit may be another write than the topic's
            return creating.done()

        wait_until(is_over_later)
        with pytest.raises(ApiError, match=r"^REQUEST_TIMED_OUT: .*; there is <disk_full, .* hits>$"):
            creating.result()
