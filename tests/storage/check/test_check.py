"""The offline checker: it reports nothing for a right directory, and the place of each kind of damage."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from barnabas.storage.check import report as check_report
from barnabas.storage.check.directory import Level, Report, check_directory
from barnabas.storage.check.segment import CheckLimits
from barnabas.storage.checkpoints import (
    CLEAN_SHUTDOWN_FILE,
    HIGH_WATERMARK_FILE,
    LEADER_EPOCH_FILE,
    META_PROPERTIES_FILE,
    PARTITION_METADATA_FILE,
    RECOVERY_POINT_FILE,
    MetaProperties,
    encode_leader_epochs,
    encode_offsets,
    encode_partition_metadata,
)
from barnabas.storage.os_files import OsFiles
from barnabas.storage.producer_snapshot import encode_snapshot
from barnabas.storage.producer_state import BatchMetadata, ProducerEntry
from barnabas.storage.txn_index import AbortedTransaction, encode_entry
from barnabas.storage.validation import AppendOrigin
from barnabas.wire.compression import CompressionType
from barnabas.wire.control_records import ControlRecordType, EndTxnMarker, build_end_txn_marker
from barnabas.wire.record_batch import parse_header
from barnabas.wire.records import Record, assemble_batch, build_batch
from tests.support.files import RuledFiles

FIRST = "00000000000000000000"
SECOND = "00000000000000000017"
PARTITION = "flights-0"
TOPIC_ID = bytes(range(16))


def a_batch(base_offset: int, count: int, timestamp: int, epoch: int, codec: CompressionType) -> bytearray:
    records = [Record(base_offset + i, timestamp + i, b"k", b"v" * 20) for i in range(count)]
    return build_batch(records, base_offset=base_offset, partition_leader_epoch=epoch, compression=codec)


def transaction(base_offset: int, epoch: int) -> list[bytearray]:
    """Two records and the marker that aborts them: three offsets."""
    records = [Record(base_offset + i, 9000, b"k", b"v") for i in range(2)]
    data = build_batch(
        records,
        base_offset=base_offset,
        partition_leader_epoch=epoch,
        producer_id=77,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    marker = build_end_txn_marker(
        EndTxnMarker(ControlRecordType.ABORT, 3),
        producer_id=77,
        producer_epoch=0,
        timestamp_ms=9000,
        base_offset=base_offset + 2,
        partition_leader_epoch=epoch,
    )
    return [data, marker]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A log directory that was shut down cleanly: one partition, two segments, every kind of file."""
    write_partition(tmp_path / PARTITION)
    (tmp_path / META_PROPERTIES_FILE).write_bytes(MetaProperties(1, "cluster").encode())
    for name in (RECOVERY_POINT_FILE, HIGH_WATERMARK_FILE):
        (tmp_path / name).write_bytes(encode_offsets({("flights", 0): 27}))
    (tmp_path / CLEAN_SHUTDOWN_FILE).write_bytes(b"")
    return tmp_path


def write_partition(folder: Path) -> None:
    folder.mkdir()
    batches = [a_batch(0, 4, 1000, 0, CompressionType.NONE), a_batch(4, 6, 2000, 0, CompressionType.GZIP)]
    batches += [a_batch(10, 4, 1500, 2, CompressionType.LZ4), *transaction(14, 2)]
    starts = [sum(map(len, batches[:i])) for i in range(len(batches))]
    (folder / f"{FIRST}.log").write_bytes(b"".join(batches))
    (folder / f"{FIRST}.index").write_bytes(struct.pack(">iiii", 9, starts[1], 13, starts[2]))
    (folder / f"{FIRST}.timeindex").write_bytes(struct.pack(">qiqi", 2005, 9, 9000, 15))
    (folder / f"{FIRST}.txnindex").write_bytes(encode_entry(AbortedTransaction(77, 14, 16, 17)))
    (folder / f"{SECOND}.log").write_bytes(a_batch(17, 10, 3000, 5, CompressionType.ZSTD))
    (folder / f"{SECOND}.index").write_bytes(b"")
    (folder / f"{SECOND}.timeindex").write_bytes(struct.pack(">qi", 3009, 9))
    producer = ProducerEntry(77, 0, 3, 9000)
    producer.batches.append(BatchMetadata(0, 1, 15, 1, 9000))
    (folder / f"{SECOND}.snapshot").write_bytes(encode_snapshot([producer]))
    (folder / LEADER_EPOCH_FILE).write_bytes(encode_leader_epochs([(0, 0), (2, 10), (5, 17)]))
    (folder / PARTITION_METADATA_FILE).write_bytes(encode_partition_metadata(TOPIC_ID))


