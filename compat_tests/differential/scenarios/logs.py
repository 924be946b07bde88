"""Produce, Fetch, ListOffsets, OffsetForLeaderEpoch, DeleteRecords, DescribeProducers."""

import struct
import time
from collections.abc import Callable

from crc32c import crc32c

from barnabas.wire.compression import CompressionType
from barnabas.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from barnabas.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from barnabas.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.record_batch import TimestampType
from compat_tests.differential.run import Build, Run, Side
from compat_tests.differential.values import UNKNOWN_SESSION_ID, UNKNOWN_TOPIC_ID
from compat_tests.semantics.client import batch_of, fetch_request, produce_request

PRODUCE, FETCH = 0, 1
BY_NAME, BY_ID = 12, 13
HOUR_MS = 3_600_000


def both_ways(build: Callable[[str | bytes], object], topic: str) -> tuple[Build, Build]:
    """A request that names a topic by its name, and the same by its id, for the versions that do."""
    return build(topic), lambda side: build(side.topic_id(topic))  # type: ignore[return-value]


def resealed(batch: bytearray) -> bytearray:
    """The batch with a checksum that fits what was done to it."""
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return batch


def changed(position: int, layout: str, value: int, *, seal: bool = True, count: int = 2) -> bytearray:
    """A batch with one header field replaced."""
    batch = batch_of([b"a"] * count)
    struct.pack_into(layout, batch, position, value)
    return resealed(batch) if seal else batch


def produce_versions(run: Run) -> None:
    topic = run.create_topic(partitions=2)
    for acks in (1, -1, 2, -2, 32767):
        by_name, by_id = both_ways(lambda t, a=acks: produce_request(t, batch_of([b"x", b"y"]), acks=a), topic)  # type: ignore[misc]
        run.sweep(by_name)
        run.sweep(by_id, versions=(13,))
    for partition in (1, 2, -1, 2**31 - 1):
        by_name, by_id = both_ways(lambda t, p=partition: produce_request(t, batch_of([b"z"]), partition=p), topic)  # type: ignore[misc]
        run.sweep(by_name)
        run.sweep(by_id, versions=(13,))
    run.sweep(produce_request("no-such", batch_of([b"z"])), produce_request("a b", batch_of([b"z"])))
    run.sweep(produce_request("", batch_of([b"z"])), produce_request("__consumer_offsets", batch_of([b"z"])))
    run.sweep(produce_request(UNKNOWN_TOPIC_ID, batch_of([b"z"])), produce_request(bytes(16), batch_of([b"z"])))
    run.sweep(ProduceRequest(acks=-1, timeout_ms=1000), ProduceRequest(acks=7, timeout_ms=1000))
    run.sweep(ProduceRequest(acks=1, topic_data=[TopicProduceData(name=topic)]))
    run.sweep(
        produce_request(topic, batch_of([b"t"]), timeout_ms=0), produce_request(topic, batch_of([b"t"]), timeout_ms=-1)
    )
    run.sweep(ProduceRequest(acks=-1, timeout_ms=1000, transactional_id="tx"))


def produce_mixed(run: Run) -> None:
    """Good and bad partitions in one request; partitions and topics named twice."""
    topic, other = run.create_topic("a", partitions=2), run.create_topic("b")

    def mixed(*named: tuple[str, list[tuple[int, object]]]) -> ProduceRequest:
        return ProduceRequest(
            acks=-1,
            timeout_ms=10_000,
            topic_data=[
                TopicProduceData(
                    name=name,
                    partition_data=[
                        PartitionProduceData(index=index, records=records) for index, records in partitions
                    ],
                )
                for name, partitions in named
            ],
        )

    good, bad = batch_of([b"good"]), changed(17, ">I", 1, seal=False)
    run.sweep(
        mixed((topic, [(0, good), (1, bad), (5, good)]), (other, [(0, good)])),
        mixed((topic, [(1, good)]), ("no-such", [(0, good), (1, bad)]), ("a b", [(0, good)])),
        mixed((topic, [(1, bytes(9)), (0, b"")]), (other, [(0, good)])),
        mixed((other, [(0, b"\x00" * 10)]), (topic, [(0, good)])),
        versions=(3, 7, 8, 12),
    )


