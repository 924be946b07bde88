"""The records that a test reads from a topic and puts into it."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import Producer

from barnabas.testing import ApiError, Broker
from barnabas.testing.contents.records import CommittedBatches
from barnabas.wire.control_records import ControlRecordType, EndTxnMarker, build_end_txn_marker
from barnabas.wire.record_batch import iter_headers
from barnabas.wire.records import Record as BatchRecord
from barnabas.wire.records import build_batch, iter_records
from tools.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_of_every_codec(broker: Broker, codec: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "compression.type": codec, "linger.ms": 50})
    expected = [b"value %d " % number * 20 for number in range(100)]
    for value in expected:
        producer.produce("t", value)
    assert producer.flush(PATIENCE_S) == 0
    assert [record.value for record in broker.topic("t").records()] == expected


def test_a_record_has_everything(broker: Broker) -> None:
    topic = broker.create_topic("t", 2)
    produced = topic.produce(
        "v", key=b"k", partition=1, headers=[("h", "1"), ("h", b"2"), ("n", None)], timestamp=1_700_000_000_000
    )
    assert topic.records() == [produced]
    assert produced == (
        "t",
        1,
        0,
        1_700_000_000_000,
        b"k",
        b"v",
        (("h", b"1"), ("h", b"2"), ("n", None)),
    )
    assert topic.produce(None, partition=1, headers={"h": "1"})[2:] == (
        1,
        topic.records()[1].timestamp,
        None,
        None,
        (("h", b"1"),),
    )


def test_records_come_by_partition_and_offset(broker: Broker) -> None:
    topic = broker.create_topic("t", 3)
    for number in range(7):
        topic.produce(str(number))
    assert [(r.partition, r.offset, r.value) for r in topic.records()] == [
        (0, 0, b"0"),
        (0, 1, b"3"),
        (0, 2, b"6"),
        (1, 0, b"1"),
        (1, 1, b"4"),
        (2, 0, b"2"),
        (2, 1, b"5"),
    ]
    assert [r.value for r in topic.records(partition=1)] == [b"1", b"4"]


def test_keys_go_where_librdkafka_puts_them(broker: Broker) -> None:
    topic = broker.create_topic("t", 5)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "partitioner": "murmur2_random"})
    for number in range(20):
        topic.produce("ours", key=str(number))
        producer.produce("t", b"theirs", str(number).encode())
    assert producer.flush(PATIENCE_S) == 0
    partitions: dict[bytes | None, set[int]] = {}
    for record in topic.records():
        partitions.setdefault(record.key, set()).add(record.partition)
    assert len(partitions) == 20
    assert {len(found) for found in partitions.values()} == {1}


def test_many_segments_and_batches_are_read_to_the_end(broker: Broker) -> None:
    topic = broker.create_topic("t", 1, {"segment.bytes": 1_048_576})
    for number in range(30):
        topic.produce(b"%03d" % number + bytes(100_000))
    assert [int(record.value[:3]) for record in topic.records() if record.value] == list(range(30))


def test_deleted_records_are_not_there(broker: Broker) -> None:
    topic = broker.create_topic("t")
    for number in range(3):
        topic.produce(str(number))

    async def delete() -> None:
        broker.server.replicas.delete_records(broker.server.replicas.partition_or_error("t", 0), 2)

    broker.call(delete())
    assert [record.offset for record in topic.records()] == [2]


def test_the_brokers_timestamps_where_the_topic_wants_them(broker: Broker) -> None:
    topic = broker.create_topic("t", 1, {"message.timestamp.type": "LogAppendTime"})
    produced = topic.produce("v", timestamp=5)
    assert produced.timestamp == topic.records()[0].timestamp > 1_700_000_000_000


def test_produce_refuses_invalid_records(broker: Broker) -> None:
    topic = broker.create_topic("t", 1, {"max.message.bytes": 100})
    with pytest.raises(ApiError, match="MESSAGE_TOO_LARGE"):
        topic.produce(bytes(200))
    with pytest.raises(ApiError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        topic.produce("v", partition=1)
    assert topic.records() == []


def test_waiting_for_records_of_a_topic_that_is_not_there_yet(broker: Broker) -> None:
    def write() -> None:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for number in range(3):
            producer.produce("later", str(number))
            producer.flush(PATIENCE_S)

    writer = threading.Thread(target=write)
    writer.start()
    records = broker.topic("later").wait_records(3, timeout=PATIENCE_S)
    writer.join()
    assert [record.value for record in records] == [b"0", b"1", b"2"]


def test_waiting_in_vain(broker: Broker) -> None:
    with pytest.raises(TimeoutError, match="holds 0 records, not 1"):
        broker.topic("t").wait_records(1, timeout=0.05)
    broker.create_topic("t").produce("v")
    with pytest.raises(TimeoutError, match=r"after 0\.05 s topic t holds 1 records, not 2"):
        broker.topic("t").wait_records(2, timeout=0.05)


@pytest.mark.parametrize("how", ["produce", "delete_topic", "reset"])
def test_a_timeout_names_the_records_at_its_end(broker: Broker, how: str) -> None:
    """And not what there was when the wait began."""

    def told_after(timeout_s: int) -> list[str] | None:
        """The text of the error, unless it came before anything had happened."""
        topic = broker.create_topic("t")
        topic.produce("before")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(topic.wait_records, 3, timeout=timeout_s)
            await_waiter(broker)
            if how == "produce":
                topic.produce("meanwhile")
            elif how == "delete_topic":
                broker.delete_topic("t")
            else:
                broker.reset()
            is_in_time = not waiting.done()
            with pytest.raises(TimeoutError) as error:
                waiting.result()
        if is_in_time:
            return str(error.value).splitlines()
        if how == "produce":
            broker.delete_topic("t")
        return None

    timeout_s, told = 1, None
    while told is None:  # each time a busy machine has more of it
        timeout_s *= 2
        told = told_after(timeout_s)
    assert told[0] == f"after {timeout_s} s topic t holds {2 if how == 'produce' else 0} records, not 3"
    assert ("  t-0 offset 1: key None, value b'meanwhile'" in told) == (how == "produce")
    assert ("  t-0 offset 0: key None, value b'before'" in told) == (how == "produce")


def transactional_producer(broker: Broker) -> Producer:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "tx", "log_level": 0})
    producer.init_transactions(PATIENCE_S)
    return producer


def write_in_transactions(producer: Producer, count: int) -> None:
    """One record each, so that every other offset is a marker's."""
    for number in range(count):
        producer.begin_transaction()
        producer.produce("t", str(number))
        producer.commit_transaction(PATIENCE_S)