def found(report: Report, level: Level = Level.ERROR) -> list[str]:
    return [str(finding) for finding in report.findings if finding.level is level]


def damage(path: Path, position: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[position : position + len(data)] = data
    path.write_bytes(content)


def size_of_batch(path: Path, number: int) -> int:
    """Where a batch starts."""
    position = 0
    content = path.read_bytes()
    for _ in range(number):
        position = parse_header(content, position).end_position
    return position


@pytest.mark.parametrize("deep", [False, True])
def test_a_right_directory(directory: Path, deep: bool) -> None:
    report = check_directory(OsFiles(), directory, deep=deep)
    assert report.findings == []
    assert report.ok
    assert report.exit_code == 0
    assert (report.partitions, report.segments, report.batches, report.records) == (1, 2, 6, 27)
    assert report.bytes_checked == sum(path.stat().st_size for path in directory.rglob("*.log"))


def test_a_single_partition(directory: Path) -> None:
    assert check_directory(OsFiles(), directory / PARTITION, deep=True).findings == []


def test_the_report_is_json(directory: Path) -> None:
    damage(directory / PARTITION / f"{FIRST}.log", 70, b"\xff")
    report = check_directory(OsFiles(), directory)
    assert not report.ok
    assert report.exit_code == 1
    plain = json.loads(json.dumps(report.as_dict()))
    assert plain["errors"] == 1
    assert plain["findings"][0] == {
        "level": "error",
        "file": f"{PARTITION}/{FIRST}.log",
        "position": 0,
        "offset": 0,
        "message": "batch does not match its CRC",
    }


def test_a_batch_in_the_middle_is_damaged(directory: Path) -> None:
    log = directory / PARTITION / f"{FIRST}.log"
    second = size_of_batch(log, 1)
    damage(log, second + 30, b"\xff")
    report = check_directory(OsFiles(), directory)
    assert [f.position for f in report.findings if f.file.endswith(".log")] == [second]
    assert report.batches == 6, "the walk goes on behind it"


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("tail", [b"\0\0\0\0", a_batch(27, 3, 1, 5, CompressionType.NONE)[:-5], bytes(5000)])
def test_a_torn_end_is_an_error_only_after_a_clean_stop(directory: Path, tail: bytes, clean: bool) -> None:
    log = directory / PARTITION / f"{SECOND}.log"
    end = log.stat().st_size
    log.write_bytes(log.read_bytes() + tail)
    if not clean:
        (directory / CLEAN_SHUTDOWN_FILE).unlink()
    report = check_directory(OsFiles(), directory)
    assert report.ok is not clean
    assert [(f.level, f.position) for f in report.findings] == [(Level.ERROR if clean else Level.WARNING, end)]


def test_a_torn_last_batch_of_full_length(directory: Path) -> None:
    damage(directory / PARTITION / f"{SECOND}.log", 100, b"\0\0\0\0")
    assert not check_directory(OsFiles(), directory).ok
    (directory / CLEAN_SHUTDOWN_FILE).unlink()
    report = check_directory(OsFiles(), directory)
    assert len(found(report, Level.WARNING)) >= 1


def test_a_torn_end_of_an_older_segment_is_an_error(directory: Path) -> None:
    (directory / CLEAN_SHUTDOWN_FILE).unlink()
    log = directory / PARTITION / f"{FIRST}.log"
    log.write_bytes(log.read_bytes() + b"\0\0\0")
    assert not check_directory(OsFiles(), directory).ok


def rewrite(change: Callable[[list[bytearray]], list[bytearray]]) -> Callable[[Path], None]:
    """Rebuild the second segment from changed batches."""

    def apply(folder: Path) -> None:
        batches = change([bytearray((folder / f"{SECOND}.log").read_bytes())])
        (folder / f"{SECOND}.log").write_bytes(b"".join(batches))

    return apply


def with_header(**fields: int) -> Callable[[list[bytearray]], list[bytearray]]:
    def change(batches: list[bytearray]) -> list[bytearray]:
        header = parse_header(batches[0])._replace(**fields)
        return [assemble_batch(header, batches[0][61:])]

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda batches: batches * 2, "offset 17 follows 26"),
        (with_header(base_offset=16), "offset 16 follows 16"),
        (with_header(base_offset=17 + 2**31), "too far"),
        (with_header(record_count=-1), "-1 records"),
        (with_header(record_count=11), "11 records"),
        (with_header(last_offset_delta=-1), "records in offsets"),
        (with_header(attributes=6), "unknown compression type 6"),
        (with_header(partition_leader_epoch=1), "leader epoch 1 follows 2"),
        (with_header(partition_leader_epoch=3), "says epoch 5 where the log has 3"),
        (lambda batches: [bytearray(b"nonsense") * 20], "no batch"),
        (lambda batches: [batches[0][:16] + b"\1" + batches[0][17:]], "magic 1"),
    ],
)
def test_batches_that_cannot_follow(
    directory: Path, change: Callable[[list[bytearray]], list[bytearray]], message: str
) -> None:
    rewrite(change)(directory / PARTITION)
    report = check_directory(OsFiles(), directory)
    assert any(message in text for text in found(report)), found(report)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_header(record_count=9), "bytes follow"),
        (with_header(base_timestamp=0), "max timestamp"),
        (with_header(last_offset_delta=20), None),
        (with_header(attributes=1), "gzip"),
    ],
)
def test_records_are_compared_with_their_batch_when_asked(
    directory: Path, change: Callable[[list[bytearray]], list[bytearray]], message: str | None
) -> None:
    rewrite(change)(directory / PARTITION)
    shallow = [text for text in found(check_directory(OsFiles(), directory)) if "contradict" in text]
    deep = [text for text in found(check_directory(OsFiles(), directory, deep=True)) if "contradict" in text]
    assert shallow == []
    assert len(deep) == (message is not None)
    assert message is None or message in deep[0]