def produce_bad_batches(run: Run) -> None:
    """Every header field wrong in turn; records that are not what the header says are asked elsewhere."""
    topic = run.create_topic()
    batches: list[object] = [b"", bytes(5), bytes(61), b"\xff" * 80]
    good = batch_of([b"a", b"b"])
    batches += [bytes(good[:size]) for size in (11, 12, 16, 17, 30, 60, 61, len(good) - 1)]
    batches += [good + good, good + b"\x00", good + good[:20], good + bytes(20), good + good[:-1]]
    batches += [changed(0, ">q", value) for value in (1, 5, -1, 2**62)]
    batches += [changed(8, ">i", value, seal=False) for value in (-1, 0, 13, 14, 48, 49, 60, 2**31 - 1)]
    batches += [changed(12, ">i", value) for value in (0, -1, 7, 2**31 - 1)]
    batches += [changed(16, ">b", value, seal=False) for value in (0, 1, 3, -1, 127)]
    batches += [changed(17, ">I", value, seal=False) for value in (0, 1, 2**32 - 1)]
    batches += [changed(21, ">h", value) for value in (5, 6, 7, 8, 32, 64, 128, 256, 0x4000)]
    batches += [changed(23, ">i", value) for value in (0, 2, -1, 100, 2**31 - 1)]
    batches += [changed(35, ">q", value) for value in (-1, 0)]
    batches += [changed(43, ">q", value) for value in (-2, -5)]
    batches += [changed(51, ">h", value) for value in (0, 5, -5)]
    batches += [changed(53, ">i", value) for value in (0, 5, -5)]
    batches += [changed(57, ">i", value) for value in (0, -1, 1, 3, 2**31 - 1)]
    for version in (3, 6, 7, 8, 9, 12):
        run.sweep(*(produce_request(topic, batch) for batch in batches), versions=(version,))
    run.ask(produce_request(topic, None), 9)
    run.ask(fetch_request([(topic, 0, 0)]), 12)


def produce_codecs(run: Run) -> None:
    """Every codec into topics that keep it, and into topics with a codec of their own."""
    for target in ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"):
        topic = run.create_topic(target, compression_type=target)
        for codec in CompressionType:
            batch = batch_of([b"v" * 100] * 3, keys=[b"k"] * 3, compression=codec)
            for version in (6, 7, 12):
                run.ask(produce_request(topic, batch), version)
        if target in ("producer", "uncompressed"):
            run.ask(fetch_request([(topic, 0, 0)]), 12)


def produce_compacted(run: Run) -> None:
    topic = run.create_topic(cleanup_policy="compact")
    for keys in ([b"k", b"k"], [None, b"k"], [b"k", None], [None, None], [b"", b""]):
        for codec in (CompressionType.NONE, CompressionType.GZIP):
            batch = batch_of([b"v", None], keys=keys, compression=codec)
            run.sweep(produce_request(topic, batch), versions=(3, 7, 8, 9, 12))
    run.ask(fetch_request([(topic, 0, 0)]), 12)


def produce_append_time(run: Run) -> None:
    topic = run.create_topic(message_timestamp_type="LogAppendTime")
    for codec in (CompressionType.NONE, CompressionType.ZSTD):
        run.sweep(produce_request(topic, batch_of([b"v", b"w"], compression=codec)), versions=(3, 7, 8, 12))
        own = batch_of([b"v", b"w"], compression=codec, timestamp_type=TimestampType.LOG_APPEND_TIME)
        run.sweep(produce_request(topic, own), versions=(3, 8, 12))
    run.ask(fetch_request([(topic, 0, 0)]), 12)
    topic = run.create_topic("create")
    own = batch_of([b"v", b"w"], timestamp_type=TimestampType.LOG_APPEND_TIME)
    run.sweep(produce_request(topic, own), versions=(3, 8, 12))


def produce_timestamps(run: Run) -> None:
    now_ms = int(time.time()) * 1000  # noqa: TID251 - the brokers look at the real clock
    topic = run.create_topic()
    strict = run.create_topic("strict", message_timestamp_before_max_ms="1000", message_timestamp_after_max_ms="2000")
    for timestamp in (-1, 0, 1, now_ms, now_ms - 30_000, now_ms + 30_000, now_ms + 2 * HOUR_MS, 2**62):
        batch = batch_of([b"v"], timestamps=[timestamp])
        run.sweep(produce_request(topic, batch), versions=(7, 8, 12))
        run.sweep(produce_request(strict, batch), versions=(7, 8, 12))
    mixed = batch_of([b"v"] * 3, timestamps=[now_ms, 0, now_ms + 2 * HOUR_MS])
    run.sweep(produce_request(strict, mixed), produce_request(topic, mixed), versions=(7, 8, 12))


