"""Kafka's small text files: offset checkpoints, leader epochs, topic ids, broker ids, the marker of a clean shutdown.

Codecs are pure; reading and writing goes through `Files`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from barnabas.storage.errors import CorruptFile
from barnabas.storage.files import Files, read_file, replace_file, unlink_if_exists, write_file
from barnabas.storage.txn_index import TransactionIndexNote
from barnabas.wire.names import ZERO_TOPIC_ID, TopicId, topic_id_from_text, topic_id_to_text

TopicPartition: TypeAlias = tuple[str, int]

RECOVERY_POINT_FILE: Final = "recovery-point-offset-checkpoint"
HIGH_WATERMARK_FILE: Final = "replication-offset-checkpoint"
LOG_START_FILE: Final = "log-start-offset-checkpoint"
CLEANER_OFFSET_FILE: Final = "cleaner-offset-checkpoint"
TRANSACTION_INDEXES_FILE: Final = "barnabas-transaction-indexes"
LOG_DIRECTORIES_FILE: Final = "barnabas-log-directories"
LOST_LOGS_FILE: Final = "barnabas-lost-logs"
LEADER_EPOCH_FILE: Final = "leader-epoch-checkpoint"
PARTITION_METADATA_FILE: Final = "partition.metadata"
META_PROPERTIES_FILE: Final = "meta.properties"
CLEAN_SHUTDOWN_FILE: Final = ".kafka_cleanshutdown"
LOCK_FILE: Final = ".lock"

OFFSET_MAX: Final = 2**63 - 2
"""The greatest offset that a record may have; the offset after it is one more."""

EPOCH_MAX: Final = 2**31 - 1

_VERSION: Final = "0"


@dataclass(frozen=True, slots=True)
class LogCheckpoints:
    """The log directory's checkpoints for one log.

    `may_have_gaps` says that offsets between its segments may be missing legitimately: it may have been compacted.
    """

    recovery_point: int = 0
    log_start_offset: int = 0
    high_watermark: int = 0
    clean_offset: int | None = None
    may_have_gaps: bool = False
    txn_indexes: Mapping[int, TransactionIndexNote] = field(default_factory=dict)
    """The notes of the transaction indexes, by the base offset of their segments."""


def encode_checkpoint(lines: Iterable[str]) -> bytes:
    """Kafka's checkpoint format: the version 0, the number of entries, one entry per line
    (org.apache.kafka.server.common.CheckpointFile).
    """
    entries = list(lines)
    return "".join(f"{line}\n" for line in (_VERSION, str(len(entries)), *entries)).encode()


def decode_checkpoint(data: bytes) -> list[list[str]]:
    """The entries of a checkpoint, each split at white space. An empty file has none.

    Raises:
        CorruptFile: another version, or not as many entries as it says.
    """
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError:
        raise CorruptFile("a checkpoint that is not UTF-8 text") from None
    if len(lines) < 2:
        if lines and lines[0] != _VERSION:
            raise CorruptFile(f"checkpoint version {lines[0]!r} is not {_VERSION}")
        return []
    if lines[0] != _VERSION:
        raise CorruptFile(f"checkpoint version {lines[0]!r} is not {_VERSION}")
    if lines[1] != str(len(lines) - 2):
        raise CorruptFile(f"a checkpoint of {lines[1]!r} entries has {len(lines) - 2}")
    return [line.split() for line in lines[2:]]


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """An offset checkpoint of a log directory: `TOPIC PARTITION OFFSET` per line."""
    return encode_checkpoint(f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items())


def decode_offsets(data: bytes) -> dict[TopicPartition, int]:
    """Read the output of `encode_offsets`. Raises CorruptFile, also for impossible offsets."""
    try:
        offsets = {(topic, int(partition)): int(offset) for topic, partition, offset in decode_checkpoint(data)}
    except ValueError:
        raise CorruptFile("an offset checkpoint with a malformed line") from None
    if not all(0 <= offset <= OFFSET_MAX for offset in offsets.values()):
        raise CorruptFile("an offset checkpoint with an invalid offset")
    return offsets


def encode_txn_index_notes(notes: Mapping[TopicPartition, Mapping[int, TransactionIndexNote]]) -> bytes:
    """The transaction indexes of a log directory, `TOPIC PARTITION BASE_OFFSET SIZE CRC` per line. The file is specific
    to Barnabas; Kafka ignores it.
    """
    return encode_checkpoint(
        f"{topic} {partition} {base_offset} {note.size} {note.crc}"
        for (topic, partition), of_log in notes.items()
        for base_offset, note in of_log.items()
    )


def decode_txn_index_notes(data: bytes) -> dict[TopicPartition, dict[int, TransactionIndexNote]]:
    """Read the output of `encode_txn_index_notes`. Raises CorruptFile."""
    notes: dict[TopicPartition, dict[int, TransactionIndexNote]] = {}
    try:
        for topic, partition, base_offset, size, crc in decode_checkpoint(data):
            of_log = notes.setdefault((topic, int(partition)), {})
            of_log[int(base_offset)] = TransactionIndexNote(int(size), int(crc))
    except ValueError:
        raise CorruptFile("notes of transaction indexes with a malformed line") from None
    return notes


def encode_leader_epochs(entries: Iterable[tuple[int, int]]) -> bytes:
    """A log's `leader-epoch-checkpoint`: `EPOCH START_OFFSET` per line."""
    return encode_checkpoint(f"{epoch} {start_offset}" for epoch, start_offset in entries)


