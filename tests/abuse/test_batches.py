"""Attacks inside of record batches: decompression bombs, against topics that must open what is produced, and batches
that are not what they say."""

from __future__ import annotations

import functools
import io
import random
import socket
import struct
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import cramjam
import crc32c
import lz4.frame
import pytest

from barnabas.clock import SystemClock
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from barnabas.wire.messages.produce import ProduceResponse
from barnabas.wire.record_batch import CompressionType, crc_is_valid, iter_headers, parse_header
from barnabas.wire.records import Record, assemble_batch, build_batch
from barnabas.wire.varint import encode_varint
from tools.attack.hostile import (
    MIB,
    HealthyClient,
    Memory,
    ThreadTimes,
    answer,
    ask,
    connect,
    create_topic,
    frame,
    produce,
)
from tools.fuzz.mutation import Mutator
from tools.processes.barnabas import BarnabasProcess

pytestmark = [pytest.mark.slow, pytest.mark.live]
Figure = Callable[..., None]
NOW_MS = 1_700_000_000_000
GIB = 1024 * MIB

_SMALL_RECORD = encode_varint(6) + b"\0\0\0\1\1\0"
_LARGE_RECORD = encode_varint(GIB) + b"\0\0\0\1" + encode_varint(GIB - 10)


def small_records() -> Iterator[bytes]:
    """1 GiB of records of 7 bytes."""
    piece = _SMALL_RECORD * (MIB // 7)
    return (piece for _ in range(1024))


def large_record() -> Iterator[bytes]:
    """A record of 1 GiB."""
    yield _LARGE_RECORD
    zeros = bytes(MIB)
    yield from (zeros for _ in range(1024))


def gzip_members(first: bytes, member: bytes) -> bytes:
    """1 GiB in a member of its own and many more of 32 MiB, which need compressing only once."""
    return (gzip_bomb(iter((first,))) if first else b"") + 32 * gzip_bomb(
        member for _ in range(32 * MIB // len(member))
    )


def gzip_bomb(chunks: Iterator[bytes]) -> bytes:
    stream = zlib.compressobj(9, wbits=31)
    return b"".join(map(stream.compress, chunks)) + stream.flush()


def lz4_bomb(chunks: Iterator[bytes]) -> bytes:
    frame = lz4.frame.LZ4FrameCompressor(block_size=lz4.frame.BLOCKSIZE_MAX4MB)
    return frame.begin() + b"".join(map(frame.compress, chunks)) + frame.flush()


def zstd_bomb(chunks: Iterator[bytes]) -> bytes:
    import zstandard

    stream = zstandard.ZstdCompressor(level=1).compressobj()
    return b"".join(map(stream.compress, chunks)) + stream.flush()


def zstd_window(window_log: int, mebibytes: int) -> bytes:
    """A frame that repeats one byte, with a window of its choice."""
    first = struct.pack("<I", len(_LARGE_RECORD) << 3)[:3] + _LARGE_RECORD
    block = struct.pack("<I", 128 * 1024 << 3 | 2)[:3] + b"\0"
    last = struct.pack("<I", 1 << 3 | 2 | 1)[:3] + b"\0"
    return bytes.fromhex("28b52ffd00") + bytes([window_log - 10 << 3]) + first + block * (8 * mebibytes) + last


def xerial_bomb(chunks: Iterator[bytes]) -> bytes:
    out = io.BytesIO()
    out.write(b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1))
    for chunk in chunks:
        block = bytes(cramjam.snappy.compress_raw(chunk))
        out.write(struct.pack(">i", len(block)) + block)
        if out.tell() > MIB:
            break
    return out.getvalue()[: 1024 * 1024 - 100]


def raw_snappy() -> bytes:
    return bytes(cramjam.snappy.compress_raw(_LARGE_RECORD + bytes(20 * MIB)))


BOMBS: dict[str, tuple[int, Callable[[], bytes]]] = {
    "gzip of 1 GiB of records": (1, lambda: gzip_members(b"", next(small_records()))),
    "gzip of a record of 1 GiB": (1, lambda: gzip_members(_LARGE_RECORD, bytes(MIB))),
    "snappy blocks": (2, lambda: xerial_bomb(large_record())),
    "snappy block of 2 GiB": (2, lambda: b"\x82SNAPPY\0" + struct.pack(">iii", 1, 1, 2**31 - 1) + bytes(100)),
    "raw snappy of 20 MiB": (2, raw_snappy),
    "raw snappy that claims 4 GiB": (2, lambda: b"\xff\xff\xff\xff\x0f" + bytes(MIB)),
    "lz4 of a record of 1 GiB": (3, lambda: lz4_bomb(large_record())),
    "zstd of 1 GiB of records": (4, lambda: zstd_bomb(small_records())),
    "zstd with a window of 128 MiB": (4, lambda: zstd_window(27, 1024)),
    "zstd with a window of 2 GiB": (4, lambda: zstd_window(31, 1024)),
    "gzip of 100,000 records with the same offset": (1, lambda: gzip_bomb(iter([_SMALL_RECORD * 100_000]))),
    "gzip of 100,000 records and 60 MiB": (1, lambda: gzip_bomb(iter([_SMALL_RECORD * 100_000, bytes(60 * MIB)]))),
}


@functools.cache
def payload_of(bomb: str) -> bytes:
    """Made once: some take a second."""
    return BOMBS[bomb][1]()


def bomb_batch(codec: int, payload: bytes, count: int, now_ms: int = NOW_MS) -> bytearray:
    header = parse_header(build_batch([Record(0, now_ms, b"k", b"v")]))
    return assemble_batch(
        header._replace(attributes=codec, record_count=count, last_offset_delta=count - 1), payload[: 8 * MIB]
    )


@pytest.mark.parametrize("topic_settings", [{"message_timestamp_type": "LogAppendTime"}, {"compression_type": "lz4"}])
@pytest.mark.parametrize("bomb", BOMBS)
def test_a8_bombs(
    shared_broker: BarnabasProcess,
    shared_healthy: HealthyClient,
    figure: Figure,
    bomb: str,
    topic_settings: dict[str, str],
    is_timed: bool,
) -> None:
    """Refused within 250 ms of processor time beside the event loop, and 16 MiB."""
    broker = shared_broker
    codec, payload = BOMBS[bomb][0], payload_of(bomb)
    assert len(payload) < 9 * MIB
    if codec == CompressionType.LZ4 and "compression_type" in topic_settings:
        topic_settings = {"compression_type": "gzip"}
    topic = f"t{is_timed:d}-{list(BOMBS).index(bomb)}-{next(iter(topic_settings))}"
    create_topic(broker.bootstrap_servers, topic, max_message_bytes=str(10 * MIB), **topic_settings)
    with connect(broker.bootstrap_servers) as connection:
        warm = build_batch([Record(0, NOW_MS, None, bytes(40_000))], compression=CompressionType(codec))
        ask(connection, produce(topic, warm), 9, ProduceResponse)
        memory = Memory(broker.pid)
        batch = bomb_batch(codec, payload, 100_000 if "records" in bomb else 1)
        memory.mark()
        shared_healthy.mark()
        times = ThreadTimes(broker.pid)
        started = time.perf_counter()
        response = ask(connection, produce(topic, batch), 9, ProduceResponse)
        taken_ms = (time.perf_counter() - started) * 1000
    threads_ms = times.threads_ms
    code = response.responses[0].partition_responses[0].error_code
    shared_healthy.settle()
    figure(bomb=bomb, bytes=len(batch), ms=round(taken_ms, 1), thread_cpu_ms=round(threads_ms, 1),
           growth_mib=round(memory.growth / MIB, 1), error=ErrorCode(code).name, **shared_healthy.figures)  # fmt: skip
    assert code in (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE)
    assert threads_ms <= 250 or not is_timed
    assert memory.growth <= 16 * MIB


def test_a8_bombs_beside_a_healthy_client(broker: BarnabasProcess, healthy: HealthyClient, figure: Figure) -> None:
    """Six bombs at once do not keep the loop from others, and a bomb that was stored unopened does no harm to a
    search by time."""
    create_topic(broker.bootstrap_servers, "opened", message_timestamp_type="LogAppendTime")
    create_topic(broker.bootstrap_servers, "stored")
    payload = gzip_bomb(iter([_SMALL_RECORD * 100_000, bytes(100 * MIB)]))
    batch = bomb_batch(1, payload, 100_000)
    memory = Memory(broker.pid)
    memory.mark()
    healthy.mark()
    times = ThreadTimes(broker.pid)
    connections = [connect(broker.bootstrap_servers) for _ in range(6)]
    started = time.perf_counter()
    for connection in connections:
        connection.sendall(frame(produce("opened", batch), 9))
    for connection in connections:
        response = answer(connection, produce("opened", batch), 9, ProduceResponse)
        assert response.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_RECORD
        connection.close()
    taken_s = time.perf_counter() - started
    with connect(broker.bootstrap_servers) as connection:
        response = ask(connection, produce("stored", batch), 9, ProduceResponse)
        assert response.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_RECORD  # it is old
        batch = bomb_batch(1, payload, 100_000, SystemClock().now_ms())
        response = ask(connection, produce("stored", batch), 9, ProduceResponse)
        assert response.responses[0].partition_responses[0].error_code == 0
        partition = ListOffsetsPartition(partition_index=0, timestamp=NOW_MS)
        topics = [ListOffsetsTopic(name="stored", partitions=[partition])]
        ask(connection, ListOffsetsRequest(replica_id=-1, topics=topics), 5, ListOffsetsResponse)
    figure(bombs=6, seconds=round(taken_s, 2), thread_cpu_ms=round(times.threads_ms, 1),
           growth_mib=round(memory.growth / MIB, 1), **healthy.figures)  # fmt: skip
    assert memory.growth <= 96 * MIB


REFUSALS = {
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.INVALID_RECORD,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,  # a transactional batch in a request without an id
}
TOPICS: dict[str, dict[str, str]] = {
    "plain": {},
    "compacted": {"cleanup_policy": "compact"},
    "stamped": {"message_timestamp_type": "LogAppendTime"},
    "recompressed": {"compression_type": "lz4"},
    "small": {"max_message_bytes": "400"},
}
LYING_HEADERS = {
    "a wrong checksum": (">I", 17, 1),
    **{f"magic {magic}": (">b", 16, magic) for magic in (0, 1, 3)},
    "a negative count": (">i", 57, -1),
    "a count of nothing": (">i", 57, 0),
    "a count that is too large": (">i", 57, 2**31 - 1),
    "a last offset delta that disagrees": (">i", 23, 77),
    "a base offset": (">q", 0, 5),
    "a negative base offset": (">q", 0, -1),
    "a control batch": (">h", 21, 0x20),
    "a producer without a sequence": (">q", 43, 7),
    "a length that is too large": (">i", 8, 2**31 - 1),
    "a length that is too small": (">i", 8, 13),
    "a negative length": (">i", 8, -1),
    "an unknown codec": (">h", 21, 7),
}


def test_a9_headers_that_lie(
    shared_broker: BarnabasProcess, shared_healthy: HealthyClient, figure: Figure, is_timed: bool
) -> None:
    """Each is refused by every topic, and not a byte of it is written. (What Kafka answers is the subject of the tests
    of validation and of the comparison with Kafka; here it is a whole broker that must stand it.)"""
    logs = _create_topics(shared_broker, f"lying-{is_timed}")
    with connect(shared_broker.bootstrap_servers) as connection:
        for what, (form, position, value) in LYING_HEADERS.items():
            batch = build_batch([Record(0, NOW_MS, b"k", b"v")])
            struct.pack_into(form, batch, position, value)
            if position != 17:
                _seal(batch)
            for topic, log in logs.items():
                assert _produced(connection, topic, batch) in REFUSALS, (what, topic)
                assert log.stat().st_size == 0, (what, topic)
    figure(batches=len(LYING_HEADERS) * len(TOPICS), **shared_healthy.figures)


@pytest.mark.parametrize("count", [600, pytest.param(20_000, marks=pytest.mark.full)])
def test_a9_damaged_batches(
    broker: BarnabasProcess, memory: Memory, healthy: HealthyClient, figure: Figure, count: int
) -> None:
    """Mutated batches, three of four with a checksum that agrees: refused with an error that Kafka knows for it and
    nothing written, or written as whole batches with the right offsets."""
    logs = _create_topics(broker, "damaged")
    rng = random.Random(9)
    mutator = Mutator(_seeds(rng), rng, size_max=1 << 16)
    codes: Counter[str] = Counter()
    healthy.mark()
    with connect(broker.bootstrap_servers) as connection:
        for number in range(count):
            batch = bytearray(mutator.next())
            if number % 4:
                _seal(batch)
            topic, log = rng.choice(list(logs.items()))
            before = log.stat().st_size
            code = _produced(connection, topic, batch)
            codes[ErrorCode(code).name] += 1
            assert code == 0 or (code in REFUSALS and log.stat().st_size == before), (number, code)
    written = 0
    for log in logs.values():
        data, next_offset = log.read_bytes(), 0
        for header in iter_headers(data):
            assert header.base_offset == next_offset
            assert crc_is_valid(data, header)
            next_offset = header.next_offset
            written += 1
    figure(batches=count, written=written, growth_mib=round(memory.growth / MIB, 1), **healthy.figures, **codes)
    assert 0 < written <= codes["NONE"] < count
    assert memory.growth <= 16 * MIB


def _create_topics(broker: BarnabasProcess, prefix: str) -> dict[str, Path]:
    """The log of each."""
    for topic, settings in TOPICS.items():
        create_topic(broker.bootstrap_servers, f"{prefix}-{topic}", **settings)
    return {f"{prefix}-{topic}": broker.log_dir / f"{prefix}-{topic}-0" / f"{0:020}.log" for topic in TOPICS}


def _seeds(rng: random.Random) -> list[bytes]:
    records = [Record(i, NOW_MS + i, b"key" if i % 5 else None, rng.randbytes(i), [("h", b"v")]) for i in range(12)]
    return [
        bytes(build_batch(records[:count], compression=codec, producer_id=7, producer_epoch=0, base_sequence=0))
        for codec in CompressionType
        for count in (1, 12)
    ] + [bytes(build_batch(records, compression=codec)) for codec in CompressionType]


def _seal(batch: bytearray) -> None:
    """Give the batch a checksum that agrees with the rest."""
    if len(batch) > 61:
        struct.pack_into(">I", batch, 17, crc32c.crc32c(bytes(batch[21:])))


def _produced(connection: socket.socket, topic: str, batch: bytearray) -> int:
    response = ask(connection, produce(topic, batch), 9, ProduceResponse)
    code: int = response.responses[0].partition_responses[0].error_code
    return code