def produce_sizes(run: Run) -> None:
    topic = run.create_topic(max_message_bytes="1000")
    base = len(batch_of([b""]))
    for size in (900, 1000 - base - 2, 1000 - base - 1, 1000 - base, 1000, 5000):
        run.sweep(produce_request(topic, batch_of([b"x" * size])), versions=(7, 12))
    packed = batch_of([b"x" * 5000], compression=CompressionType.GZIP)
    run.sweep(produce_request(topic, packed), versions=(7, 12))
    small = run.create_topic("segment", segment_bytes="1048576", max_message_bytes="5000000")
    run.sweep(produce_request(small, batch_of([b"x" * 1_048_600])), versions=(12,))
    run.sweep(produce_request(small, batch_of([b"x" * 1_000_000])), versions=(12,))


def produce_without_answer(run: Run) -> None:
    """acks=0: nothing comes back, and what fails closes the connection."""
    topic = run.create_topic()
    for records in (batch_of([b"x"]), b"", bytes(30), changed(17, ">I", 1, seal=False), changed(16, ">b", 1)):
        for version in (3, 8, 12):
            run.send_unanswered(produce_request(topic, records, acks=0), version)
    for name in ("no-such", "a b", "__consumer_offsets"):
        run.send_unanswered(produce_request(name, batch_of([b"x"]), acks=0), 12)
    run.send_unanswered(produce_request(topic, batch_of([b"x"]), acks=0, partition=9), 12)
    run.send_unanswered(ProduceRequest(acks=0, timeout_ms=1), 12)
    run.ask(fetch_request([(topic, 0, 0)]), 12)


def idempotent_producers(run: Run) -> None:
    """Sequences, epochs, duplicates; what the leader remembers of them."""
    topic = run.create_topic(partitions=2)
    run.ask(InitProducerIdRequest(transactional_id=None), 4)
    for side in run.sides:
        side.ids["producer"] = side.last.producer_id

    def batch(sequence: int, epoch: int = 0, count: int = 2, own: int | None = None, partition: int = 0) -> Build:
        def build(side: Side) -> ProduceRequest:
            records = batch_of(
                [b"x"] * count,
                producer_id=side.ids["producer"] if own is None else own,
                producer_epoch=epoch,
                base_sequence=sequence,
            )
            return produce_request(topic, records, partition=partition)

        return build

    described = DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=[0, 1])])
    for version in (3, 8, 9, 12):
        start = (version * 100) % 1000
        run.ask(batch(0, epoch=version), version)
        for sequence in (2, 4, 6, 8, 10, 12):
            run.ask(batch(sequence, epoch=version), version)
        for sequence in (12, 4, 2, 0, 13, 15, 20, -1, start):
            run.ask(batch(sequence, epoch=version), version)
        run.ask(batch(12, epoch=version, count=1), version)
        run.ask(batch(12, epoch=version, count=3), version)
        run.ask(batch(0, epoch=version - 1), version)
        run.ask(batch(5, epoch=version + 100, partition=1), version)
        run.ask(batch(14, epoch=version), version)
        run.ask(described, 0)
    for own, epoch, sequence in (
        (900_001, 0, 0), (900_002, 5, 7), (900_003, 0, 5), (900_004, 32767, 2**31 - 2), (900_004, 32767, 0),
        (900_004, 32767, 1), (900_005, -1, 0), (900_006, 0, -1), (0, 0, 0), (-2, 0, 0), (-1, 0, 0), (-1, -1, 0),
    ):  # fmt: skip
        run.ask(batch(sequence, epoch=epoch, own=own), 9)
    run.ask(described, 0)


def transactional_batches(run: Run) -> None:
    topic = run.create_topic()
    transactional = batch_of([b"x"], producer_id=900_010, producer_epoch=0, base_sequence=0, transactional=True)
    run.sweep(produce_request(topic, transactional), versions=(3, 9, 12))


def describe_producers(run: Run) -> None:
    topic = run.create_topic()
    for name in (topic, "no-such", "a b", "", "x" * 250, "__consumer_offsets"):
        for partitions in ([0], [], [1], [-1], [0, 0], [0, 7]):
            run.ask(DescribeProducersRequest(topics=[TopicRequest(name=name, partition_indexes=partitions)]), 0)
    run.ask(DescribeProducersRequest(), 0)


