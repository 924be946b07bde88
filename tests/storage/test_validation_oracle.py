"""The same batches through our validation and Kafka's: the same refusals, or batches with the same records."""

import random
import struct
from collections.abc import Iterator
from pathlib import Path

import crc32c
import pytest

from barnabas.storage.config import NO_LIMIT, LogConfig
from barnabas.storage.validation import RecordErrors, parse_produced_batch, validate_batch
from barnabas.wire.compression import CompressionType, compress
from barnabas.wire.errors import ApiError
from barnabas.wire.record_batch import TimestampType, parse_header
from barnabas.wire.records import Record, assemble_batch, build_batch, iter_records
from tools.foreign.kafka import SMALL_JVM, kafka_runtime
from tools.processes import children

PROGRAM = Path(__file__).parents[2] / "tools" / "golden" / "ValidateBatches.java"
NOW = 1_700_000_000_000
HOUR = 3_600_000
MAX_MESSAGE_BYTES = 5000

pytestmark = pytest.mark.java

CONFIGS = [
    LogConfig(validate_records=True, max_message_bytes=MAX_MESSAGE_BYTES),
    LogConfig(cleanup_policy=frozenset({"compact"}), max_message_bytes=MAX_MESSAGE_BYTES),
    LogConfig(message_timestamp_type="LogAppendTime", max_message_bytes=MAX_MESSAGE_BYTES),
    LogConfig(message_timestamp_before_max_ms=HOUR, max_message_bytes=MAX_MESSAGE_BYTES),
    LogConfig(validate_records=True, compression_type=CompressionType.GZIP, max_message_bytes=MAX_MESSAGE_BYTES),
    LogConfig(validate_records=True, compression_type=CompressionType.NONE, max_message_bytes=MAX_MESSAGE_BYTES),
]


def resealed(batch: bytearray) -> bytes:
    struct.pack_into(">I", batch, 17, crc32c.crc32c(bytes(batch[21:])))
    return bytes(batch)


def changed(batch: bytearray, form: str, position: int, value: int) -> bytes:
    batch = bytearray(batch)
    struct.pack_into(form, batch, position, value)
    return resealed(batch)


def produced_batches() -> Iterator[bytes]:
    """Right and wrong batches of every codec."""
    records = [Record(i, NOW - i, b"k" if i % 3 else None, b"v" * 30, (("h", None),)) for i in range(6)]
    times = [Record(i, NOW + offset, b"k", b"v") for i, offset in enumerate((0, 2 * HOUR, -2 * HOUR, HOUR, -HOUR))]
    untimed = [Record(i, -1, b"k", b"v") for i in range(3)]
    for codec in CompressionType:
        batch = build_batch(records, compression=codec)
        keyed = build_batch([record._replace(key=b"k") for record in records], compression=codec)
        yield from (bytes(batch), bytes(keyed), bytes(batch + batch), bytes(batch + batch[:-3]), bytes(batch[:-1]))
        yield bytes(build_batch(times, compression=codec))
        yield bytes(build_batch(untimed, compression=codec))
        yield bytes(build_batch(records, compression=codec, producer_id=5, producer_epoch=0, base_sequence=9))
        for append_time in (NOW, -1, NOW + 2 * HOUR):
            yield bytes(
                build_batch(
                    records,
                    compression=codec,
                    timestamp_type=TimestampType.LOG_APPEND_TIME,
                    log_append_time_ms=append_time,
                )
            )
        for form, position, value in (
            (">q", 0, 3), (">b", 16, 1), (">b", 16, 3), (">i", 57, 5), (">i", 57, 0), (">i", 23, 4), (">i", 23, -1),
            (">q", 43, 77), (">q", 35, NOW - 9), (">q", 35, NOW + 9 * HOUR), (">i", 8, 3), (">i", 12, 44),
        ):  # fmt: skip
            yield changed(batch, form, position, value)
        yield changed(keyed, ">h", 21, codec | 0x20)
        yield bytes(batch[:-1] + b"!")
        header = parse_header(build_batch(records[:3]))._replace(attributes=codec)
        for count in (2, 4):
            payload = build_batch([record._replace(key=b"k") for record in records[:count]])[61:]
            yield bytes(assemble_batch(header, compress(codec, payload)))
        yield bytes(build_batch([Record(0, NOW, b"k", bytes(6000))], compression=codec))
        keyed_payload = bytes(keyed[61:])
        for more in (b"\0", b"\xff\xff\xff", bytes(20), b"neither a frame nor a member", keyed_payload):
            yield bytes(assemble_batch(parse_header(keyed), keyed_payload + more))
    rng = random.Random(1)
    for _ in range(60):
        batch = build_batch(records)
        for _ in range(rng.randrange(1, 3)):
            batch[rng.randrange(61, len(batch))] = rng.randrange(256)
        yield resealed(batch)