def await_waiter(broker: Broker) -> None:
    """Return when somebody has looked at a topic and waits for it to change."""
    wait_until(lambda: waiters(broker), "somebody who waits")


def waiters(broker: Broker) -> list[object]:
    """The waiters for changes of topics, except for parts of the broker."""
    listeners = list(broker.server.metadata.listeners)
    return [each for each in listeners if isinstance(getattr(each, "__self__", None), asyncio.Event)]


def test_markers_do_not_count(broker: Broker) -> None:
    topic = broker.create_topic("t")
    producer = transactional_producer(broker)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(topic.wait_records, 12)
        write_in_transactions(producer, 12)
        assert [record.value for record in waiting.result()] == [b"%d" % number for number in range(12)]
    with pytest.raises(TimeoutError, match="holds 12 records, not 13"):
        topic.wait_records(13, timeout=0.05)


def test_waiting_while_a_topic_is_made_anew(broker: Broker) -> None:
    topic = broker.create_topic("t")
    write_in_transactions(transactional_producer(broker), 10)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(topic.wait_records, 11, timeout=PATIENCE_S)
        await_waiter(broker)
        broker.delete_topic("t")
        broker.create_topic("t")
        for _ in range(12):
            topic.produce("new")
        records = waiting.result()
    assert {record.value for record in records} == {b"new"}
    assert len(records) >= 11