def filled(run: Run, suffix: str = "t", **configs: str) -> str:
    """A topic of two partitions; the first has ten batches of three records."""
    topic = run.create_topic(suffix, partitions=2, **configs)
    for number in range(10):
        batch = batch_of([b"%d" % number] * 3, timestamps=[1_000_000 + number * 1000 + i for i in range(3)])
        run.ask(produce_request(topic, batch), 9)
    return topic


def fetch_versions(run: Run) -> None:
    topic = filled(run)
    for offset in (0, 1, 29, 30, 31, -1, -2, 2**62):
        for by in both_ways(lambda t, o=offset: fetch_request([(t, 0, o)]), topic):  # type: ignore[misc]
            run.sweep(by)
    for partition in (1, 2, -1):
        for by in both_ways(lambda t, p=partition: fetch_request([(t, p, 0)]), topic):  # type: ignore[misc]
            run.sweep(by)
    run.sweep(fetch_request([("no-such", 0, 0)]), fetch_request([("a b", 0, 0)]), fetch_request([("", 0, 0)]))
    run.sweep(fetch_request([(UNKNOWN_TOPIC_ID, 0, 0)]), fetch_request([(bytes(16), 0, 0)]))
    run.sweep(fetch_request([(topic, 1, 0), ("no-such", 0, 0), (topic, 0, 28)]))
    run.sweep(fetch_request([]))


def fetch_limits(run: Run) -> None:
    topic = filled(run)
    size = len(batch_of([b"0"] * 3))
    for limit in (0, 1, size - 1, size, size + 1, 2 * size, -1, 2**31 - 1):
        run.sweep(fetch_request([(topic, 0, 4)], partition_max_bytes=limit), versions=(4, 7, 12))
        run.sweep(fetch_request([(topic, 0, 4)], max_bytes=limit), versions=(4, 7, 12))
        run.sweep(fetch_request([(topic, 0, 4)], max_bytes=limit, partition_max_bytes=limit), versions=(12,))
    run.sweep(fetch_request([(topic, 0, 0), (topic, 1, 0)], max_bytes=1), versions=(4, 12))
    for wait_ms, min_bytes in ((0, 10**6), (50, 10**6), (-1, 1), (100, 0), (100, -1)):
        run.sweep(fetch_request([(topic, 0, 30)], max_wait_ms=wait_ms, min_bytes=min_bytes), versions=(4, 12))
        run.sweep(fetch_request([(topic, 0, 0)], max_wait_ms=wait_ms, min_bytes=min_bytes), versions=(4, 12))
    for isolation in (0, 1, 2, -1, 127):
        run.sweep(fetch_request([(topic, 0, 28)], isolation_level=isolation), versions=(4, 11, 12))


def fetch_epochs(run: Run) -> None:
    topic = filled(run)
    for epoch in (-1, 0, 1, 5, -2, 2**31 - 1):
        for by in both_ways(lambda t, e=epoch: fetch_request([(t, 0, 28)], current_leader_epoch=e), topic):  # type: ignore[misc]
            run.sweep(by, versions=(9, 12, 13, 15, 16, 17))
    for epoch in (0, 1, 5, -2):
        for offset in (28, 30, 31, 0):
            run.sweep(fetch_request([(topic, 0, offset)], last_fetched_epoch=epoch), versions=(12,))
    for replica in (-1, 1, 5, -2, -3):
        request = fetch_request([(topic, 0, 28)])
        request.replica_id = replica
        run.sweep(request, versions=(4, 12))
    request = fetch_request([(topic, 0, 28)])
    request.cluster_id = "another"
    run.sweep(request, versions=(12,))
    request = fetch_request([(topic, 0, 28)])
    request.rack_id = "rack"
    run.sweep(request, versions=(11, 12))


def fetch_twice_the_same(run: Run) -> None:
    """Partitions and topics that a request names twice."""
    topic = filled(run)

    def named(*offsets: int) -> FetchRequest:
        partitions = [
            FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=10_000) for offset in offsets
        ]
        return FetchRequest(max_bytes=10**6, topics=[FetchTopic(topic=topic, partitions=partitions)], session_epoch=-1)

    run.sweep(named(29, 29), named(28, 29), versions=(4, 7, 12))
    run.sweep(fetch_request([(topic, 0, 29), (topic, 0, 28)]), versions=(4, 7, 12))


