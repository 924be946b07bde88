"""The small client behind the command line: partitioning, assignment, and how it fails."""

from __future__ import annotations

import asyncio
import gc
import struct
import sys
from collections.abc import Awaitable, Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.cli.output import with_client
from barnabas.broker.cli.records import formatter
from barnabas.broker.client.client import (
    ANSWER_S,
    BrokerConnection,
    BrokerUnavailable,
    ClientError,
    KafkaClient,
    parse_bootstrap_servers,
)
from barnabas.broker.client.configs import TOPIC, alter_configs, describe_configs
from barnabas.broker.client.consumer import EARLIEST, LATEST, ConsumedBatch, Fetcher, Positions
from barnabas.broker.client.group import GroupMember, assign_range, describe_assignment, fetch_committed
from barnabas.broker.client.producer import Producer, murmur2, partition_for
from barnabas.testing import Broker
from barnabas.wire import codec
from barnabas.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from barnabas.wire.messages.describe_configs import DescribeConfigsResponse
from barnabas.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from barnabas.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from barnabas.wire.record_batch import CompressionType
from barnabas.wire.records import Record, build_batch
from tests.support.standing_loop import StandingLoop, run_standing
from tools.waiting import PATIENCE_S


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        # Kafka's own UtilsTest.testMurmur2.
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_javas(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected & 0xFFFF_FFFF


@given(st.binary(max_size=64), st.integers(1, 50))
def test_keys_have_a_partition(key: bytes, count: int) -> None:
    assert 0 <= partition_for(key, count) < count


def test_range_assignment() -> None:
    partitions = [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)]
    assert assign_range({"m2": ["a", "b"], "m1": ["a"]}, partitions) == {
        "m1": [("a", 0), ("a", 1)],
        "m2": [("a", 2), ("b", 0), ("b", 1)],
    }
    assert assign_range({"m1": ["missing"]}, partitions) == {"m1": []}


@given(
    st.dictionaries(st.sampled_from("pqrs"), st.lists(st.sampled_from("abc"), unique=True), min_size=1),
    st.sets(st.tuples(st.sampled_from("abc"), st.integers(0, 5))),
)
def test_range_gives_each_partition_to_one_subscriber(
    subscriptions: dict[str, list[str]], partitions: set[tuple[str, int]]
) -> None:
    assigned = assign_range(subscriptions, sorted(partitions))
    given = [partition for share in assigned.values() for partition in share]
    assert len(given) == len(set(given))
    subscribed = {topic for topics in subscriptions.values() for topic in topics}
    assert set(given) == {partition for partition in partitions if partition[0] in subscribed}
    for member, share in assigned.items():
        assert {topic for topic, _ in share} <= set(subscriptions[member])


def test_nonsense_assignments_are_empty() -> None:
    assert describe_assignment(b"") == []
    assert describe_assignment(b"\0\1\x7f\xff\xff\xff") == []


def test_bootstrap_servers() -> None:
    assert parse_bootstrap_servers("a:1, b,[::1]:3 ,[::1],") == [("a", 1), ("b", 9092), ("::1", 3), ("::1", 9092)]
    with pytest.raises(ClientError, match="HOST:PORT"):
        parse_bootstrap_servers("a:b")
    with pytest.raises(ClientError, match="no bootstrap server"):
        parse_bootstrap_servers(" , ")


# --- brokers that misbehave ----------------------------------------------------------------------

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def connect_to(serve: Serve, timeout_s: float = PATIENCE_S) -> None:
    async def work() -> None:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await serve(reader, writer)
            writer.close()
            served.set()

        served = asyncio.Event()

        async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            try:
                async with KafkaClient(f"127.0.0.1:{port}", request_timeout_s=timeout_s):
                    pass
            finally:
                await served.wait()

    asyncio.run(work())


def test_a_client_without_a_broker_fails() -> None:
    async def work() -> None:
        async with KafkaClient("127.0.0.1:1"):
            pass

    with pytest.raises(BrokerUnavailable, match=r"no broker answers at 127\.0\.0\.1:1 \(connection refused\)"):
        asyncio.run(work())


def test_an_address_that_hangs_does_not_keep_from_the_next_one(broker: Broker) -> None:
    """As that of a process that stands still, whose kernel takes connections."""

    async def work(loop: StandingLoop) -> str | None:
        async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(4)
            loop.advance(0.2)
            await reader.read()
            writer.close()

        async with await asyncio.start_server(hang, "127.0.0.1", 0) as server:
            silent = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            servers = f"{silent},{broker.bootstrap_servers}"
            async with KafkaClient(servers, request_timeout_s=60, setup_timeout_s=0.2) as client:
                return client.cluster_id

    assert run_standing(work)