def test_offsets_inside_a_batch_ascend(directory: Path) -> None:
    records = [Record(offset, 3000, None, None) for offset in (17, 20)]
    payload = build_batch(records, base_offset=17)[61:]
    batch = assemble_batch(parse_header(build_batch(records, base_offset=17))._replace(last_offset_delta=1), payload)
    (directory / PARTITION / f"{SECOND}.log").write_bytes(batch)
    assert any("record of offset 20" in text for text in found(check_directory(OsFiles(), directory, deep=True)))


FIRST_LOG = f"{PARTITION}/{FIRST}.log"


def write_index(directory: Path, entries: list[tuple[int, int]]) -> None:
    content = b"".join(struct.pack(">ii", *entry) for entry in entries)
    (directory / PARTITION / f"{FIRST}.index").write_bytes(content)


def starts(directory: Path) -> list[int]:
    return [size_of_batch(directory / FIRST_LOG, number) for number in range(5)]


def test_offset_indexes_that_mislead(directory: Path) -> None:
    at = starts(directory)
    for entries, message in (
        ([(9, at[1] + 5)], "not the start of a batch"),
        ([(9, 1_000_000)], "behind the last batch"),
        ([(13, at[2]), (9, at[1])], "may not follow"),
        ([(9, at[1]), (9, at[2])], "may not follow"),
        ([(-1, at[1])], "may not follow"),
        ([(3, at[1])], "starts behind offset 3"),
    ):
        write_index(directory, entries)
        errors = found(check_directory(OsFiles(), directory))
        assert len(errors) == 1, errors
        assert message in errors[0]