def test_markers_do_not_put_off_the_timeout(broker: Broker) -> None:
    topic = broker.create_topic("t")
    producer = transactional_producer(broker)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(topic.wait_records, 1, timeout=0.5)  # Real time: in vain
        given_up_at = time.monotonic() + PATIENCE_S
        while not waiting.done() and time.monotonic() < given_up_at:
            producer.begin_transaction()
            producer.produce("t", "v")
            producer.flush(PATIENCE_S)
            producer.abort_transaction(PATIENCE_S)
        assert waiting.done(), "it still waits"
        with pytest.raises(TimeoutError, match=r"after 0\.5 s topic t holds 0 records, not 1"):
            waiting.result()


def test_compacted_offsets_do_not_count() -> None:
    with Broker(log_cleaner_backoff_ms=1_000) as broker:
        topic = broker.create_topic(
            "t", 1, {"cleanup.policy": "compact", "segment.ms": 60_000, "min.cleanable.dirty.ratio": 0}
        )
        for number in range(20):
            topic.produce(str(number), key="k")
        broker.clock.advance(timedelta(minutes=2))
        topic.produce("the next segment", key="l")
        broker.clock.advance(timedelta(minutes=2))
        assert [record.offset for record in topic.records()] == [19, 20]
        with pytest.raises(TimeoutError, match="holds 2 records, not 3"):
            topic.wait_records(3, timeout=0.05)
        topic.produce("one more", key="m")
        assert [record.offset for record in topic.wait_records(3)] == [19, 20, 21]


def test_waiting_on_an_event_loop(broker: Broker) -> None:
    topic = broker.create_topic("t")

    async def wait() -> None:
        with pytest.raises(RuntimeError, match="await wait_records_async"):
            topic.wait_records(1)
        waiting = asyncio.create_task(topic.wait_records_async(1))
        await asyncio.sleep(0)
        await asyncio.to_thread(topic.produce, "v")
        assert [record.value for record in await waiting] == [b"v"]

    asyncio.run(wait())


def test_a_wait_on_an_event_loop_can_be_cancelled(broker: Broker) -> None:
    async def wait() -> None:
        waiting = asyncio.create_task(broker.topic("t").wait_records_async(1))
        await asyncio.to_thread(await_waiter, broker)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await asyncio.to_thread(found) == [], "the broker goes on waiting for nobody"

    def found() -> list[object]:
        async def find() -> list[object]:
            return waiters(broker)

        return broker.call(find())

    asyncio.run(wait())


def test_waiting_on_an_event_loop_ends_with_the_broker(broker: Broker) -> None:
    async def wait() -> None:
        waiting = asyncio.create_task(broker.topic("t").wait_records_async(1))
        await asyncio.to_thread(await_waiter, broker)
        await asyncio.to_thread(broker.stop)
        with pytest.raises(RuntimeError, match="stopped"):
            await waiting

    asyncio.run(wait())


def test_threads_share_a_handle(broker: Broker) -> None:
    topic = broker.create_topic("t", 4)
    writers = [threading.Thread(target=lambda: [topic.produce("v") for _ in range(50)]) for _ in range(4)]
    for writer in writers:
        writer.start()
    assert len(topic.wait_records(200)) == 200
    for writer in writers:
        writer.join()
    assert broker.topic("t") is topic
    assert str(topic) == "t"


