"""Compaction in a broker that runs, as a stock client sees it."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, Self

import pytest
import zstandard
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from barnabas.broker.configuration.config import load
from barnabas.broker.environment import Environment
from barnabas.broker.http.figures import take_snapshot
from barnabas.broker.upkeep import compaction
from barnabas.broker.upkeep.cleaner_process import Throttle, command, decode_result, encode_job
from barnabas.storage.compaction.cleaner import CleanedSegment, CleaningJob, SourceSegment
from barnabas.storage.errors import CorruptLog, StorageError, is_passing
from barnabas.storage.os_files import UnsyncedFiles
from barnabas.testing import Broker
from barnabas.testing.brokers.broker_thread import BrokerThread
from barnabas.wire.messages.produce import ProduceResponse
from barnabas.wire.record_batch import iter_headers, parse_header, patch
from barnabas.wire.records import Record, assemble_batch, build_batch
from barnabas.wire.varint import encode_varint
from tests.support.bugs import Bug
from tests.support.files import RuledFiles
from tools.attack import hostile
from tools.attack.hostile import Memory, ask, connect
from tools.processes import children
from tools.processes.barnabas import BarnabasProcess
from tools.waiting import PATIENCE_S, wait_until

SETTINGS = {
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.segment.bytes": "20000",
}


SIZE_FOR_A_PROCESS = 5 << 20
"""A pass over less than 4 MiB runs in a thread."""


@pytest.fixture
def process() -> Iterator[BarnabasProcess]:
    with BarnabasProcess(SETTINGS) as process:
        yield process


class Served(Protocol):
    """A broker of one kind or another."""

    @property
    def bootstrap_servers(self) -> str: ...


class BrokerIn(BrokerThread):
    """A broker on a thread of its own, in that environment."""

    def __init__(self, data_dir: Path, environment: Environment) -> None:
        options = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(data_dir), **SETTINGS}
        super().__init__(load(options=options), environment)

    @property
    def bootstrap_servers(self) -> str:
        return self.server.socket_server.bootstrap_servers

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def create(process: Served, topic: str, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": process.bootstrap_servers})
    settings = {"cleanup.policy": "compact", **{key.replace("_", "."): value for key, value in config.items()}}
    admin.create_topics([NewTopic(topic, 1, 1, config=settings)])[topic].result(PATIENCE_S)


def produce(process: Served, topic: str, count: int, keys: int, size: int = 100, first: int = 0) -> None:
    refused: list[Any] = []
    producer = Producer(
        {"bootstrap.servers": process.bootstrap_servers, "enable.idempotence": True, "batch.size": 10_000}
    )
    for number in range(first, first + count):
        producer.produce(
            topic, key=b"%d" % (number % keys), value=b"%d " % number + b"x" * size,
            on_delivery=lambda error, _: refused.append(error))  # fmt: skip
        if number % 1000 == 0:
            producer.flush()
    assert producer.flush(PATIENCE_S) == 0
    assert not any(refused)


def read(process: Served, topic: str) -> list[tuple[int, bytes | None, bytes | None]]:
    """(offset, key, value) of everything from the beginning to the end."""
    consumer = Consumer(
        {"bootstrap.servers": process.bootstrap_servers, "group.id": "reader", "enable.auto.commit": False,
         "enable.partition.eof": True})  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: list[tuple[int, bytes | None, bytes | None]] = []
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for message in consumer.consume(1000, timeout=0.1):
            if message.error() is not None:
                consumer.close()
                return found
            found.append((message.offset() or 0, message.key(), message.value()))
    raise AssertionError("the end was not reached")


def clean_offset(process: BarnabasProcess, topic: str) -> int:
    path = process.log_dir / "cleaner-offset-checkpoint"
    lines = path.read_text().splitlines()[2:] if path.exists() else []
    return max((int(line.split()[2]) for line in lines if line.split()[0] == topic), default=0)


@pytest.mark.slow
@pytest.mark.parametrize("size", [100, 2500], ids=["in a thread", "in a process"])
def test_a_client_reads_the_last_value_of_each_key(process: BarnabasProcess, size: int) -> None:
    create(process, "topic", segment_bytes=str(size * 1000))
    count, keys = 3000, 50
    produce(process, "topic", count, keys, size)
    wait_until(lambda: clean_offset(process, "topic") > count // 2, "compacted")
    found = read(process, "topic")
    newest = {key: value for _, key, value in found}
    assert {key: int((value or b"").split()[0]) for key, value in newest.items()} == {
        b"%d" % (number % keys): number for number in range(count - keys, count)
    }
    offsets = [offset for offset, _, _ in found]
    assert offsets == sorted(set(offsets))
    assert all(int((value or b"").split()[0]) == offset for offset, _, value in found)
    assert len(found) < count * 2 // 3
    process.kill()
    process.start()
    assert read(process, "topic")[-keys:] == found[-keys:]
    produce(process, "topic", 10, keys, first=count)
    assert read(process, "topic")[-1][0] == count + 9


@pytest.mark.slow
def test_group_offsets_survive_the_compaction_of_their_topic(process: BarnabasProcess) -> None:
    create(process, "topic", cleanup_policy="delete")
    consumer = Consumer({"bootstrap.servers": process.bootstrap_servers, "group.id": "group"})
    other = Consumer({"bootstrap.servers": process.bootstrap_servers, "group.id": "seldom"})
    other.commit(offsets=[TopicPartition("topic", 0, 7)], asynchronous=False)
    for offset in range(400):
        consumer.commit(offsets=[TopicPartition("topic", 0, offset, "m" * 50)], asynchronous=False)
    other.close()
    wait_until(lambda: clean_offset(process, "__consumer_offsets") > 100, "compacted")
    folder = process.log_dir / "__consumer_offsets-0"
    assert (folder / f"{0:020}.log").stat().st_size < 5000
    process.kill()
    process.start()
    for group, expected in (("group", 399), ("seldom", 7)):
        reader = Consumer({"bootstrap.servers": process.bootstrap_servers, "group.id": group})
        (found,) = reader.committed([TopicPartition("topic", 0)], timeout=PATIENCE_S)
        reader.close()
        assert found.offset == expected
    consumer.close()


def held_job(path: Path) -> CleaningJob:
    """Of three segments, the large one in the middle is what a throttle holds a pass at; only the last is dirty."""
    segments = []
    for base_offset, size in enumerate([10, 1_000_000, 10]):
        batch = build_batch([Record(0, 0, b"key %d" % base_offset, bytes(size))])
        patch(batch, 0, base_offset, 0)
        file = path / f"{base_offset:020}.log"
        file.write_bytes(batch)
        segments.append(SourceSegment(base_offset, str(file), len(batch)))
    return CleaningJob(str(path), segments, [], 2, 3, {}, 0, 0, 1000, 1000, 1000, 10)


def start_cleaning(order: bytes, arguments: list[str]) -> tuple["subprocess.Popen[bytes]", int]:
    """A cleaning process that has cleaned its first segment, and the descriptor that holds its life."""
    read_end, write_end = os.pipe()
    process = subprocess.Popen(arguments, stdin=read_end, stdout=subprocess.PIPE)
    os.close(read_end)
    os.write(write_end, order)
    assert process.stdout is not None
    assert isinstance(decode_result(process.stdout.readline()), CleanedSegment)
    return process, write_end


@pytest.mark.slow
@pytest.mark.parametrize("plant", ["", "cleaner_process._end_with_parent = lambda: None; "])
def test_a_cleaning_process_ends_with_its_parent(plant: str, tmp_path: Path) -> None:
    order = encode_job(held_job(tmp_path), is_durable=True, max_bytes_per_second=10_000)
    *start, statement, paths = command(sys.executable)
    planted = statement.replace("main()", f"from barnabas.broker.upkeep import cleaner_process; {plant}main()")
    process, write_end = start_cleaning(order, [*start, planted, paths])
    with process:
        assert process.poll() is None
        os.close(write_end)
        if plant:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(2)
            process.kill()
        else:
            assert children.wait(process) == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize("end", [BarnabasProcess.stop, BarnabasProcess.kill])
def test_no_cleaning_process_outlives_its_broker(end: Callable[[BarnabasProcess], object]) -> None:
    with BarnabasProcess({**SETTINGS, "log.cleaner.io.max.bytes.per.second": "10"}) as process:
        create(process, "topic", segment_bytes="5000000")
        produce(process, "topic", 120, 10, size=50_000)
        pid = process.pid
        wait_until(lambda: bool(cleaners(pid)), "no pass began")
        (child,) = cleaners(pid)
        end(process)
        wait_until(lambda: not is_running(child), "it outlived its broker")


def cleaners(broker: int) -> list[int]:
    """The cleaning processes of a broker: whichever of its threads started them."""
    tasks = Path(f"/proc/{broker}/task").glob("*/children")
    children = [int(pid) for task in tasks for pid in task.read_text().split()]
    return [pid for pid in children if b"cleaner_process" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_log_without_room_is_compacted_later() -> None:
    files = RuledFiles()
    files.refuse("open", errno.ENOSPC, lambda path: path.endswith(".cleaned"))
    settings = {"cleanup.policy": "compact", "segment.bytes": 2000, "min.cleanable.dirty.ratio": 0.01}
    with Broker(files=files, configs=SETTINGS) as broker:
        topic = broker.create_topic("t", configs=settings)
        for number in range(60):
            topic.produce(b"v" * 200, key=b"%d" % (number % 3))
        wait_until(lambda: len(files.refused) >= 2, "no second try")
        files.heal()
        wait_until(lambda: len(topic.records()) < 20, "not compacted")
        assert {record.key for record in topic.records()} == {b"0", b"1", b"2"}


def test_nothing_is_swapped_before_a_start_would_know_of_it() -> None:
    """Recovery takes gaps in a log that was never compacted for losses."""
    files = RuledFiles()
    settings = {"cleanup.policy": "compact", "segment.bytes": 2000, "min.cleanable.dirty.ratio": 0.01}
    with Broker(files=files, configs=SETTINGS) as broker:
        files.refuse("open", errno.ENOSPC, lambda path: path.endswith("/cleaner-offset-checkpoint.tmp"))
        topic = broker.create_topic("t", configs=settings)
        for number in range(60):
            topic.produce(b"v" * 200, key=b"%d" % (number % 3))
        wait_until(lambda: len(files.refused) >= 2, "no second try")
        assert len(topic.records()) == 60
        files.heal()
        wait_until(lambda: len(topic.records()) < 20, "not compacted")
        assert {record.key for record in topic.records()} == {b"0", b"1", b"2"}


@pytest.mark.slow
def test_a_pass_whose_process_fails_is_made_again(tmp_path: Path) -> None:
    """It is not to be started, ends in the middle of a line, is killed when memory runs out."""
    tried, interpreter = tmp_path / "tried", tmp_path / "python"
    with BrokerIn(tmp_path / "data", Environment(files=UnsyncedFiles(), interpreter=str(interpreter))) as broker:
        create(broker, "t", segment_bytes=str(SIZE_FOR_A_PROCESS))
        produce(broker, "t", 60, 3, size=SIZE_FOR_A_PROCESS // 50)
        aside = broker.server.compaction.set_aside
        wait_until(lambda: aside.failures > 0, "it was started")
        (draft := tmp_path / "draft").write_text(
            "#!/bin/sh\n"
            f"echo >> {tried}\n"
            f"case $(wc -l < {tried}) in\n"
            """1) printf '["end", 1';;\n"""
            "2) kill -9 $$;;\n"
            "3) echo '[]';;\n"
            f"""*) exec {sys.executable} "$@";;\n"""
            "esac\n"
        )
        draft.chmod(0o700)
        draft.rename(interpreter)
        wait_until(lambda: len(read(broker, "t")) < 20, "not compacted")
        assert aside.failures > 3
        assert len(tried.read_text()) > 3
        assert {key for _, key, _ in read(broker, "t")} == {b"0", b"1", b"2"}


class FilesOfThisProcess(UnsyncedFiles):
    """Files that no other process is said to find, as those of a disk in memory."""

    is_shared = False


@pytest.mark.slow
def test_files_of_this_process_alone_are_compacted_in_it(tmp_path: Path) -> None:
    """However large the pass is."""
    with BrokerIn(tmp_path, Environment(files=FilesOfThisProcess(), interpreter="/nowhere")) as broker:
        create(broker, "t", segment_bytes=str(SIZE_FOR_A_PROCESS))
        produce(broker, "t", 60, 3, size=SIZE_FOR_A_PROCESS // 50)
        wait_until(lambda: len(read(broker, "t")) < 20, "not compacted")
        assert broker.server.compaction.set_aside.failures == 0
        assert {key for _, key, _ in read(broker, "t")} == {b"0", b"1", b"2"}


@pytest.mark.slow
def test_clean_offsets_survive_a_start_without_compaction(tmp_path: Path) -> None:
    settings = {"segment.bytes": 2000, "min.cleanable.dirty.ratio": 0.01}
    path = tmp_path / "cleaner-offset-checkpoint"

    def compact(broker: Broker, name: str) -> None:
        topic = broker.create_topic(name, configs={**settings, "cleanup.policy": "compact"})
        for number in range(60):
            topic.produce(b"v" * 200, key=b"%d" % (number % 3))
        wait_until(lambda: path.exists() and f"{name} 0 5" in path.read_text(), "not compacted")

    with Broker(data_dir=tmp_path, configs=SETTINGS) as broker:
        compact(broker, "first")
        policy = ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, "first", incremental_configs=[policy])
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
        broker.restart()
        compact(broker, "second")
        assert "first 0 5" in path.read_text()


@pytest.mark.slow
def test_a_batch_that_decompresses_to_too_much_stays_as_it_is(process: BarnabasProcess) -> None:
    """Nobody opens it when it is produced, as long as the topic is not compacted."""
    create(process, "topic", cleanup_policy="delete", segment_bytes="14000")
    zeros, stream = bytes(1 << 20), zstandard.ZstdCompressor().compressobj()
    payload = b"".join(stream.compress(zeros) for _ in range(400)) + stream.flush()
    bomb = assemble_batch(
        parse_header(build_batch([Record(0, time.time_ns() // 1_000_000, b"k", b"v")]))._replace(attributes=4), payload
    )
    assert len(bomb) < 20_000
    with connect(process.bootstrap_servers) as connection:
        for _ in range(4):
            response = ask(connection, hostile.produce("topic", bomb), 9, ProduceResponse)
            assert response.responses[0].partition_responses[0].error_code == 0
    produce(process, "topic", 300, 3, size=200)
    memory = Memory(process.pid)
    policy = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, "topic", incremental_configs=[policy])
    admin = AdminClient({"bootstrap.servers": process.bootstrap_servers})
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
    wait_until(lambda: clean_offset(process, "topic") > 100, "not compacted")
    assert memory.highest < memory.before + (96 << 20), "64 MiB, and what the codec needs beside"
    assert process.log_text().count("batches that cannot be decompressed") == 1
    data = b"".join(path.read_bytes() for path in sorted((process.log_dir / "topic-0").glob("*.log")))
    found = [header for header in iter_headers(data) if header.attributes == 4]
    assert [data[header.position + 61 : header.end_position] for header in found] == [payload] * 4
    assert len(data) < 4 * len(bomb) + 60_000


@pytest.mark.slow
def test_a_log_with_a_disk_error_is_not_compacted_again() -> None:
    """Until the next start, while others are compacted again and again; what it has is served."""
    files = RuledFiles()
    files.refuse("open", errno.EIO, lambda path: path.endswith(".cleaned") and "/bad-0/" in path)
    settings = {"cleanup.policy": "compact", "segment.bytes": 2000, "min.cleanable.dirty.ratio": 0.01}
    with Broker(files=files, configs=SETTINGS) as broker:
        bad, good = (broker.create_topic(name, configs=settings) for name in ("bad", "good"))
        for number in range(60):
            bad.produce(b"v" * 200, key=b"%d" % (number % 3))
        wait_until(lambda: bool(files.refused), "no pass began")
        for _ in range(2):
            for number in range(60):
                good.produce(b"v" * 200, key=b"%d" % (number % 3))
            wait_until(lambda: len(good.records()) < 20, "not compacted")
        assert len(files.refused) == 1
        assert len(bad.records()) == 60


def crafted(number: int) -> bytearray:
    """A batch whose two records' timestamps no long can hold."""
    now_ms = time.time_ns() // 1_000_000
    parts = []
    for delta, (key, value) in enumerate([(b"same", b"%d" % number), (b"", None)]):
        body = b"\0" + encode_varint(2**63 - 1) + encode_varint(delta) + encode_varint(len(key)) + key
        body += (encode_varint(-1) if value is None else encode_varint(len(value)) + value) + encode_varint(0)
        parts.append(encode_varint(len(body)) + body)
    header = parse_header(build_batch([Record(0, now_ms, b"", b""), Record(1, now_ms, b"", b"")]))
    return assemble_batch(header._replace(base_sequence=-1), b"".join(parts))


