"""The log directory after the same appends on Barnabas and on Apache Kafka 3.9.1: what must be equal is.

Segments, transaction indexes, `partition.metadata` and leader-epoch files are equal byte for byte; offset and time
indexes, producer snapshots, checkpoints and `meta.properties` after parsing (preallocation, comments and the order of
entries are free). The mark of a clean stop tells an epoch, where 3.9.1 tells none. Three files may be there or not
(`MAY_DIFFER`).

Values that a broker draws or looks up by itself cannot be equal, and are masked: producer ids (a block of the metadata
store's counter), the time at which a coordinator wrote a marker, topic ids and the cluster's id. After a restart
leader epochs are masked, too: Barnabas elects every partition anew and raises its epoch, as Kafka 4 does; 3.9.1 finds
the leader alive and keeps it (docs/deviations/topics.md). Of the coordinators' own topics only the names of their files
are compared: their records depend on the time at which a coordinator was found (tests/wire/test_oracles.py compares
them).
"""

import json
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from barnabas.storage.checkpoints import decode_offsets
from barnabas.storage.producer_snapshot import decode_snapshot, encode_snapshot
from barnabas.wire.record_batch import CompressionType, crc_is_valid, iter_headers
from compat_tests.conftest import create_topic
from compat_tests.semantics.client import Connection, batch_of, produce_batch
from compat_tests.zookeeper.conftest import broker_on
from compat_tests.zookeeper.kafka_broker import KafkaOnZooKeeper
from compat_tests.zookeeper.waiting import topic_of
from tools.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.java

KEPT = {"retention.ms": "-1"}
"""Records are years old, and Kafka looks for such 30 s after its start, which a busy machine takes to fill the logs."""
SETTINGS = {**KEPT, "segment.bytes": "4096", "index.interval.bytes": "200", "file.delete.delay.ms": "0"}
PRODUCERS = (4_000_000, 4_000_001)
PARTITIONS = ("plain-0", "shortened-0", "transactional-0")
FIRST_BATCHES: Final = {"plain": 120, "shortened": 80}
"""How many are written before the restart; 40 come after it."""
LOG_START: Final = 150
"""Where the log `shortened` starts, in the middle of a batch and of a segment."""
CHECKPOINTS = ("recovery-point-offset-checkpoint", "replication-offset-checkpoint", "log-start-offset-checkpoint")

FIRST_STOP, SECOND_STOP = "first stop", "after a restart"

MAY_DIFFER: Final = {
    ".lock": "Kafka 3.9.1 deletes it at a clean stop; an empty file that says nothing without its lock",
    "barnabas-transaction-indexes": "sizes and checksums of transaction indexes, a file of our own that Kafka ignores",
    "barnabas-zookeeper-session": "the session for the next life to end, another file of our own that Kafka ignores",
    "cleaner-offset-checkpoint": "Kafka creates it empty at the start, Barnabas without entries",
}
"""Files of the log directory that only one of the two has, and why that is free."""

_LEADER_EPOCH = slice(12, 16)
_CRC = slice(17, 21)
_TIMESTAMPS = slice(27, 43)
_PRODUCER_ID = slice(43, 51)


def produced_batches() -> list[bytearray]:
    """Plain, compressed and idempotent batches, the same in every run."""
    chance = random.Random(20261121)
    sequences = dict.fromkeys(PRODUCERS, 0)
    batches = []
    for number in range(160):
        count = chance.randint(1, 6)
        values = [chance.randbytes(chance.randint(1, 120)) for _ in range(count)]
        # Timestamps that also go back, so that time indexes have something to leave out.
        start = 1_700_000_000_000 + number * 1000 - chance.choice((0, 0, 5_000))
        fields: dict[str, Any] = {"compression": chance.choice((CompressionType.NONE, CompressionType.GZIP))}
        if number % 3:
            producer_id = PRODUCERS[number % 2]
            fields |= {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequences[producer_id]}
            sequences[producer_id] += count
        batches.append(batch_of(values, timestamps=[start + index for index in range(count)], **fields))
    return batches


def produce(bootstrap_servers: str, topic: str, batches: list[bytearray]) -> None:
    with Connection(bootstrap_servers) as connection:
        for batch in batches:
            assert produce_batch(connection, topic, bytes(batch)).error_code == 0


def fill(bootstrap_servers: str) -> None:
    """The same appends: raw batches to two topics, one of which loses its first records, and a stock producer's
    transactions to the third."""
    from confluent_kafka import Producer, TopicPartition
    from confluent_kafka.admin import AdminClient

    create_topic(bootstrap_servers, "plain", 1, SETTINGS)
    create_topic(bootstrap_servers, "shortened", 1, SETTINGS)
    create_topic(bootstrap_servers, "transactional", 1, KEPT)
    for topic, count in FIRST_BATCHES.items():
        produce(bootstrap_servers, topic, produced_batches()[:count])
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    [deleted] = admin.delete_records([TopicPartition("shortened", 0, LOG_START)]).values()
    assert deleted.result(PATIENCE_S).low_watermark == LOG_START
    producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": "t", "linger.ms": 0})
    producer.init_transactions(PATIENCE_S)
    for number in range(6):
        producer.begin_transaction()
        producer.produce("transactional", b"x", timestamp=1_700_000_000_000 + number)
        producer.flush(PATIENCE_S)
        producer.abort_transaction(PATIENCE_S) if number % 2 else producer.commit_transaction(PATIENCE_S)