def fetch_sessions(run: Run) -> None:
    """Sessions at their first and last versions by name, and by id."""
    topic = filled(run)
    for version in (7, 9, 12, 13, 15, 17):

        def ask(
            *positions: tuple[str, int, int],
            epoch: int,
            session: int | None = None,
            forgotten: tuple[tuple[str, int], ...] = (),
            version: int = version,
        ) -> None:
            def build(side: Side) -> FetchRequest:
                def named(name: str) -> str | bytes:
                    if version < BY_ID:
                        return name
                    return side.topic_id(name) if name in side.ids else UNKNOWN_TOPIC_ID

                number = side.ids.get("session", 0) if session is None else session
                return fetch_request(
                    [(named(name), partition, offset) for name, partition, offset in positions],
                    session=(number, epoch),
                    forgotten=[(named(name), partition) for name, partition in forgotten],
                )

            run.ask(build, version)
            for side in run.sides:
                if side.last is not None and side.last.session_id:
                    side.ids["session"] = side.last.session_id

        ask((topic, 0, 27), (topic, 1, 0), epoch=0, session=0)
        ask(epoch=1)
        ask((topic, 0, 30), epoch=2)
        ask(epoch=3)
        ask(epoch=3)  # an epoch that is over
        ask(epoch=9)
        ask((topic, 0, 99), epoch=4)
        ask(epoch=5)
        ask((topic, 0, 29), epoch=6, forgotten=((topic, 1),))
        ask(epoch=7, forgotten=((topic, 0), (topic, 7), ("no-such", 0)))
        ask(epoch=8)
        ask((topic, 0, 28), ("no-such", 0, 0), epoch=9)
        ask(epoch=10)
        ask(epoch=-1)
        ask(epoch=11)
        ask((topic, 0, 29), epoch=0)
        ask((topic, 0, 29), epoch=1, session=UNKNOWN_SESSION_ID)
        ask((topic, 0, 29), epoch=5, session=0)
        ask((topic, 0, 29), epoch=-2, session=0)
        ask((topic, 0, 29), epoch=-1, session=0)


def list_offsets(run: Run) -> None:
    topic = filled(run)

    def asking(timestamp: int, name: str = topic, partition: int = 0, epoch: int = -1) -> ListOffsetsRequest:
        asked = ListOffsetsPartition(partition_index=partition, timestamp=timestamp, current_leader_epoch=epoch)
        return ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=name, partitions=[asked])])

    for timestamp in (-1, -2, -3, -4, -5, -6, -7, -100, 0, 1, 1_000_001, 1_004_002, 1_009_002, 1_009_003, 2**62):
        run.sweep(asking(timestamp), versions=range(1, 10))
    for timestamp in (-1, -2, -3, -4, -5, 0, 5_000_000):
        run.sweep(asking(timestamp, partition=1), versions=(1, 4, 7, 8, 9))
        for isolation in (1, 2, -1):
            request = asking(timestamp)
            request.isolation_level = isolation
            run.sweep(request, versions=range(2, 10))
        for replica in (-2, -3, 0, 1, 7):
            request = asking(timestamp)
            request.replica_id = replica
            run.sweep(request, versions=(1, 5, 9))
    for epoch in (0, 1, -2, 5):
        run.sweep(asking(-1, epoch=epoch), asking(1_004_002, epoch=epoch), versions=(4, 5, 9))
    for name, partition in (("no-such", 0), ("a b", 0), ("", 0), (topic, 2), (topic, -1), ("__consumer_offsets", 0)):
        run.sweep(asking(-1, name=name, partition=partition), versions=(1, 4, 9))


def list_offsets_mixed(run: Run) -> None:
    topic = filled(run)

    def several(*asked: tuple[str, int, int]) -> ListOffsetsRequest:
        return ListOffsetsRequest(
            replica_id=-1,
            topics=[
                ListOffsetsTopic(
                    name=name, partitions=[ListOffsetsPartition(partition_index=partition, timestamp=timestamp)]
                )
                for name, partition, timestamp in asked
            ],
        )

    run.sweep(
        several((topic, 0, -1), (topic, 1, -2), ("no-such", 0, -1)),
        several((topic, 0, -1), (topic, 0, -2)),
        several((topic, 0, -1), (topic, 0, -1), (topic, 1, -1)),
        several((topic, 0, -9), (topic, 1, -1)),
        several(),
        several(("no-such", 0, -1), ("no-such", 0, -2)),
    )