def test_an_offset_index_that_is_merely_vague(directory: Path) -> None:
    write_index(directory, [(5, starts(directory)[1])])
    report = check_directory(OsFiles(), directory)
    assert report.ok
    assert len(found(report, Level.WARNING)) == 1


def test_preallocated_indexes_are_fine(directory: Path) -> None:
    for name in (f"{FIRST}.index", f"{FIRST}.timeindex", f"{SECOND}.index"):
        path = directory / PARTITION / name
        path.write_bytes(path.read_bytes() + bytes(24 * 50_000))
    report = check_directory(OsFiles(), directory)
    assert report.ok
    assert len(found(report, Level.NOTE)) == 3


def test_indexes_end_with_whole_entries(directory: Path) -> None:
    for suffix in (".index", ".timeindex", ".txnindex"):
        path = directory / PARTITION / f"{FIRST}{suffix}"
        path.write_bytes(path.read_bytes() + b"x")
    assert len(found(check_directory(OsFiles(), directory))) == 3


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([(2004, 9)], "max timestamp 2005, not 2004"),
        ([(2005, 3)], "max timestamp 1003, not 2005"),
        ([(1503, 13)], "later than 1503"),
        ([(2005, 9), (2005, 13)], "may not follow"),
        ([(-5, 9)], "may not follow"),
        ([(10_000, 100)], "behind the last batch"),
    ],
)
def test_time_indexes_that_mislead(directory: Path, entries: list[tuple[int, int]], message: str) -> None:
    content = b"".join(struct.pack(">qi", *entry) for entry in entries)
    (directory / PARTITION / f"{FIRST}.timeindex").write_bytes(content)
    errors = found(check_directory(OsFiles(), directory))
    assert len(errors) == 1, errors
    assert message in errors[0]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (AbortedTransaction(78, 14, 16, 17), "no abort marker of producer 78"),
        (AbortedTransaction(77, 14, 15, 17), "no abort marker"),
        (AbortedTransaction(77, 17, 16, 17), "may not follow"),
        (AbortedTransaction(77, 14, 18, 19), "behind the last batch"),
    ],
)
def test_transaction_indexes_that_mislead(directory: Path, entry: AbortedTransaction, message: str) -> None:
    (directory / PARTITION / f"{FIRST}.txnindex").write_bytes(encode_entry(entry))
    errors = found(check_directory(OsFiles(), directory))
    (wrong,) = [error for error in errors if "lacks" not in error]
    assert message in wrong
    # The transaction that it should have named is missed, unless another entry stands at its marker.
    assert any("lacks what producer 77" in error for error in errors) == (
        entry.last_offset != 16 or "follow" in message
    )


def test_a_transaction_index_that_is_missing(directory: Path) -> None:
    (directory / PARTITION / f"{FIRST}.txnindex").unlink()
    (error,) = found(check_directory(OsFiles(), directory))
    assert "lacks what producer 77 aborted from 14 on" in error


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (f"{PARTITION}/{SECOND}.snapshot", b"", "snapshot"),
        (f"{PARTITION}/{SECOND}.snapshot", encode_snapshot([])[:-1] + b"\1", "snapshot"),
        (f"{PARTITION}/00000000000000000015.snapshot", None, "behind the snapshot's 15"),
        (f"{PARTITION}/{LEADER_EPOCH_FILE}", b"0\n1\nx y\n", "malformed"),
        (f"{PARTITION}/{LEADER_EPOCH_FILE}", encode_leader_epochs([(2, 10), (0, 0)]), "not ascending"),
        (f"{PARTITION}/{LEADER_EPOCH_FILE}", encode_leader_epochs([(0, 0), (2, 10)]), "says epoch 2 where"),
        (f"{PARTITION}/{PARTITION_METADATA_FILE}", b"version: 0\n", "malformed"),
        (META_PROPERTIES_FILE, b"version=1\nnode.id=1\n", "KRaft"),
        (RECOVERY_POINT_FILE, b"1\n0\n", "version"),
        (HIGH_WATERMARK_FILE, b"\xff\xfe", "not UTF-8 text"),
    ],
)
def test_small_files_that_are_damaged(directory: Path, name: str, content: bytes | None, message: str) -> None:
    if content is None:
        content = (directory / PARTITION / f"{SECOND}.snapshot").read_bytes()
    (directory / name).write_bytes(content)
    report = check_directory(OsFiles(), directory)
    assert [finding.file for finding in report.findings if finding.level is Level.ERROR] == [name]
    assert message in found(report)[0]


