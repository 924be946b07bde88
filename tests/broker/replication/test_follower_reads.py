"""Consumers that read from followers (KIP-392): real clients that are redirected to the replica in their rack, the
responses of a follower, and how soon it knows of a commit."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import count
from statistics import median, quantiles
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from barnabas.broker.configuration.config import ConfigError, load
from barnabas.broker.configuration.tables.broker import LEADER_SELECTOR, RACK_AWARE_SELECTOR
from barnabas.broker.replication.follower_reads import COMMIT_WAIT_MS
from barnabas.broker.replication.followers import Followers
from barnabas.broker.replication.replica_selector import preferred_replica
from barnabas.testing import Cluster
from barnabas.testing.contents.requests import ask
from barnabas.testing.interception.request import Request
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.delete_topics import DeleteTopicsRequest
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.records import Record, build_batch
from tests.support.reference_loop import assert_within, wake_ups_s
from tools.waiting import PATIENCE_S, until, wait_until

pytestmark = pytest.mark.slow

RACKS = ("a", "b", "c")
FETCH_VERSION = 12
PROMISED_MS = 20
"""How soon a follower that is read from knows what is committed."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(
        racks=RACKS, replica_selector_class=RACK_AWARE_SELECTOR, auto_leader_rebalance_enable=False
    ) as running:
        yield running


def topic_of(cluster: Cluster, name: str) -> tuple[int, int]:
    """A new topic's leader, and one that follows it."""
    cluster.create_topic(name)
    leader = cluster.leader(name)
    return leader, (leader + 1) % len(RACKS)


async def followed_steadily(server: Any, topic: str) -> None:
    """Wait until a follower fetches a partition over the connection for partitions in sync."""
    partition = server.metadata.topic_id(topic), 0
    await until(lambda: any(partition in fetcher for fetcher in server.replicas.fetchers.fetchers[::2]))


def producer_of(cluster: Cluster) -> Producer:
    return Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "linger.ms": 0})


def consumer_of(cluster: Cluster, topic: str, rack: str) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "readers",
            "client.id": f"reader in {rack}",
            "client.rack": rack,
            "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": 1_000,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    return consumer


def next_value(consumer: Consumer) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            return (message.value() or b"").decode()
    raise AssertionError("no record came")


def write(producer: Producer, topic: str, value: str) -> None:
    producer.produce(topic, value, partition=0)
    assert producer.flush(PATIENCE_S) == 0


def bytes_read(cluster: Cluster, topic: str, broker: int) -> int:
    """The bytes of the topic that the broker has sent to consumers."""

    async def look() -> int:
        return cluster.brokers[broker].server.replicas.partition_or_error(topic, 0).bytes_out

    return cluster.call(look())


def fetch(cluster: Cluster, broker: int, topic: str, offset: int, *, version: int = FETCH_VERSION, **more: Any) -> Any:
    asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20, **more)
    request = FetchRequest(max_bytes=1 << 20, session_epoch=-1, topics=[FetchTopic(topic=topic, partitions=[asked])])
    request.replica_id = -1

    async def fetch_once() -> PartitionData:
        response = await ask(cluster.brokers[broker].server, request, version)
        return response.responses[0].partitions[0]  # type: ignore[no-any-return]

    return cluster.call(fetch_once())


def test_a_consumer_reads_its_racks_follower_until_that_dies(cluster: Cluster) -> None:
    """Then it reads from others."""
    leader, follower = topic_of(cluster, "near")
    producer, consumer = producer_of(cluster), consumer_of(cluster, "near", RACKS[follower])
    try:
        write(producer, "near", "first")
        assert next_value(consumer) == "first"
        deadline = time.monotonic() + PATIENCE_S  # it may have been given its first records by the leader
        while not bytes_read(cluster, "near", follower):
            assert time.monotonic() < deadline, "nothing is read from the follower"
            write(producer, "near", "more")
            assert next_value(consumer) == "more"
        from_leader = bytes_read(cluster, "near", leader)
        for number in range(20):
            write(producer, "near", f"{number}")
            assert next_value(consumer) == f"{number}"
        assert bytes_read(cluster, "near", leader) == from_leader

        cluster.brokers[follower].kill()
        write(producer, "near", "after")
        assert next_value(consumer) == "after"
        assert bytes_read(cluster, "near", leader) > from_leader
    finally:
        consumer.close()
        if not cluster.brokers[follower].is_running:
            cluster.brokers[follower].start()
        cluster.wait_in_sync()


