"""The fuzzing targets: every reader of bytes from a peer or from a damaged disk. Each target accepts any bytes.

A target returns when its reader returned a result or raised a documented error; any other exception is a finding.
Results are also checked where that is cheap: a decoded message must encode again, and a splitter must return the same
frames for any split of the bytes.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final

import crc32c

from barnabas.broker.configuration.properties import PropertiesError, decode_properties, parse_properties
from barnabas.broker.coordinators.groups.classic.subscriptions import parse_topics
from barnabas.broker.coordinators.groups.records import UnknownRecordType, decode_record, encode_record
from barnabas.broker.coordinators.transactions import records as transaction_records
from barnabas.controller import znodes
from barnabas.storage import checkpoints, producer_snapshot, producer_state
from barnabas.storage.config import LogConfig
from barnabas.storage.descriptors import LogFile
from barnabas.storage.errors import CorruptFile, CorruptLog
from barnabas.storage.files import Buffer
from barnabas.storage.known_directories import DirectoryNote
from barnabas.storage.offset_index import OffsetIndex
from barnabas.storage.scan import scan_batches
from barnabas.storage.segment_reader import IndexMismatch, ReadPlan, execute, whole_batches
from barnabas.storage.time_index import TimeIndex
from barnabas.storage.txn_index import TransactionIndex
from barnabas.storage.validation import parse_produced_batch, validate_batch
from barnabas.wire import codec, headers, messages
from barnabas.wire.compression import compress
from barnabas.wire.control_records import control_record_type, parse_end_txn_marker
from barnabas.wire.errors import ApiError, ProtocolError
from barnabas.wire.framing import FrameReader, ReceiveBuffer
from barnabas.wire.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from barnabas.wire.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from barnabas.wire.messages.transaction_log_key import TransactionLogKey
from barnabas.wire.messages.transaction_log_value import TransactionLogValue
from barnabas.wire.record_batch import HEADER_SIZE, CompressionType, CorruptBatch, iter_headers, parse_header
from barnabas.wire.records import Record, build_batch, iter_records
from barnabas.wire.schema import Message
from tools.fuzz.login_targets import LOGIN_TARGETS
from tools.fuzz.security_targets import SECURITY_TARGETS
from tools.fuzz.target import NOW_MS, ROOT, Run, Target, given

FRAME_BYTES_MAX: Final = 1 << 20
DECOMPRESSED_BYTES_MAX: Final = 4 << 20
DAY_MS: Final = 86_400_000

# --- frames and requests ------------------------------------------------------------------------------------------


def _frames(data: bytes) -> None:
    """The first byte gives the size of the pieces in which the rest arrives."""
    pieces = (data[0] if data else 0) % 97 + 1
    expected = _split_at_once(data[1:])
    found = _split_in_pieces(data[1:], pieces)
    if found != expected:
        raise AssertionError(f"frames depend on how they arrive: {len(found)} or {len(expected)}")


def _split_at_once(data: bytes) -> list[bytes]:
    frames, position = [], 0
    while len(data) - position >= 4:
        size = struct.unpack_from(">i", data, position)[0]
        if not 0 <= size <= FRAME_BYTES_MAX or position + 4 + size > len(data):
            break
        frames.append(data[position + 4 : position + 4 + size])
        position += 4 + size
    return frames


def _split_in_pieces(data: bytes, pieces: int) -> list[bytes]:
    reader, position = FrameReader(ReceiveBuffer(1024), FRAME_BYTES_MAX), 0
    frames: list[bytes] = []
    try:
        while position < len(data):
            buffer = reader.get_buffer()
            count = min(pieces, len(buffer), len(data) - position)
            if not count:
                raise AssertionError("an empty buffer to read into")
            buffer[:count] = data[position : position + count]
            position += count
            for frame in reader.received(count):
                frames.append(bytes(frame))  # noqa: PERF401 - those before an error count
            if reader.buffered_bytes > 2 * len(data) + 65_536:
                raise AssertionError(f"{reader.buffered_bytes} bytes held of {len(data)}")
    except ProtocolError:
        pass
    return frames


def _request(data: bytes) -> None:
    """A frame as the dispatcher reads it: the header, then the body by key and version."""
    try:
        header = headers.parse_request_header(memoryview(data))
    except ProtocolError:
        return
    if header.api_key not in messages.API_NAMES:
        return
    cls = messages.api(header.api_key).request_class
    if cls.VALID_VERSIONS[0] <= header.api_version <= cls.VALID_VERSIONS[1]:
        _message(cls, header.api_version, data, header.body_position)


def _message(cls: type[Message], version: int, data: bytes, position: int = 0) -> None:
    try:
        message, end = codec.decoder(cls, version)(memoryview(data), position)
    except ProtocolError:
        return
    if end > len(data):
        raise AssertionError(f"{cls.__name__} ends {end - len(data)} bytes behind its buffer")
    # Unknown and repeated tagged fields and long varints are not encoded again; the encoded bytes must be stable.
    encoded = codec.encode(message, version)
    if codec.encode(codec.decode(cls, version, encoded), version) != encoded:
        raise AssertionError(f"{cls.__name__} version {version} encodes differently after decoding")


def _every_request(data: bytes) -> None:
    """Two bytes choose API and version, so that every decoder is reached with any mutated header."""
    if len(data) >= 2:
        classes = _request_classes()
        cls = classes[data[0] % len(classes)]
        lowest, highest = cls.VALID_VERSIONS
        _message(cls, lowest + data[1] % (highest - lowest + 1), data[2:])


@cache
def _request_classes() -> list[type[Message]]:
    return [messages.api(key).request_class for key in sorted(messages.API_NAMES)]


def _golden_frames() -> list[bytes]:
    lines = [
        json.loads(line)
        for path in sorted((ROOT / "tests/wire/golden_frames").glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    return [base64.b64decode(entry["frame"]) for entry in lines if entry["kind"] == "request"]


def _golden_lines() -> list[bytes]:
    texts = [path.read_text() for path in sorted((ROOT / "tests/wire/golden").glob("*.txt"))]
    return [bytes.fromhex(line.split()[-1]) for text in texts for line in text.splitlines() if line]


def _stream_seeds() -> list[bytes]:
    frames = _golden_frames()
    return [
        bytes([size]) + b"".join(struct.pack(">i", len(frame)) + frame for frame in frames[start : start + 4])
        for start in range(0, len(frames), 4)
        for size in (3, 96)
    ]


def _every_request_seeds() -> list[bytes]:
    sample, rng = _sampler(), random.Random(1)
    seeds = []
    for index, cls in enumerate(_request_classes()):
        lowest, highest = cls.VALID_VERSIONS
        for version in range(lowest, highest + 1):
            encoded = codec.encode(sample(cls, version, rng), version)
            seeds.append(bytes([index, version - lowest]) + encoded)
    return seeds


@cache
def _sampler() -> Callable[..., Any]:
    """The message tests' generator of random messages."""
    spec = importlib.util.spec_from_file_location("barnabas_message_samples", ROOT / "tests/wire/conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sample: Callable[..., Any] = module.sample_message
    return sample


# --- record batches -----------------------------------------------------------------------------------------------

_CONFIGS: Final = tuple(
    replace(LogConfig(max_message_bytes=4 << 20), **changes)  # type: ignore[arg-type]
    for changes in (
        {},
        {"validate_records": True},
        {"cleanup_policy": frozenset({"compact"})},
        {"message_timestamp_type": "LogAppendTime"},
        {"message_timestamp_before_max_ms": DAY_MS},
        *({"compression_type": each} for each in CompressionType),
    )
)


def _with_right_crc(batch: bytearray) -> None:
    """Correct the checksum: otherwise every mutation would end there."""
    if len(batch) >= HEADER_SIZE:
        length = struct.unpack_from(">i", batch, 8)[0]
        struct.pack_into(">I", batch, 17, crc32c.crc32c(memoryview(batch)[21 : max(21, 12 + length)]))


def _produced_batch(data: bytes) -> None:
    """The validation of a Produce request before the append. The first byte chooses the topic's config."""
    choice, batch = data[0] if data else 0, bytearray(data[1:])
    if choice < 230:
        _with_right_crc(batch)
    config = _CONFIGS[choice % len(_CONFIGS)]
    try:
        header = parse_produced_batch(memoryview(batch), 3 + choice % 11)
        result = validate_batch(batch, header, config, NOW_MS, topic_partition="t-0")
    except ApiError:
        return
    if result.rewritten:
        # Our own output must be readable.
        count = sum(1 for _ in iter_records(result.batch, result.header))
        if count != result.header.record_count:
            raise AssertionError(f"{count} records written, the header counts {result.header.record_count}")


def _records(data: bytes) -> None:
    """Batches as in a log: the headers, then every record, whether the CRC is right or not."""
    try:
        for header in iter_headers(data):
            for record in iter_records(data, header, max_decompressed_bytes=DECOMPRESSED_BYTES_MAX):
                if header.is_control:
                    control_record_type(record)
                    parse_end_txn_marker(record)
    except CorruptBatch:
        return


def _compressed_records(data: bytes) -> None:
    """Mutated records inside of well-formed compression, which mutations of compressed bytes hardly reach."""
    if len(data) < 1 + HEADER_SIZE:
        return
    batch = bytearray(data[1:])
    codec_number = CompressionType(data[0] % len(CompressionType))
    payload = compress(codec_number, batch[HEADER_SIZE:])
    batch[HEADER_SIZE:] = payload
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    batch[16] = 2
    batch[22] = batch[22] & 0xF8 | codec_number
    _records(bytes(batch))


def _batches() -> list[bytes]:
    rng = random.Random(2)
    records = [
        Record(index, NOW_MS + index, b"key" if index % 3 else None, rng.randbytes(index), [("header", b"value")])
        for index in range(12)
    ]
    built = [
        bytes(build_batch(records[:count], compression=each, producer_id=7, producer_epoch=0, base_sequence=0))
        for each in CompressionType
        for count in (1, 12)
    ]
    folder = ROOT / "tests/storage/golden_batches"
    golden = [bytes.fromhex("".join(path.read_text().split())) for path in sorted(folder.glob("*.hex"))]
    return built + [batch for batch in golden if len(batch) < 20_000]


def _produced_seeds() -> list[bytes]:
    return [bytes([choice]) + batch for choice in range(len(_CONFIGS)) for batch in _batches()]


def _compressed_seeds() -> list[bytes]:
    plain = [batch for batch in _batches() if parse_header(batch).codec == 0]
    return [bytes([each]) + batch for each in CompressionType for batch in plain]


def _bare_codec(each: CompressionType) -> Target:
    """The decompressor alone."""

    def run(data: bytes) -> None:
        from barnabas.wire.compression import iter_decompressed

        try:
            total = sum(len(chunk) for chunk in iter_decompressed(each, data, DECOMPRESSED_BYTES_MAX))
        except CorruptBatch:
            return
        if total > DECOMPRESSED_BYTES_MAX:
            raise AssertionError(f"{total} bytes decompressed")

    def seeds() -> list[bytes]:
        rng = random.Random(3)
        texts = [b"", b"a", rng.randbytes(300), bytes(100_000), rng.randbytes(70) * 2000]
        return [compress(each, text) for text in texts] + [
            batch[HEADER_SIZE:] for batch in _batches() if parse_header(batch).codec == each
        ]

    return Target(f"codec-{each.name.lower()}", run, seeds)


# --- group protocol -----------------------------------------------------------------------------------------------


def _group_protocol(data: bytes) -> None:
    if not data:
        return
    choice, rest = data[0] % 4, data[1:]
    if choice == 0:
        parse_topics(rest)
    elif choice == 1:
        _group_record(rest)
    else:
        cls = (ConsumerProtocolSubscription, ConsumerProtocolAssignment)[choice - 2]
        version = struct.unpack_from(">h", rest)[0] if len(rest) >= 2 else 0
        if cls.VALID_VERSIONS[0] <= version <= cls.VALID_VERSIONS[1]:
            _message(cls, version, rest[2:])


def _group_record(data: bytes) -> None:
    """A record of `__consumer_offsets`; the first byte is the key's size."""
    size = data[0] if data else 0
    key, value = data[1 : 1 + size], data[1 + size :]
    try:
        record = decode_record(key, value or None)
    except (ProtocolError, UnknownRecordType):
        return
    encode_record(record)


def _group_seeds() -> list[bytes]:
    sample, rng = _sampler(), random.Random(4)
    seeds = []
    for choice, cls in ((2, ConsumerProtocolSubscription), (3, ConsumerProtocolAssignment)):
        for version in range(cls.VALID_VERSIONS[0], cls.VALID_VERSIONS[1] + 1):
            blob = struct.pack(">h", version) + codec.encode(sample(cls, version, rng), version)
            seeds += [bytes([choice]) + blob, b"\0" + blob]
    for key_type, name, value in ((1, "offset_commit", "OffsetCommit"), (2, "group_metadata", "GroupMetadata")):
        keys = importlib.import_module(f"barnabas.wire.messages.{name}_key")
        values = importlib.import_module(f"barnabas.wire.messages.{name}_value")
        key = struct.pack(">h", key_type) + codec.encode(sample(getattr(keys, f"{value}Key"), 0, rng), 0)
        cls = getattr(values, f"{value}Value")
        for version in range(cls.VALID_VERSIONS[0], cls.VALID_VERSIONS[1] + 1):
            body = struct.pack(">h", version) + codec.encode(sample(cls, version, rng), version)
            if len(key) < 256:
                seeds.append(b"\1" + bytes([len(key)]) + key + body)
    return seeds


# --- transactions -------------------------------------------------------------------------------------------------


def _transaction_record(data: bytes) -> None:
    """A record of `__transaction_state`; the first byte is the key's size. A decoded record is encoded again at both
    versions, and must stay the same.
    """
    size = data[0] if data else 0
    key, value = data[1 : 1 + size], data[1 + size :]
    try:
        record = transaction_records.decode_record(key, value or None)
    except ProtocolError:
        return
    for version in (0, 1):
        written = transaction_records.encode_record(record, version)
        read_again = transaction_records.decode_record(*written)
        if transaction_records.encode_record(read_again, version) != written:
            raise AssertionError(f"{record} is written differently at version {version} after reading")


def _transaction_seeds() -> list[bytes]:
    sample, rng = _sampler(), random.Random(5)
    seeds = []
    for status in range(-1, 9):
        transactional_id = rng.choice(("", "a", "grüße", "x" * 200))
        key = bytes(2) + codec.encode(TransactionLogKey(transactional_id=transactional_id), 0)
        seeds.append(bytes([len(key)]) + key)
        for version in range(TransactionLogValue.VALID_VERSIONS[0], TransactionLogValue.VALID_VERSIONS[1] + 1):
            value = sample(TransactionLogValue, version, rng)
            value.transaction_status = status
            seeds.append(bytes([len(key)]) + key + struct.pack(">h", version) + codec.encode(value, version))
    return seeds


# --- files --------------------------------------------------------------------------------------------------------


def _snapshot(data: bytes) -> None:
    fixed = bytearray(data)
    if len(fixed) > 6 and fixed[-1] % 2:
        struct.pack_into(">I", fixed, 2, crc32c.crc32c(fixed[6:]))
    try:
        entries = producer_snapshot.decode_snapshot(bytes(fixed))
    except CorruptFile:
        return
    state = producer_state.ProducerState()
    state.load(entries, 100, NOW_MS)
    producer_snapshot.encode_snapshot(state.producers.values())


def _file(read: Callable[[bytes], object], *errors: type[Exception]) -> Run:
    expected: tuple[type[Exception], ...] = (CorruptFile, *errors)

    def run(data: bytes) -> None:
        try:
            read(data)
        except expected:
            return

    return run


def _offset_index(data: bytes) -> None:
    index = OffsetIndex.from_bytes(1000, data, 1 << 20)
    for offset in (0, 1000, 1005, 1 << 40):
        index.lookup(offset)
    if index.to_bytes() != data:
        raise AssertionError("the index is written differently")


def _segment(data: bytes) -> None:
    """A segment with any content: the recovery's scan, and a fetch with a wrong index entry."""

    def read(size: int, position: int) -> Buffer:
        return data[position : position + size]

    for header, _ in scan_batches(read, len(data)):
        if header is None:
            break
    whole_batches(data, 1 << 62)
    position = data[-1] if data else 0
    for min_one in (False, True):
        plan = ReadPlan(LogFile("0.log"), 0, 5, 1 << 40, 300, min_one, len(data), len(data), -1, position)
        try:
            execute(plan._replace(index_offset=4 if position else -1), read)
        except (CorruptLog, IndexMismatch):
            continue


def _properties(data: bytes) -> None:
    parse_properties(decode_properties(data))


def _znode(data: bytes) -> None:
    readers: tuple[Callable[[bytes], object], ...] = (
        lambda payload: znodes.decode_broker(1, payload, 5),
        znodes.decode_controller,
        znodes.decode_controller_epoch,
        lambda payload: znodes.decode_topic("t", payload),
        lambda payload: znodes.decode_partition_state("t", 0, payload, 3),
        lambda payload: znodes.decode_config("topics", "t", payload),
        lambda payload: znodes.decode_config_change("/config/changes/config_change_1", payload),
        znodes.decode_cluster_id,
        znodes.decode_producer_id_block,
    )
    if data:
        readers[data[0] % len(readers)](data[1:])


def _snapshot_seeds() -> list[bytes]:
    entries = [producer_state.ProducerEntry(index, 1, 2, NOW_MS, index) for index in range(5)]
    entries[0].add(1, producer_state.BatchMetadata(0, 4, 10, 4, NOW_MS))
    return [producer_snapshot.encode_snapshot(entries), producer_snapshot.encode_snapshot([])]


def _znode_seeds() -> list[bytes]:
    payloads = (
        b'{"version":5,"host":"h","port":9092,"jmx_port":-1,"timestamp":"1","endpoints":["PLAINTEXT://h:9092"],'
        b'"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},"rack":null,"features":{}}',
        b'{"version":2,"brokerid":1,"timestamp":"1","kraftControllerEpoch":-1}',
        b"17",
        b'{"version":3,"topic_id":"AQIDBAUGBwgJCgsMDQ4PEA","partitions":{"0":[1,2]},"adding_replicas":{},'
        b'"removing_replicas":{}}',
        b'{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":4,"isr":[1,2]}',
        b'{"version":1,"config":{"retention.ms":"1"}}',
        b'{"version":2,"entity_path":"topics/t"}',
        b'{"version":"1","id":"abc"}',
        b'{"version":1,"broker":1,"block_start":"1000","block_end":"1999"}',
    )
    return [bytes([index]) + payload for index, payload in enumerate(payloads)]


_OFFSETS = b"0\n2\ntopic 0 17\nother 3 1099511627776\n"
_ID = bytes(range(1, 17))

TARGETS: Final = (
    Target("frames", _frames, _stream_seeds),
    Target("requests", _request, lambda: _golden_frames() + _golden_lines()),
    Target("request-bodies", _every_request, _every_request_seeds),
    Target("produced-batches", _produced_batch, _produced_seeds),
    Target("records", _records, _batches),
    Target("compressed-records", _compressed_records, _compressed_seeds),
    *(_bare_codec(each) for each in CompressionType if each is not CompressionType.NONE),
    Target("group-protocol", _group_protocol, _group_seeds),
    Target("transaction-records", _transaction_record, _transaction_seeds),
    Target("producer-snapshot", _snapshot, _snapshot_seeds),
    Target("offset-index", _file(_offset_index), given(struct.pack(">6i", 0, 0, 5, 61, 9, 4096))),
    Target(
        "time-index",
        _file(lambda data: TimeIndex.from_bytes(1000, data).to_bytes()),
        given(struct.pack(">qiqi", NOW_MS, 0, NOW_MS + 5, 9)),
    ),
    Target(
        "transaction-index",
        _file(lambda data: TransactionIndex.from_bytes(0, data).to_bytes()),
        given(struct.pack(">hqqqqhqqqq", 0, 7, 1, 5, 9, 0, 8, 6, 9, 9)),
    ),
    Target("segment", _segment, lambda: [b"".join(_batches()[start : start + 3]) for start in range(0, 9, 3)]),
    Target("offset-checkpoint", _file(checkpoints.decode_offsets), given(_OFFSETS)),
    Target(
        "transaction-index-notes",
        _file(checkpoints.decode_txn_index_notes),
        given(b"0\n2\nt 0 0 34 4023233417\nu 3 128 0 0\n"),
    ),
    Target("epoch-checkpoint", _file(checkpoints.decode_leader_epochs), given(b"0\n2\n0 0\n3 17\n")),
    Target(
        "partition-metadata",
        _file(checkpoints.decode_partition_metadata),
        given(checkpoints.encode_partition_metadata(_ID)),
    ),
    Target(
        "meta-properties",
        _file(checkpoints.MetaProperties.decode),
        given(checkpoints.MetaProperties(1, "abc").encode()),
    ),
    Target(
        "log-directories",
        _file(DirectoryNote.decode),
        given(DirectoryNote("a", {"a": "/data/a", "b": "/data/with a space"}).encode()),
    ),
    Target(
        "properties",
        _file(_properties, PropertiesError),
        given(b"a=1\n b : \\u00e9\\n\\\n  more\n!c\nd\\ \\=e=\\ud83d\\ude00\n", b"\xff=\xfe\r\n"),
    ),
    Target("znodes", _file(_znode, znodes.DamagedZnode), _znode_seeds),
    *LOGIN_TARGETS,
    *SECURITY_TARGETS,
)


def targets(names: Sequence[str] = ()) -> Iterator[Target]:
    """The targets with these names; all targets without names. Raises KeyError for an unknown name."""
    by_name = {target.name: target for target in TARGETS}
    yield from (by_name[name] for name in names or by_name)