def test_epochs_before_the_log_start_are_forgotten(directory: Path) -> None:
    (directory / PARTITION / LEADER_EPOCH_FILE).write_bytes(encode_leader_epochs([(2, 12), (5, 17)]))
    assert check_directory(OsFiles(), directory).findings == []
    (directory / PARTITION / LEADER_EPOCH_FILE).write_bytes(encode_leader_epochs([(1, 12), (5, 17)]))
    assert len(found(check_directory(OsFiles(), directory))) == 1


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("recovery_point", [None, 17, 18])
def test_epochs_after_the_last_flush_are_added_by_a_start(
    directory: Path, clean: bool, recovery_point: int | None
) -> None:
    (directory / PARTITION / LEADER_EPOCH_FILE).write_bytes(encode_leader_epochs([(0, 0), (2, 10)]))
    if not clean:
        (directory / CLEAN_SHUTDOWN_FILE).unlink()
    points = {} if recovery_point is None else {("flights", 0): recovery_point}
    (directory / RECOVERY_POINT_FILE).write_bytes(encode_offsets(points))
    report = check_directory(OsFiles(), directory)
    if clean or recovery_point == 18:
        assert any("says epoch 2 where the log has 5" in text for text in found(report))
    else:
        assert found(report) == found(report, Level.WARNING) == []
        [noted] = found(report, Level.NOTE)
        assert "does not have epoch 5 yet" in noted


def test_checkpoints_beyond_the_end_are_warned_of(directory: Path) -> None:
    (directory / HIGH_WATERMARK_FILE).write_bytes(encode_offsets({("flights", 0): 28, ("gone", 1): 3}))
    report = check_directory(OsFiles(), directory)
    assert report.ok
    assert "ends at 27, not 28" in found(report, Level.WARNING)[0]
    assert "gone-1" in found(report, Level.NOTE)[0]


def test_partitions_of_one_topic_share_its_id(directory: Path) -> None:
    write_partition(directory / "flights-1")
    assert check_directory(OsFiles(), directory).findings == []
    (directory / "flights-1" / PARTITION_METADATA_FILE).write_bytes(encode_partition_metadata(b"x" * 16))
    assert "topic id" in found(check_directory(OsFiles(), directory))[0]


def test_segments_do_not_overlap(directory: Path) -> None:
    folder = directory / PARTITION
    for path in list(folder.glob(f"{SECOND}.*")):
        path.rename(folder / path.name.replace(SECOND, "00000000000000000016"))
    assert any("before the end" in text for text in found(check_directory(OsFiles(), directory)))


def test_other_names_are_noted(directory: Path) -> None:
    for folder in ("lost+found", f"flights-3.{'a' * 32}-delete", f"flights-4.{'b' * 32}-future", "empty-0"):
        (directory / folder).mkdir()
    for name in ("readme.txt", f"{FIRST}.log.deleted"):
        (directory / PARTITION / name).write_bytes(b"x")
    (directory / PARTITION / "00000000000000000099.index").write_bytes(b"")
    (directory / PARTITION / "99999999999999999999.log").write_bytes(b"")
    report = check_directory(OsFiles(), directory)
    assert len(found(report, Level.NOTE)) == 7
    assert len(found(report, Level.WARNING)) == 1
    assert found(report) == [f"error: {PARTITION}/99999999999999999999.log: has a name that is no offset"]


@pytest.mark.parametrize("is_named", [False, True])
def test_a_hidden_folder_is_a_partition_only_if_it_is_known(directory: Path, is_named: bool) -> None:
    """The trash folder of a desktop has the form of a log's name."""
    (directory / ".Trash-1000" / "files").mkdir(parents=True)
    if is_named:
        (directory / RECOVERY_POINT_FILE).write_bytes(encode_offsets({("flights", 0): 27, (".Trash", 1000): 0}))
    report = check_directory(OsFiles(), directory)
    assert (".Trash-1000: is no partition" in found(report, Level.NOTE)[0]) == (not is_named)
    assert report.partitions == 1 + is_named