def test_aborted_and_control_batches_are_left_out() -> None:
    aborted, committed = 1, 2

    def data(producer_id: int, offset: int, value: bytes, *, transactional: bool = True) -> bytearray:
        record = BatchRecord(offset, 0, None, value)
        return build_batch([record], base_offset=offset, producer_id=producer_id, transactional=transactional)

    def marker(producer_id: int, offset: int, outcome: ControlRecordType) -> bytearray:
        return build_end_txn_marker(
            EndTxnMarker(outcome, 0), producer_id=producer_id, producer_epoch=0, timestamp_ms=0, base_offset=offset
        )

    buffer = b"".join(
        [
            data(aborted, 0, b"before"),
            marker(aborted, 1, ControlRecordType.COMMIT),
            data(aborted, 2, b"aborted"),
            data(committed, 3, b"between"),
            data(-1, 4, b"plain", transactional=False),
            marker(aborted, 5, ControlRecordType.ABORT),
            data(aborted, 6, b"after"),
            marker(committed, 7, ControlRecordType.COMMIT),
            marker(aborted, 8, ControlRecordType.COMMIT),
        ]
    )
    is_included = CommittedBatches([(aborted, 2)]).includes(buffer)
    kept = [record.value for h in iter_headers(buffer) if is_included(h) for record in iter_records(buffer, h)]
    assert kept == [b"before", b"between", b"plain", b"after"]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"value": {"a": 1}}, r"a value is to be text, bytes or None, not \{'a': 1\} \(dict\): serialize it"),
        ({"value": 1}, r"a value is to be .* not 1 \(int\)"),
        ({"value": "v", "key": 2.5}, r"a key is to be .* not 2.5 \(float\)"),
        ({"value": "v", "headers": {"h": 1}}, r"header h is to be .* not 1 \(int\)"),
        ({"value": "v", "headers": {1: "v"}}, "the name of a header is to be text, not 1"),
        ({"value": "v", "headers": "text"}, "headers are to be names and values, as a dict or in pairs, not 'text'"),
        ({"value": "v", "headers": [("h",)]}, "headers are to be names and values"),
    ],
)
def test_an_object_that_is_no_record_is_refused(broker: Broker, wrong: dict[str, Any], told: str) -> None:
    topic = broker.create_topic("t")
    with pytest.raises(TypeError, match=told):
        topic.produce(**wrong)
    assert topic.records() == []


@pytest.mark.parametrize(
    ("timestamp", "kind"), [(1.5, TypeError), ("1", TypeError), (True, TypeError), (2**63, ValueError)]
)
def test_a_timestamp_is_a_number_of_ms(broker: Broker, timestamp: Any, kind: type[Exception]) -> None:
    topic = broker.create_topic("t")
    with pytest.raises(kind, match=r"^timestamp is .* ms since 1970.* not '?(1|True|9)"):
        topic.produce("v", timestamp=timestamp)
    assert topic.records() == []


def test_a_partition_that_is_not_there_is_told(broker: Broker) -> None:
    topic = broker.create_topic("orders", partitions=2)
    for use in (
        lambda: topic.records(9),
        lambda: topic.produce("v", partition=9),
        lambda: topic.delete_records(partition=9),
        lambda: broker.faults.hang_transaction("orders", 9),
        lambda: broker.faults.age_records("orders", 1, 9),
    ):
        with pytest.raises(ApiError, match=r"PARTITION: topic orders has the partitions 0 to 1, not 9$"):
            use()
    for use in (
        lambda: broker.topic("nope").records(0),
        lambda: broker.topic("nope").produce("v", partition=0),
        lambda: broker.faults.hang_transaction("nope"),
    ):
        with pytest.raises(ApiError, match=r"PARTITION: there is no topic nope$"):
            use()


@pytest.mark.parametrize("count", ["3", 1.5, None])
def test_a_count_is_a_number(broker: Broker, count: Any) -> None:
    topic = broker.create_topic("t")
    with pytest.raises(TypeError, match=r"^count is a whole number, not "):
        topic.wait_records(count)
    with pytest.raises(TypeError, match=r"^count is a whole number, not "):
        asyncio.run(topic.wait_records_async(count))


def test_bytes_of_all_kinds_are_bytes(broker: Broker) -> None:
    topic = broker.create_topic("t")
    for value in (bytearray(b"v"), memoryview(b"v")):
        assert topic.produce(value).value == b"v"