def test_a_client_waits_for_an_answer_past_its_requests_timeout(broker: Broker) -> None:
    """It says what is known of the change."""

    async def work(loop: StandingLoop) -> None:
        async def answer_late() -> None:
            await hold.wait_held_async(timeout=PATIENCE_S)
            loop.advance(0.2 + ANSWER_S / 2)
            await asyncio.sleep(0)  # what is due is done first
            hold.release()

        async with KafkaClient(broker.bootstrap_servers, request_timeout_s=0.2) as client:
            topics = [CreatableTopic(name="slow", num_partitions=1, replication_factor=1)]
            create = CreateTopicsRequest(topics=topics, timeout_ms=200)
            await asyncio.gather(client.send_to_controller(create), answer_late())
            await asyncio.gather(alter_configs(client, TOPIC, "slow", set_to={"flush.ms": "5"}), answer_late())

    with broker.faults.hold(["CreateTopics", "IncrementalAlterConfigs"]) as hold:
        run_standing(work)
    assert hold.hits == 2


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 2**31 - 1), ("127.0.0.1", -1), ("x" * 70, 9092), ("a..b", 1)])
def test_a_broker_without_a_usable_address_is_an_error(host: str, port: int) -> None:
    with pytest.raises(BrokerUnavailable, match=r"no broker can be at .*: that is no address"):
        asyncio.run(BrokerConnection(host, port, "test", 5).open())