@pytest.mark.full
@pytest.mark.alone
def test_a_read_follower_knows_of_a_commit_within_5_ms(cluster: Cluster) -> None:
    """Some 5 ms, from its acknowledgement to a consumer of the follower."""
    _, follower = topic_of(cluster, "soon")
    producer, consumer = producer_of(cluster), consumer_of(cluster, "soon", RACKS[follower])
    numbers = count()

    def heard_s() -> float:
        number = next(numbers)
        written: list[float] = []
        producer.produce(
            "soon", f"{number}", partition=0, on_delivery=lambda *_, at=written: at.append(time.monotonic())
        )
        assert producer.flush(PATIENCE_S) == 0
        assert next_value(consumer) == f"{number}"
        return time.monotonic() - written[0]

    try:
        for _ in range(10):
            heard_s()
        assert_within(3, wake_ups_s, lambda: median(heard_s() for _ in range(20)), "a follower hears")
        assert bytes_read(cluster, "soon", follower)
    finally:
        consumer.close()


def test_responses_of_a_follower_depend_on_offset_and_epoch(cluster: Cluster) -> None:
    _, follower = topic_of(cluster, "answers")
    producer, consumer = producer_of(cluster), consumer_of(cluster, "answers", RACKS[follower])
    write(producer, "answers", "v")
    assert next_value(consumer) == "v"
    consumer.close()
    cluster.wait_in_sync()
    found = wait_until(
        lambda: found if (found := fetch(cluster, follower, "answers", 0)).records else None,
        "the follower hears of the commit",
    )
    assert (found.error_code, found.high_watermark, found.preferred_read_replica) == (0, 1, -1)
    assert fetch(cluster, follower, "answers", 1).error_code == ErrorCode.NONE
    assert fetch(cluster, follower, "answers", 2).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    newer = fetch(cluster, follower, "answers", 0, current_leader_epoch=99)
    assert newer.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert fetch(cluster, follower, "answers", 0, version=10).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def consumer_fetch(topic: str, offset: int, max_wait_ms: int = 30_000) -> FetchRequest:
    asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic=topic, partitions=[asked])]
    return FetchRequest(
        replica_id=-1, max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 20, session_epoch=-1, topics=topics
    )


def one_record(topic: str) -> ProduceRequest:
    batch = build_batch([Record(0, 1_700_000_000_000, None, b"v", [], 0)])
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[data])


def test_a_follower_waits_between_high_watermark_and_log_end() -> None:
    """Not OFFSET_NOT_AVAILABLE, as KIP-392 has it: most clients would ask again at once."""
    with Cluster(replica_lag_time_max_ms=300_000, auto_leader_rebalance_enable=False) as cluster:
        leader, follower = topic_of(cluster, "ahead")
        # Who has what the leader has not heard of, so that it is not committed.
        cut = cluster.cut(leader, (leader + 2) % 3)
        servers = [cluster.brokers[each].server for each in (leader, follower)]
        logs = [server.replicas.partition_or_error("ahead", 0).log for server in servers]

        async def read_ahead() -> None:
            writing = [asyncio.create_task(ask(servers[0], one_record("ahead"), 9)) for _ in range(3)]
            await cluster._eventually(lambda: logs[1].log_end_offset == 3 or None, "nothing is replicated")
            assert [log.high_watermark for log in logs] == [0, 0]
            for offset in (1, 3):
                answer = await ask(servers[1], consumer_fetch("ahead", offset, 0), FETCH_VERSION)
                found = answer.responses[0].partitions[0]
                assert (found.error_code, found.high_watermark, len(found.records)) == (ErrorCode.NONE, 0, 0)
            beyond = await ask(servers[1], consumer_fetch("ahead", 4), FETCH_VERSION)
            assert beyond.responses[0].partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE

            reading = asyncio.create_task(ask(servers[1], consumer_fetch("ahead", 1), FETCH_VERSION))
            await asyncio.sleep(0)
            partition = servers[1].replicas.partition_or_error("ahead", 0)
            assert partition.is_waited_for
            assert not reading.done()
            await asyncio.to_thread(cut.remove)
            await asyncio.gather(*writing)
            found = (await reading).responses[0].partitions[0]
            assert found.records
            assert found.high_watermark > 1

        cluster.call(read_ahead())