def test_missing_files_are_noted(directory: Path) -> None:
    for path in (
        directory / META_PROPERTIES_FILE,
        directory / PARTITION / LEADER_EPOCH_FILE,
        directory / PARTITION / PARTITION_METADATA_FILE,
    ):
        path.unlink()
    report = check_directory(OsFiles(), directory)
    assert report.ok
    assert len(found(report, Level.NOTE)) == 3


def test_findings_are_limited(directory: Path) -> None:
    batch = a_batch(17, 1, 1, 5, CompressionType.NONE)
    (directory / PARTITION / f"{SECOND}.log").write_bytes(batch * 500)
    report = check_directory(OsFiles(), directory)
    assert len(found(report)) <= check_report.FINDINGS_PER_FILE_MAX + 10
    assert any("more findings" in text for text in found(report))


def test_batches_larger_than_the_window_are_checked_in_pieces(directory: Path) -> None:
    sizes = set()
    files = RuledFiles(pread=lambda _descriptor, size, _position: sizes.add(size))
    assert check_directory(files, directory, deep=True, limits=CheckLimits(window_bytes=64)).findings == []
    assert 64 in sizes
    limits = CheckLimits(window_bytes=64, opened_batch_bytes_max=100)
    report = check_directory(OsFiles(), directory, deep=True, limits=limits)
    assert any("too large to be opened" in text for text in found(report, Level.WARNING))


def test_a_file_that_cannot_be_opened_is_a_finding(directory: Path) -> None:
    for name in (f"{SECOND}.log", LEADER_EPOCH_FILE):
        path = directory / PARTITION / name
        path.unlink()
        path.symlink_to(directory / "nowhere")
    assert len([text for text in found(check_directory(OsFiles(), directory)) if "cannot be read" in text]) == 2


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_never_escapes(directory: Path, data: st.DataObject) -> None:
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    path = data.draw(st.sampled_from(paths))
    before = path.read_bytes()
    try:
        after = bytearray(before)
        for _ in range(data.draw(st.integers(1, 4)) if after else 0):
            after[data.draw(st.integers(0, len(after) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(after[: data.draw(st.integers(0, len(after)))] + data.draw(st.binary(max_size=20)))
        assert isinstance(check_directory(OsFiles(), directory, deep=True).as_dict(), dict)
    finally:
        path.write_bytes(before)


@pytest.mark.parametrize("clean", [True, False])
def test_a_check_finds_no_error_in_the_brokers_files(logs: Any, clean: bool) -> None:
    """Rolled segments, every codec, several epochs, an aborted transaction, a clean and an unclean stop."""
    logs.topic_id = TOPIC_ID
    log = logs.log("flights", 0, segment_bytes=4000, index_interval_bytes=300)
    for number in range(60):
        codec = list(CompressionType)[number % 5]
        values = [b"%d of %d" % (value, number) for value in range(number % 7 + 1)]
        logs.append(log, *values, epoch=number // 20, compression=codec)
        logs.clock.advance(100)
    ours = {"producer_id": 7, "producer_epoch": 0}
    logs.append(log, b"a", b"b", epoch=3, base_sequence=0, transactional=True, **ours)
    marker = build_end_txn_marker(EndTxnMarker(ControlRecordType.ABORT, 1), timestamp_ms=logs.clock.now_ms(), **ours)
    log.append_as_leader(marker, leader_epoch=3, now_ms=logs.clock.now_ms(), origin=AppendOrigin.COORDINATOR)
    logs.append(log, b"c", epoch=3)
    logs.stop(clean=clean)
    report = check_directory(OsFiles(), logs.path, deep=True)
    assert report.ok, found(report)
    assert [text for text in found(report, Level.WARNING) if "flights" in text] == []
    assert report.segments > 1
    assert report.batches == 63