def test_incomplete_answers_are_an_error_with_a_message(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(_client: KafkaClient) -> None:
        MetadataResponse().topics[0]

    with pytest.raises(ClientError, match=r"does not fit its request: IndexError: .* \(test_client.py, line \d+\)"):
        with_client(broker.bootstrap_servers, nothing)

    async def other_configs(client: KafkaClient) -> None:
        async def send(*_arguments: object) -> DescribeConfigsResponse:
            return DescribeConfigsResponse()

        monkeypatch.setattr(client, "send", send)
        await describe_configs(client, [(TOPIC, "t")])

    with pytest.raises(ClientError, match="does not return the configs of topic t"):
        with_client(broker.bootstrap_servers, other_configs)


def test_closed_connection() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(4)

    told = (
        r"^the broker at 127\.0\.0\.1:\d+ closed the connection before it answered anything: either the listener speaks"
        r" TLS \(give the file of its CA with --ca\), or the broker has no room for another connection \(try again"
    )
    with pytest.raises(BrokerUnavailable, match=told):
        connect_to(serve)


def test_silence() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    with pytest.raises(BrokerUnavailable, match="did not answer ApiVersions within"):
        connect_to(serve, timeout_s=0.1)  # Real time: in vain


@pytest.mark.slow
def test_a_connection_closes_although_the_broker_reads_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The unsent part of a request would keep the client for ever. asyncio complains of nothing."""

    async def work() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            correlation_id = (await reader.readexactly(size))[4:8]
            answer = correlation_id + codec.encode(
                ApiVersionsResponse(api_keys=[ApiVersion(api_key=3, min_version=0, max_version=1)]), 3
            )
            writer.write(struct.pack(">i", len(answer)) + answer)
            await is_closed.wait()
            writer.transport.abort()

        is_closed = asyncio.Event()
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            connection = BrokerConnection("127.0.0.1", server.sockets[0].getsockname()[1], "test", 30.0)
            await connection.open()
            large = MetadataRequest(topics=[MetadataRequestTopic(name="x" * 32_000)] * 1_000)
            asked = asyncio.create_task(connection.send(large))
            await asyncio.sleep(0)  # its first step, which is as far as it gets
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
            await connection.close()
            is_closed.set()

    asyncio.run(work())
    gc.collect()
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not Kafka's protocol: HTTP$"),
        (bytes.fromhex("15030100020246"), "speaks TLS: give the file of its CA with --ca"),
        (bytes.fromhex("15030300020250"), "speaks TLS: give the file of its CA with --ca"),
        (struct.pack(">i", -1), "not Kafka's protocol: a response of -1 bytes$"),
        (struct.pack(">i", 0x7FFFFFFF), "not Kafka's protocol"),
        (struct.pack(">ii", 4, 99), "not Kafka's protocol"),
        (struct.pack(">iih", 6, 1, 0), "not Kafka's protocol"),
    ],
)
def test_nonsense(answer: bytes, what: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(4)
        writer.write(answer)
        await writer.drain()
        await reader.read()

    with pytest.raises(ClientError, match=what):
        connect_to(serve)


# --- against our broker --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(num_partitions=3) as running:
        yield running


async def _produce(client: KafkaClient, topic: str, count: int, **options: object) -> None:
    async with Producer(client, topic, **options) as producer:  # type: ignore[arg-type]
        for number in range(count):
            await producer.send(str(number).encode(), b"v%d" % number, [("h", b"x")], 1_000 + number)
    assert producer.acknowledged_count == count


async def _consume(client: KafkaClient, topic: str, count: int) -> list[tuple[int, bytes | None, bytes | None]]:
    positions = Positions(client)
    await positions.refresh([topic])
    fetcher = Fetcher(positions, await positions.offsets(positions.partitions(), EARLIEST))
    found: list[tuple[int, bytes | None, bytes | None]] = []
    while len(found) < count:
        async for batch in fetcher.fetch(500):
            found += [(batch.partition, record.key, record.value) for record in batch.records]
    return found


@pytest.mark.parametrize("compression", list(CompressionType))
def test_produce_and_consume(broker: Broker, compression: CompressionType) -> None:
    topic = f"produce-{compression.name.lower()}"

    async def work() -> None:
        async with KafkaClient(broker.bootstrap_servers) as client:
            await _produce(client, topic, 500, compression=compression, batch_bytes=2_000)
            found = await _consume(client, topic, 500)
            assert sorted(value for _, _, value in found) == sorted(b"v%d" % number for number in range(500))
            assert all(partition == partition_for(key or b"", 3) for partition, key, _ in found)
            for index in range(3):
                keys = [int(key or b"") for partition, key, _ in found if partition == index]
                assert keys == sorted(keys)

    asyncio.run(work())


def test_offsets_by_time(broker: Broker) -> None:
    async def work() -> None:
        async with KafkaClient(broker.bootstrap_servers) as client:
            async with Producer(client, "times") as producer:
                for number in range(10):
                    await producer.send(None, b"x", [], 1_000 + number, 0)
            positions = Positions(client)
            await positions.refresh(["times"])
            assert await positions.offsets([("times", 0)], LATEST) == {("times", 0): 10}
            assert await positions.offsets([("times", 0)], 1_004) == {("times", 0): 4}
            assert await positions.offsets([("times", 0)], 9_999) == {("times", 0): -1}

    asyncio.run(work())


def test_a_fetch_from_a_missing_offset_starts_at_the_earliest(broker: Broker) -> None:
    async def work() -> None:
        async with KafkaClient(broker.bootstrap_servers) as client:
            await _produce(client, "range", 3)
            positions = Positions(client)
            await positions.refresh(["range"])
            fetcher = Fetcher(positions, dict.fromkeys(positions.partitions(), 1000))
            found = []
            while len(found) < 3:
                found += [record async for batch in fetcher.fetch(200) for record in batch.records]
            assert len(found) == 3

    asyncio.run(work())


def test_no_more_records_than_asked_for_and_the_rest_later(broker: Broker) -> None:
    """Positions are behind the last record that was handed out, so that they can be committed."""

    async def work() -> None:
        async with KafkaClient(broker.bootstrap_servers) as client:
            async with Producer(client, "some") as producer:
                for number in range(10):
                    await producer.send(None, b"%d" % number, [], 1_000, 0)
            positions = Positions(client)
            await positions.refresh(["some"])
            fetcher = Fetcher(positions, {("some", 0): 1})
            for expected, position in ((b"123", 4), (b"456", 7), (b"789", 10)):
                found = [record.value or b"" async for batch in fetcher.fetch(500, 3) for record in batch.records]
                assert (b"".join(found), fetcher.positions) == (expected, {("some", 0): position})
                assert not fetcher.drained
            assert [batch async for batch in fetcher.fetch(10)] == []
            assert fetcher.drained == {("some", 0)}

    asyncio.run(work())


def decoded(partition: PartitionData) -> list[ConsumedBatch]:
    """The batches that a fetcher at offset 0 decodes from a response."""

    async def batches() -> list[ConsumedBatch]:
        fetcher = Fetcher(Positions(KafkaClient("127.0.0.1:1")), {("t", 0): 0})
        topic = FetchableTopicResponse(topic="t", partitions=[partition])
        return [batch async for batch in fetcher._batches(FetchResponse(responses=[topic]))]

    return asyncio.run(batches())


def test_damaged_records_are_an_error_in_words() -> None:
    good = build_batch([Record(0, 1, None, b"good")])
    bad = build_batch([Record(1, 1, None, b"bad")])
    bad[-5] = 99
    with pytest.raises(ClientError, match=r"cannot read t-0 from offset 1 on: .*record"):
        decoded(PartitionData(partition_index=0, records=bytes(good + bad)))


def test_reading_takes_a_loop_per_record_and_no_call() -> None:
    """With nine calls for each record `consume` took six times as long as kcat."""
    records = [Record(offset, 1_700_000_000_000, None, b"x" * 100) for offset in range(2_000)]
    answer = PartitionData(partition_index=0, records=bytes(build_batch(records)))
    write, calls = formatter("{value}\\n"), 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    decoded(answer)  # imports and such
    gc.disable()  # hypothesis counts the time that it takes
    sys.setprofile(count)
    try:
        batches = list(Fetcher(Positions(KafkaClient("127.0.0.1:1")), {("t", 0): 0})._decode(("t", 0), answer))
        written = b"".join(map(write, batches))
    finally:
        sys.setprofile(None)
        gc.enable()
    assert written == (b"x" * 100 + b"\n") * 2_000
    # The constructor of each record and its place in the list, and some for the batch.
    assert calls < 2 * 2_000 + 100


async def _told_to_rejoin(member: GroupMember) -> None:
    assert member._heartbeats is not None
    await asyncio.wait_for(asyncio.shield(member._heartbeats), PATIENCE_S)
    assert member.must_rejoin


def test_group_members_share_and_take_over(broker: Broker) -> None:
    async def work() -> None:
        address = broker.bootstrap_servers
        async with KafkaClient(address) as one, KafkaClient(address, client_id="other") as two:
            await _produce(one, "shared", 3)
            first_positions, second_positions = Positions(one), Positions(two)
            await first_positions.refresh(["shared"])
            await second_positions.refresh(["shared"])
            first = GroupMember(one, "team", ["shared"], first_positions, heartbeat_interval_s=0.02)
            second = GroupMember(two, "team", ["shared"], second_positions, heartbeat_interval_s=0.02)
            everything = first_positions.partitions()
            assert sorted(await first.join()) == everything
            # The second member's join ends when the first one, told by a heartbeat, joins again.
            joining = asyncio.create_task(second.join())
            await _told_to_rejoin(first)
            joined = (await first.join(), await joining)
            assert sorted(joined[0] + joined[1]) == everything
            assert {len(share) for share in joined} == {1, 2}
            await first.commit({("shared", 0): 1})
            assert await fetch_committed(two, "team", None) == {("shared", 0): 1}
            assert await second.committed([("shared", 0), ("shared", 1)]) == {("shared", 0): 1}
            await second.leave()
            await _told_to_rejoin(first)
            assert sorted(await first.join()) == everything
            await first.leave()

    asyncio.run(work())


@pytest.mark.slow
def test_topics_that_may_not_be_created() -> None:
    async def work(address: str) -> None:
        async with KafkaClient(address) as client:
            await _produce(client, "nope", 1)

    with Broker(auto_create_topics_enable=False) as strict, pytest.raises(ClientError, match="topic nope"):
        asyncio.run(asyncio.wait_for(work(strict.bootstrap_servers), PATIENCE_S))


class Told(KafkaClient):
    """A client whose brokers report, one after the other, a leader of the one partition of a topic."""

    def __init__(self, *told: tuple[bytes, int, int]) -> None:
        super().__init__("nowhere:1")
        self._told = [
            MetadataResponseTopic(
                name="t",
                topic_id=topic_id,
                partitions=[MetadataResponsePartition(partition_index=0, leader_id=leader_id, leader_epoch=epoch)],
            )
            for topic_id, leader_id, epoch in told
        ]

    async def metadata(self, *_: object, **__: object) -> MetadataResponse:
        return MetadataResponse(topics=[self._told.pop(0)])


@pytest.mark.parametrize(
    ("told", "leaders"),
    [
        ([(b"1" * 16, 1, 4), (b"1" * 16, 2, 5), (b"1" * 16, 1, 4)], [1, 2, 2]),
        ([(b"1" * 16, 1, 4), (b"1" * 16, -1, 5), (b"1" * 16, 1, 4)], [1, None, None]),
        ([(b"1" * 16, 1, 4), (b"2" * 16, 2, 0)], [1, 2]),
        ([(bytes(16), 1, 4), (bytes(16), 2, 0)], [1, 2]),
    ],
    ids=["an older epoch", "older than nobody's", "a topic made anew", "without topic ids"],
)
def test_a_broker_that_knows_less_than_another_is_not_believed(
    told: list[tuple[bytes, int, int]], leaders: list[int | None]
) -> None:
    """KIP-320: one that was cut off takes itself for the leader, and has fewer records, for as long as it is."""

    async def refresh() -> list[int | None]:
        positions = Positions(Told(*told))
        found = []
        for _ in told:
            await positions.refresh(["t"])
            found.append(next(iter(positions.by_leader([("t", 0)])), None))
        return found

    assert asyncio.run(refresh()) == leaders