def test_a_read_follower_has_its_leader_wait_for_5_ms_at_most(
    cluster: Cluster,
) -> None:
    """At any speed of the machine: no fetch of the follower delays a commit for the reader by more than that, and no
    fetch is hurried without news."""
    leader, follower = topic_of(cluster, "counted")
    servers = [cluster.brokers[each].server for each in (leader, follower)]
    log = servers[1].replicas.partition_or_error("counted", 0).log
    by_connection: defaultdict[int, list[tuple[int, bool]]] = defaultdict(list)
    """How long each fetch of the follower may wait, and whether it has something that it does not know committed."""

    def note(request: Request) -> bool:
        if request.message.replica_state.replica_id == follower:
            by_connection[request.connection].append(
                (request.message.max_wait_ms, log.high_watermark < log.log_end_offset)
            )
        return False

    took_s = []

    async def read_what_is_written() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await followed_steadily(servers[1], "counted")
            for offset in range(50):
                reading = asyncio.create_task(ask(servers[1], consumer_fetch("counted", offset), FETCH_VERSION))
                await asyncio.sleep(0)
                await ask(servers[0], one_record("counted"), 9)
                began_s = time.monotonic()
                assert (await reading).responses[0].partitions[0].records
                took_s.append(time.monotonic() - began_s)

    with cluster.faults.hold("Fetch", broker=leader, from_brokers=True, predicate=note):  # looks, and holds nothing
        cluster.call(read_what_is_written())
    *_, p90 = percentiles = quantiles(took_s, n=10)
    print(f"from its acknowledgement to a fetch at a follower: p50 {percentiles[4]:.4f} s, p90 {p90:.4f} s")
    waits = max(by_connection.values(), key=len)  # the other connection is for partitions that are far behind
    hurried = [wait_ms for wait_ms, has_more in waits if has_more]
    patient = [wait_ms for wait_ms, has_more in waits if not has_more]
    print(f"of {len(waits)} fetches of the follower {len(hurried)} wait {COMMIT_WAIT_MS} ms at most")
    assert len(hurried) >= 50
    assert max(hurried) <= COMMIT_WAIT_MS
    assert min(patient, default=500) == servers[1].config.replica_fetch_wait_max_ms


def test_reads_of_an_unfollowed_partition_are_forgotten(cluster: Cluster) -> None:
    _, follower = topic_of(cluster, "passing")
    fetch(cluster, follower, "passing", 0)
    server = cluster.brokers[follower].server

    async def read_topics() -> set[str]:
        fetchers = server.replicas.fetchers
        return set() if fetchers is None else {found.topic for found in fetchers.reads.partitions.values()}

    async def delete() -> Any:
        controller = next(found for found in cluster.live_servers() if found.controller.is_active)
        return await ask(controller, DeleteTopicsRequest(topic_names=["passing"], timeout_ms=30_000), 5)

    assert "passing" in cluster.call(read_topics())
    cluster.call(delete())
    wait_until(lambda: "passing" not in cluster.call(read_topics()), "a deleted topic is read no more")


def test_another_selector_is_refused_in_one_line() -> None:
    assert load(options={"replica.selector.class": LEADER_SELECTOR}).replica_selector_class == LEADER_SELECTOR
    with pytest.raises(ConfigError, match=r"org\.example\.Mine.*replica\.selector\.class") as caught:
        load(options={"replica.selector.class": "org.example.Mine"})
    assert "\n" not in str(caught.value)


# --- who is preferred


def followers(**told: tuple[int, int, int]) -> Followers:
    """Of broker 0; each with where its log starts and ends, and when it fetched last."""
    found = Followers(
        0, range(5), [0, 1, 2, 3], leader_epoch=1, partition_epoch=1, start_offset=0, now_ms=0,
        is_eligible=lambda *_: True,
    )  # fmt: skip
    for name, (start, end, now_ms) in told.items():
        follower = found.follower(int(name.lstrip("b")))
        assert follower is not None
        follower.fetched(end, start, 1, end, now_ms)
    return found


def preferred(known: Followers, racks: dict[int, str], offset: int = 10) -> int | None:
    return preferred_replica(known, offset, "near", racks.get)


def test_the_most_caught_up_follower_in_the_rack_is_preferred() -> None:
    known = followers(b1=(0, 20, 100), b2=(0, 30, 100), b3=(0, 40, 100), b4=(0, 50, 100))
    assert preferred(known, {0: "far", 1: "near", 2: "near", 3: "far", 4: "near"}) == 2  # 4 is not in sync
    assert preferred(known, {0: "near", 1: "near", 2: "near"}) is None  # the leader is as near
    assert preferred(known, {0: "far", 3: "far"}) is None
    assert preferred(known, {1: "near"}) == 1  # nobody knows where the leader is


def test_among_equal_replicas_the_last_to_catch_up_is_preferred() -> None:
    known = followers(b1=(0, 20, 200), b2=(0, 20, 100), b3=(0, 20, 100))
    near = dict.fromkeys((1, 2, 3), "near")
    assert preferred(known, near) == 1
    assert preferred(followers(b1=(0, 20, 100), b2=(0, 20, 100)), near) == 2


def test_a_replica_without_the_offset_is_not_preferred() -> None:
    known = followers(b1=(11, 20, 100), b2=(0, 9, 100))
    assert preferred(known, {1: "near", 2: "near"}) is None
    assert preferred(known, {1: "near", 2: "near"}, 11) == 1
    assert preferred(known, {1: "near", 2: "near", 3: "near"}, 0) == 2  # 3 has not fetched yet


def test_a_commit_is_waited_for_less_long_than_is_promised() -> None:
    assert COMMIT_WAIT_MS < PROMISED_MS / 2