def fill_after_a_restart(bootstrap_servers: str) -> None:
    """Appends under the leaders' next epoch; the producers' sequences go on."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for topic, count in FIRST_BATCHES.items():
        wait_until(lambda topic=topic: topic_of(admin, topic))  # type: ignore[misc]
        produce(bootstrap_servers, topic, produced_batches()[count : count + 40])


Directories = tuple[Path, Path]
"""Ours, and Kafka's."""


@pytest.fixture(scope="module")
def stops(zookeeper: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Directories]:
    """Copies of the log directories after each of two clean stops."""
    folder = tmp_path_factory.mktemp("log-files")
    with broker_on(zookeeper, "/files/ours") as barnabas:
        fill_twice(barnabas, folder / "ours")
    with KafkaOnZooKeeper(zookeeper.address + "/files/theirs", folder / "kafka") as kafka:
        fill_twice(kafka, folder / "theirs")
    return {stop: (folder / "ours" / stop, folder / "theirs" / stop) for stop in (FIRST_STOP, SECOND_STOP)}


def fill_twice(broker: Any, copies: Path) -> None:
    fill(broker.bootstrap_servers)
    broker.stop()
    shutil.copytree(broker.log_dir, copies / FIRST_STOP)
    broker.start()
    fill_after_a_restart(broker.bootstrap_servers)
    broker.stop()
    shutil.copytree(broker.log_dir, copies / SECOND_STOP)


@pytest.fixture(params=[FIRST_STOP, SECOND_STOP])
def directories(request: pytest.FixtureRequest, stops: dict[str, Directories]) -> Directories:
    return stops[request.param]


def files_of(directory: Path, suffix: str, read: Callable[[bytes], Any] = bytes) -> dict[str, Any]:
    return {path.name: read(path.read_bytes()) for path in sorted(directory.glob(f"*{suffix}"))}


def entries(data: bytes, layout: str) -> list[tuple[int, ...]]:
    """An index's entries; Kafka's files may end in preallocated zeros, which no entry but the first can be."""
    size = struct.calcsize(layout)
    found = [struct.unpack_from(layout, data, position) for position in range(0, len(data) - size + 1, size)]
    while found and not any(found[-1]):
        found.pop()
    return found


def without_leader_epochs(segment: bytes) -> bytes:
    masked = bytearray(segment)
    for header in iter_headers(segment):
        memoryview(masked)[header.position :][_LEADER_EPOCH] = bytes(4)
    return bytes(masked)


def without_identity(segment: bytes) -> bytes:
    """A segment without producer ids and the times of markers, and so without checksums, which have to be right."""
    masked = bytearray(segment)
    for header in iter_headers(segment):
        assert crc_is_valid(segment, header)
        batch = memoryview(masked)[header.position :]
        batch[_CRC] = bytes(4)
        batch[_PRODUCER_ID] = bytes(8)
        if header.is_control:
            batch[_TIMESTAMPS] = bytes(16)
    return bytes(masked)


def snapshot_entries(data: bytes, *, mask: bool = False) -> list[bytes]:
    """A producer snapshot's entries; masked, without producer id and time, which is the last marker's."""
    producers = decode_snapshot(data)
    if mask:
        for producer in producers:
            producer.producer_id = producer.last_timestamp = 0
    return sorted(encode_snapshot([producer]) for producer in producers)


def test_there_are_the_same_files(directories: Directories) -> None:
    ours, theirs = (
        {str(path.relative_to(directory)) for path in directory.rglob("*")} - MAY_DIFFER.keys()
        for directory in directories
    )
    assert ours == theirs


@pytest.mark.parametrize("partition", ["plain-0", "shortened-0"])
def test_segments_are_equal_byte_for_byte(stops: dict[str, Directories], partition: str) -> None:
    ours, theirs = (files_of(directory / partition, ".log") for directory in stops[FIRST_STOP])
    assert len(ours) > 5
    assert ours == theirs


@pytest.mark.parametrize("partition", ["plain-0", "shortened-0"])
def test_segments_are_equal_after_a_restart(stops: dict[str, Directories], partition: str) -> None:
    """Only leader epochs differ."""
    ours, theirs = (files_of(path / partition, ".log", without_leader_epochs) for path in stops[SECOND_STOP])
    assert len(ours) > len(files_of(stops[FIRST_STOP][0] / partition, ".log"))
    assert ours == theirs


def test_segments_with_transactions_are_equal_byte_for_byte(directories: Directories) -> None:
    """Only identities differ."""
    ours, theirs = (files_of(directory / "transactional-0", ".log", without_identity) for directory in directories)
    assert sum(map(len, ours.values())) > 12 * 61
    assert ours == theirs


