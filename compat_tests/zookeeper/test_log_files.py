"""The files of a partition after the same appends on Barnabas and on Apache Kafka 3.9.1: what must be equal is.

Segments, transaction indexes, `partition.metadata` and leader-epoch files are equal byte for byte; offset and time
indexes, producer snapshots and checkpoints after parsing (preallocation and the order of entries are free).
"""

import random
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from barnabas.storage.producer_state import decode_snapshot, encode_snapshot
from barnabas.wire.record_batch import CompressionType
from compat_tests.conftest import create_topic
from compat_tests.semantics.client import Connection, batch_of, produce_batch
from compat_tests.zookeeper.conftest import broker_on
from compat_tests.zookeeper.kafka_broker import KafkaOnZooKeeper

pytestmark = pytest.mark.java

SETTINGS = {"segment.bytes": "4096", "index.interval.bytes": "200", "file.delete.delay.ms": "0"}
PRODUCERS = (4_000_000, 4_000_001)


def produced_batches() -> list[bytearray]:
    """Plain, compressed and idempotent batches, the same in every run."""
    chance = random.Random(20261121)
    sequences = dict.fromkeys(PRODUCERS, 0)
    batches = []
    for number in range(120):
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


def fill(bootstrap_servers: str) -> None:
    """The same appends: raw batches to one topic, transactions of a stock producer to another."""
    from confluent_kafka import Producer

    create_topic(bootstrap_servers, "plain", 1, SETTINGS)
    create_topic(bootstrap_servers, "transactional", 1, {})
    with Connection(bootstrap_servers) as connection:
        for batch in produced_batches():
            assert produce_batch(connection, "plain", bytes(batch)).error_code == 0
    producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": "t", "linger.ms": 0})
    producer.init_transactions(60)
    for number in range(6):
        producer.begin_transaction()
        producer.produce("transactional", b"x", timestamp=1_700_000_000_000 + number)
        producer.flush(30)
        producer.abort_transaction(60) if number % 2 else producer.commit_transaction(60)


@pytest.fixture(scope="module")
def directories(zookeeper: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Copies of both log directories after a clean stop: ours, and Kafka's."""
    folder = tmp_path_factory.mktemp("log-files")
    with broker_on(zookeeper, "/files/ours") as barnabas:
        fill(barnabas.bootstrap_servers)
        barnabas.stop()
        shutil.copytree(barnabas.log_dir, folder / "ours")
    with KafkaOnZooKeeper(zookeeper.address + "/files/theirs", folder / "theirs") as kafka:
        fill(kafka.bootstrap_servers)
        kafka.stop()
    return folder / "ours", folder / "theirs"


def files_of(directory: Path, suffix: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.glob(f"*{suffix}"))}


def entries(data: bytes, layout: str) -> list[tuple[int, ...]]:
    """An index's entries; Kafka's files may end in preallocated zeros, which no entry but the first can be."""
    size = struct.calcsize(layout)
    found = [struct.unpack_from(layout, data, position) for position in range(0, len(data) - size + 1, size)]
    while found and not any(found[-1]):
        found.pop()
    return found


def test_segments_are_equal_byte_for_byte(directories: tuple[Path, Path]) -> None:
    ours, theirs = (files_of(directory / "plain-0", ".log") for directory in directories)
    assert len(ours) > 5
    assert ours == theirs


@pytest.mark.parametrize(("suffix", "layout"), [(".index", ">ii"), (".timeindex", ">qi")])
def test_indexes_are_equal_after_parsing(directories: tuple[Path, Path], suffix: str, layout: str) -> None:
    ours, theirs = (
        {name: entries(data, layout) for name, data in files_of(directory / "plain-0", suffix).items()}
        for directory in directories
    )
    assert sum(map(len, ours.values())) > 20
    assert ours == theirs


def test_producer_snapshots_are_equal_after_parsing(directories: tuple[Path, Path]) -> None:
    ours, theirs = (
        {
            name: sorted(encode_snapshot([entry]) for entry in decode_snapshot(data))
            for name, data in files_of(directory / "plain-0", ".snapshot").items()
        }
        for directory in directories
    )
    assert any(len(found) == len(PRODUCERS) for found in ours.values())
    assert ours == theirs


@pytest.mark.parametrize("partition", ["plain-0", "transactional-0"])
def test_leader_epoch_files_are_equal_byte_for_byte(directories: tuple[Path, Path], partition: str) -> None:
    ours, theirs = ((directory / partition / "leader-epoch-checkpoint").read_bytes() for directory in directories)
    assert ours == theirs


def test_partition_metadata_differs_in_the_topic_id_only(directories: tuple[Path, Path]) -> None:
    ours, theirs = ((directory / "plain-0" / "partition.metadata").read_text() for directory in directories)
    assert [line.split(":")[0] for line in ours.splitlines()] == [line.split(":")[0] for line in theirs.splitlines()]
    assert ours.splitlines()[0] == theirs.splitlines()[0]
    assert len(ours) == len(theirs)


def test_transaction_indexes_are_equal_byte_for_byte_but_for_the_producer_id(directories: tuple[Path, Path]) -> None:
    """An entry: version, producer id, first offset, last offset, last stable offset."""
    ours, theirs = (
        [
            entry[:1] + entry[2:]
            for entry in entries(b"".join(files_of(path / "transactional-0", ".txnindex").values()), ">hqqqq")
        ]
        for path in directories
    )
    assert len(ours) == 3
    assert ours == theirs


def test_checkpoints_are_equal_after_parsing(directories: tuple[Path, Path]) -> None:
    def offsets(directory: Path, name: str) -> dict[str, str]:
        lines = (directory / name).read_text().splitlines()[2:]
        return {line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in lines if not line.startswith("__")}

    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        ours, theirs = (offsets(directory, name) for directory in directories)
        assert {"plain 0", "transactional 0"} <= ours.keys()
        assert ours == theirs