def decode_leader_epochs(data: bytes) -> list[tuple[int, int]]:
    """Read the output of `encode_leader_epochs`. Raises CorruptFile, also for impossible numbers."""
    try:
        entries = [(int(epoch), int(start_offset)) for epoch, start_offset in decode_checkpoint(data)]
    except ValueError:
        raise CorruptFile("a leader epoch checkpoint with a malformed line") from None
    if not all(0 <= epoch <= EPOCH_MAX and 0 <= start_offset <= OFFSET_MAX for epoch, start_offset in entries):
        raise CorruptFile("a leader epoch checkpoint with an invalid number")
    return entries


def encode_partition_metadata(topic_id: bytes) -> bytes:
    """A log's `partition.metadata`: two lines, the last one without a line end (PartitionMetadata)."""
    return f"version: 0\ntopic_id: {topic_id_to_text(topic_id)}".encode()


def decode_partition_metadata(data: bytes) -> TopicId:
    """The topic id in a `partition.metadata`. Raises CorruptFile."""
    try:
        fields = dict(line.split(":", 1) for line in data.decode().splitlines() if line)
        version, topic_id = int(fields["version"]), topic_id_from_text(fields["topic_id"].strip())
    except (ValueError, KeyError):
        raise CorruptFile("malformed partition metadata") from None
    if version < 0 or topic_id == ZERO_TOPIC_ID:
        raise CorruptFile("partition metadata of an unknown version or with the reserved topic id")
    return topic_id


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """`meta.properties`, version 0, of a log directory: the broker and cluster that own it. Java properties, so that
    Kafka in ZooKeeper mode can read it.
    """

    broker_id: int
    cluster_id: str

    def encode(self) -> bytes:
        """The content of the file."""
        return f"#\nversion=0\nbroker.id={self.broker_id}\ncluster.id={self.cluster_id}\n".encode()

    @classmethod
    def decode(cls, data: bytes) -> MetaProperties:
        """Read the file. Raises CorruptFile, also for the version 1 that KRaft writes."""
        try:
            lines = [line.strip() for line in data.decode().splitlines()]
            pairs = [line.partition("=") for line in lines if line and not line.startswith(("#", "!"))]
            fields = {name.strip(): value.strip() for name, _, value in pairs}
            version = fields["version"]
            if version != "0":
                raise CorruptFile(
                    f"{META_PROPERTIES_FILE} has version {version}: the directory belongs to a Kafka in KRaft mode, "
                    "whose metadata cannot be read here. Start with another directory and copy the topics into it"
                )
            return cls(int(fields["broker.id"]), fields["cluster.id"])
        except (ValueError, KeyError):
            raise CorruptFile(f"malformed {META_PROPERTIES_FILE}") from None


def write_clean_shutdown(files: Files, directory: str, broker_epoch: int) -> None:
    """Write the clean-shutdown file, when everything else is on the disk. Blocking; the last action of a broker.

    `broker_epoch` is that of the broker's last registration, -1 if there was none.
    """
    content = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
    write_file(files, f"{directory}/{CLEAN_SHUTDOWN_FILE}", content.encode(), sync=True)
    files.sync_directory(directory)


def take_clean_shutdown(files: Files, directory: str) -> int | None:
    """Remove the clean-shutdown file durably, so that a crash from now on is noticed. Returns its broker epoch, None if
    there is no file. Blocking.

    Before KIP-966 the file was empty, so its presence counts: the epoch is -1 if the file contains none.
    """
    path = f"{directory}/{CLEAN_SHUTDOWN_FILE}"
    try:
        broker_epoch = decode_clean_shutdown(read_file(files, path))
    except FileNotFoundError:
        return None
    unlink_if_exists(files, path)
    files.sync_directory(directory)
    return broker_epoch


def decode_clean_shutdown(data: bytes) -> int:
    """The broker epoch in a clean-shutdown file; -1 if it contains none that can be read
    (CleanShutdownFileHandler.read).
    """
    try:
        broker_epoch = json.loads(data)["brokerEpoch"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return -1
    return broker_epoch if type(broker_epoch) is int else -1


def read_offsets(files: Files, directory: str, name: str) -> dict[TopicPartition, int]:
    """Read an offset checkpoint. Blocking. Raises CorruptFile, FileNotFoundError."""
    return decode_offsets(read_file(files, f"{directory}/{name}"))


def write_offsets(files: Files, directory: str, name: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace an offset checkpoint durably. Blocking."""
    replace_file(files, f"{directory}/{name}", encode_offsets(offsets))