def contradicting_batches() -> Iterator[bytes]:
    """Batches whose header does not know the largest timestamp, and leaves room to doubt it."""
    made_up = [Record(i, timestamp, b"k", b"v") for i, timestamp in enumerate((1000, 5000, 2000))]
    for codec in CompressionType:
        for largest in (-1, 0, 1000, 2000, 5000, 9000, NOW):
            yield changed(build_batch(made_up, compression=codec), ">q", 35, largest)
        for largest in (NOW - 1, NOW + 1, NOW - HOUR):
            yield changed(build_batch([Record(0, NOW, b"k", b"v")], compression=codec), ">q", 35, largest)


def ours(batch: bytes, config: LogConfig) -> str:
    """Our result in the form of the Java program's."""
    data = bytearray(batch)
    try:
        result = validate_batch(data, parse_produced_batch(data, 13), config, NOW)
    except RecordErrors as error:
        return " ".join([error.error.name, *(str(index) for index, _ in error.record_errors)])
    except ApiError as error:
        return error.error.name
    offsets = [record.offset for record in iter_records(result.batch, result.header)]
    assert offsets == list(range(result.header.record_count))
    return f"OK {bytes(result.batch).hex()}"


def theirs(cases: list[tuple[bytes, LogConfig]]) -> list[str]:
    lines = []
    for batch, config in cases:
        codec = "producer" if config.compression_type is None else config.compression_type.name.lower()
        settings = (
            13, str(config.is_compacted).lower(), config.message_timestamp_type, config.message_timestamp_before_max_ms,
            config.message_timestamp_after_max_ms, codec, NOW, config.max_message_bytes, batch.hex(),
        )  # fmt: skip
        lines.append(" ".join(map(str, settings)))
    command = kafka_runtime().java_command(str(PROGRAM), jvm_options=SMALL_JVM)
    process = children.run(command, input="\n".join(lines), capture_output=True, text=True, check=True)
    return process.stdout.splitlines()


def meaning(answer: str) -> object:
    """The part of a result that a client can see: header fields without sizes, and the records without offsets. Kafka
    stores offsets inside an uncompressed batch as they are, right or wrong; we correct them (see `ours`). Header names
    that are not UTF-8 lose their bytes when Kafka writes a record again, and keep them here."""
    if not answer.startswith("OK "):
        return answer
    batch = bytes.fromhex(answer[3:])
    header = parse_header(batch)
    records = [
        (record.timestamp, record.key, record.value, [(readable(name), value) for name, value in record.headers])
        for record in iter_records(batch, header)
    ]
    # The time the deltas refer to is the writer's choice, and the epoch is the log's.
    return header._replace(batch_length=0, crc=0, base_timestamp=0, partition_leader_epoch=0), records


def readable(name: str) -> str:
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def is_known_difference(our_answer: str, their_answer: str) -> bool:
    """Kafka fails with UNKNOWN_SERVER_ERROR where its decompressor gives up or it does not know the codec."""
    return their_answer == "UNKNOWN_SERVER_ERROR" and our_answer in ("INVALID_RECORD", "UNSUPPORTED_COMPRESSION_TYPE")


@pytest.mark.slow
def test_kafka_agrees() -> None:
    assert LogConfig().message_timestamp_before_max_ms == NO_LIMIT
    cases = [(batch, config) for batch in produced_batches() for config in CONFIGS]
    cases += [(batch, LogConfig()) for batch in contradicting_batches()]
    answers = theirs(cases)
    assert len(answers) == len(cases)
    differences = [
        (batch.hex(), config, our_answer[:200], their_answer[:200])
        for (batch, config), our_answer, their_answer in zip(
            cases, (ours(batch, config) for batch, config in cases), answers, strict=True
        )
        if not is_known_difference(our_answer, their_answer) and meaning(our_answer) != meaning(their_answer)
    ]
    assert differences == []