@pytest.mark.slow
def test_permanent_tombstones_and_crafted_batches_are_compacted(
    process: BarnabasProcess,
) -> None:
    create(process, "ever", segment_bytes="14000", delete_retention_ms=str(2**63 - 1))
    create(process, "crafted", cleanup_policy="delete", segment_bytes="5000")
    create(process, "good", segment_bytes="14000")
    producer = Producer({"bootstrap.servers": process.bootstrap_servers})
    producer.produce("ever", key=b"dead", value=None)
    assert producer.flush(PATIENCE_S) == 0
    with connect(process.bootstrap_servers) as connection:
        for number in range(80):
            response = ask(connection, hostile.produce("crafted", crafted(number)), 9, ProduceResponse)
            assert response.responses[0].partition_responses[0].error_code == 0
    policy = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, "crafted", incremental_configs=[policy])
    admin = AdminClient({"bootstrap.servers": process.bootstrap_servers})
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
    for topic in ("ever", "good"):
        produce(process, topic, 200, 3)
    for topic in ("ever", "crafted", "good"):
        wait_until(lambda topic=topic: clean_offset(process, topic) > 50, f"{topic} is not compacted")  # type: ignore[misc]
    assert (0, b"dead", None) in read(process, "ever")
    assert "Traceback" not in process.log_text()


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["log_to_clean", "make_job", "run_pass"])
def test_a_log_that_raises_does_not_stop_compaction_of_others(
    plan: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def is_bad(*arguments: Any) -> bool:
        logs = [getattr(found, "log", found) for found in arguments]
        return "/bad-0" in repr(arguments) + repr([getattr(log, "directory", "") for log in logs])

    bug = Bug(monkeypatch, compaction, plan, is_bad)
    settings = {"cleanup.policy": "compact", "segment.bytes": 2000, "min.cleanable.dirty.ratio": 0.01}
    with Broker(configs={**SETTINGS, "barnabas.http.address": "127.0.0.1:0"}) as broker:
        bad, good = (broker.create_topic(name, configs=settings) for name in ("bad", "good"))
        for topic in (bad, good):
            for number in range(60):
                topic.produce(b"v" * 200, key=b"%d" % (number % 3))
        aside = broker.server.compaction.set_aside
        wait_until(lambda: aside.failures > 1 and len(good.records()) < 20, "not compacted, or no second try")
        figures = take_snapshot(broker.server.metric_sources())
        (uncleanable,) = figures.uncleanable
        assert (uncleanable.count, uncleanable.directory) == (1, str(broker.data_dir))
        assert uncleanable.size_bytes > 60 * 200
        assert [(found.activity, found.count) for found in figures.set_aside if found.count] == [("compaction", 1)]
        assert len(bad.records()) == 60
        bug.is_there = False
        # The records are gone with the swap, a moment before the end of the pass brings the log back.
        wait_until(lambda: len(bad.records()) < 20 and not aside.members, "not compacted")
    assert next(record.getMessage() for record in caplog.records if record.name == "barnabas.set_aside") == (
        "compaction of bad-0 failed, the next try is in 0 s or later: ValueError: nobody foresaw this"
    )
    assert caplog.text.count("Traceback") == 1


def test_the_cleaning_process_tells_what_the_disk_said() -> None:
    with pytest.raises(OSError, match="no room") as raised:
        decode_result(json.dumps(["refused", errno.ENOSPC, "no room"]).encode() + b"\n")
    assert is_passing(raised.value)


@pytest.mark.parametrize("line", [b"", b'["end", 1', b"[]\n", b"1\n", b"x\n", b'["end", 1]\n', b"\xff\n"])
def test_an_invalid_result_fails_the_pass(line: bytes) -> None:
    with pytest.raises(StorageError, match="the cleaning process"):
        decode_result(line)


def test_the_cleaning_process_tells_what_is_damaged() -> None:
    with pytest.raises(CorruptLog, match="at byte 7: why") as raised:
        decode_result(json.dumps(["corrupt", "path", 7, "why"]).encode() + b"\n")
    assert raised.value.path == "path"


def test_an_abandoned_throttled_pass_ends() -> None:
    questions: list[None] = []
    throttle = Throttle(10, lambda: questions.append(None) or len(questions) > 1)  # type: ignore[func-returns-value]
    throttle.pause(1_000_000_000)  # or in three years
    assert len(questions) == 2


@pytest.mark.parametrize("rate", [0.0, -1.0])
def test_a_rate_of_nothing_is_no_limit(rate: float) -> None:
    Throttle(rate).pause(1_000_000_000)