@pytest.mark.parametrize(("suffix", "layout"), [(".index", ">ii"), (".timeindex", ">qi")])
@pytest.mark.parametrize("partition", ["plain-0", "shortened-0"])
def test_indexes_are_equal_after_parsing(directories: Directories, partition: str, suffix: str, layout: str) -> None:
    ours, theirs = (
        files_of(directory / partition, suffix, lambda data: entries(data, layout)) for directory in directories
    )
    assert sum(map(len, ours.values())) > 20
    assert ours == theirs


def test_parsed_indexes_of_transactions_are_equal(
    directories: Directories,
) -> None:
    """Only the times of markers differ."""
    ours, theirs = (
        (
            files_of(directory / "transactional-0", ".index", lambda data: entries(data, ">ii")),
            files_of(directory / "transactional-0", ".timeindex", lambda data: [e[1] for e in entries(data, ">qi")]),
        )
        for directory in directories
    )
    assert ours[1]
    assert ours == theirs


@pytest.mark.parametrize("partition", PARTITIONS)
def test_producer_snapshots_are_equal_after_parsing(directories: Directories, partition: str) -> None:
    mask = partition == "transactional-0"
    ours, theirs = (
        files_of(directory / partition, ".snapshot", lambda data: snapshot_entries(data, mask=mask))
        for directory in directories
    )
    assert any(len(found) == (1 if mask else len(PRODUCERS)) for found in ours.values())
    assert ours == theirs


@pytest.mark.parametrize("partition", PARTITIONS)
def test_leader_epoch_files_are_equal_byte_for_byte(stops: dict[str, Directories], partition: str) -> None:
    ours, theirs = ((path / partition / "leader-epoch-checkpoint").read_bytes() for path in stops[FIRST_STOP])
    assert ours == theirs


@pytest.mark.parametrize("partition", PARTITIONS)
def test_partition_metadata_are_equal_byte_for_byte(directories: Directories, partition: str) -> None:
    """Only the topic id differs."""
    ours, theirs = ((directory / partition / "partition.metadata").read_bytes() for directory in directories)
    before, key, _ = ours.partition(b"topic_id: ")
    assert theirs.startswith(before + key)
    assert len(ours) == len(theirs)


def test_transaction_indexes_are_equal_byte_for_byte(directories: Directories) -> None:
    """An entry: version, producer id, first offset, last offset, last stable offset."""
    ours, theirs = (
        files_of(
            directory / "transactional-0",
            ".txnindex",
            lambda data: [entry[:1] + entry[2:] for entry in entries(data, ">hqqqq")],
        )
        for directory in directories
    )
    assert [len(found) for found in ours.values()] == [3]
    assert ours == theirs


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_checkpoints_are_equal_after_parsing(directories: Directories, name: str) -> None:
    ours, theirs = (
        {
            partition: offset
            for partition, offset in decode_offsets((directory / name).read_bytes()).items()
            if not partition[0].startswith("__")
        }
        for directory in directories
    )
    starts = name == "log-start-offset-checkpoint"
    assert ours.keys() == ({("shortened", 0)} if starts else {(p.removesuffix("-0"), 0) for p in PARTITIONS})
    assert ours == theirs
    assert not starts or ours == {("shortened", 0): LOG_START}


def test_parsed_meta_properties_are_equal(directories: Directories) -> None:
    """Only the cluster id differs."""
    ours, theirs = (
        dict(
            line.split("=", 1)
            for line in (directory / "meta.properties").read_text().splitlines()
            if not line.startswith("#")
        )
        for directory in directories
    )
    assert len(ours.pop("cluster.id")) == len(theirs.pop("cluster.id")) == 22
    assert ours == theirs == {"version": "0", "broker.id": "1"}


def test_the_mark_of_a_clean_stop_differs_in_the_epoch_only(directories: Directories) -> None:
    """Kafka 3.9.1 writes -1 with ZooKeeper, whatever its epoch is; in KRaft mode it writes the epoch.

    docs/deviations/zookeeper.md lists the difference.
    """
    ours, theirs = ((directory / ".kafka_cleanshutdown").read_bytes() for directory in directories)
    assert theirs == b'{"version":0,"brokerEpoch":-1}'
    epoch = json.loads(ours)["brokerEpoch"]
    assert epoch > 0
    assert ours == theirs.replace(b"-1", str(epoch).encode())


def test_the_mark_of_a_clean_stop_has_the_registrations_czxid(zookeeper: Any) -> None:
    from kazoo.client import KazooClient

    with broker_on(zookeeper, "/epoch") as broker:
        client = KazooClient(zookeeper.address)
        client.start(30)
        try:
            stat = client.exists(f"/epoch/brokers/ids/{broker.node_id}")
        finally:
            client.stop()
            client.close()
        broker.stop()
        marker = json.loads((broker.log_dir / ".kafka_cleanshutdown").read_bytes())
    assert marker == {"version": 0, "brokerEpoch": stat.czxid}