def list_offsets_after_time_travel(run: Run) -> None:
    """Times that do not grow with the offsets; append times; compressed batches."""
    topic = run.create_topic()
    for timestamps in ([500, 100, 300], [200, 900, 50], [900, 900, 1], [-1, -1, -1], [1, 2, 3]):
        run.ask(produce_request(topic, batch_of([b"x"] * 3, timestamps=timestamps, compression=CompressionType.LZ4)), 9)
    for timestamp in (-3, 0, 1, 2, 50, 100, 101, 300, 301, 500, 501, 900, 901):
        request = ListOffsetsRequest(
            replica_id=-1,
            topics=[
                ListOffsetsTopic(name=topic, partitions=[ListOffsetsPartition(partition_index=0, timestamp=timestamp)])
            ],
        )
        run.sweep(request, versions=(1, 7, 9))


def offset_for_leader_epoch(run: Run) -> None:
    topic = filled(run)

    def asking(epoch: int, current: int = -1, name: str = topic, partition: int = 0) -> OffsetForLeaderEpochRequest:
        asked = OffsetForLeaderPartition(partition=partition, current_leader_epoch=current, leader_epoch=epoch)
        return OffsetForLeaderEpochRequest(replica_id=-1, topics=[OffsetForLeaderTopic(topic=name, partitions=[asked])])

    for epoch in (0, 1, 5, -1, -2, 2**31 - 1):
        for current in (-1, 0, 1, -2):
            run.sweep(asking(epoch, current))
        run.sweep(asking(epoch, partition=1))
    for name, partition in (("no-such", 0), ("a b", 0), ("", 0), (topic, 2), (topic, -1)):
        run.sweep(asking(0, name=name, partition=partition))
    for replica in (-2, 0, 1, 9):
        request = asking(0)
        request.replica_id = replica
        run.sweep(request)
    run.sweep(OffsetForLeaderEpochRequest(replica_id=-1))
    twice = asking(0)
    twice.topics += asking(1).topics
    run.sweep(twice)


def delete_records(run: Run) -> None:
    topic, compacted = filled(run), run.create_topic("compacted", cleanup_policy="compact")
    both = run.create_topic("both", cleanup_policy="compact,delete")

    def asking(offset: int, name: str = topic, partition: int = 0, timeout_ms: int = 5000) -> DeleteRecordsRequest:
        asked = DeleteRecordsPartition(partition_index=partition, offset=offset)
        return DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=name, partitions=[asked])], timeout_ms=timeout_ms)

    for offset in (0, 3, 4, 2, 31, -2, 2**62):
        run.sweep(asking(offset))
        run.ask(fetch_request([(topic, 0, 0)]), 4)
        run.ask(fetch_request([(topic, 0, 4)]), 12)
    for timeout_ms in (0, -1):
        run.sweep(asking(5, timeout_ms=timeout_ms))
    run.sweep(asking(-1))
    run.ask(fetch_request([(topic, 0, 30)]), 12)
    run.ask(produce_request(topic, batch_of([b"x"])), 9)
    for timestamp in (-1, -2, -3, 0):
        part = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        run.ask(ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[part])]), 7)
    for name, partition in (
        ("no-such", 0), ("a b", 0), ("", 0), (topic, 1), (topic, 2), (topic, -1), (compacted, 0), (both, 0),
        ("__consumer_offsets", 0), ("__consumer_offsets", 99),
    ):  # fmt: skip
        run.sweep(asking(0, name=name, partition=partition))
        run.sweep(asking(5, name=name, partition=partition))
    mixed = asking(0)
    mixed.topics += [*asking(0, name="no-such").topics, *asking(99, partition=1).topics]
    run.sweep(mixed, DeleteRecordsRequest(timeout_ms=1000))


SCENARIOS = (
    produce_versions,
    produce_mixed,
    produce_bad_batches,
    produce_codecs,
    produce_compacted,
    produce_append_time,
    produce_timestamps,
    produce_sizes,
    produce_without_answer,
    idempotent_producers,
    transactional_batches,
    describe_producers,
    fetch_versions,
    fetch_limits,
    fetch_epochs,
    fetch_twice_the_same,
    fetch_sessions,
    list_offsets,
    list_offsets_mixed,
    list_offsets_after_time_travel,
    offset_for_leader_epoch,
    delete_records,
)
