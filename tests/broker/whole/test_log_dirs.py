"""Several log directories of a real process: reordered, missing, back again, mixed up."""

import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from compat_tests.semantics.client import Connection, batch_of, produce_batch
from tools.foreign.zookeeper import ZooKeeperServer
from tools.processes import children
from tools.processes.barnabas import BarnabasProcess
from tools.waiting import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.live]
STORE = "metadata.sqlite"
KAFKA_STORAGE_ERROR = int(ErrorCode.KAFKA_STORAGE_ERROR)


class LogDirs:
    """Three log directories, and a broker that is started with some of them."""

    def __init__(self, folder: Path, **overrides: str) -> None:
        self.folder = folder
        self.a, self.b, self.c = self.all = [folder / name for name in "abc"]
        self.away = folder / "away"
        self.overrides = {"num.partitions": "6", "offsets.topic.num.partitions": "3", **overrides}
        self.process: BarnabasProcess | None = None

    def start(self, *log_dirs: Path) -> BarnabasProcess:
        names = ",".join(map(str, log_dirs))
        self.process = BarnabasProcess(self.overrides, data_dir=Path(names))
        self.process.start()
        return self.process

    def stop(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.close()

    def refusal(self, *log_dirs: Path) -> str:
        """The message of a refused start: one line, and no traceback."""
        command = [sys.executable, "-m", "barnabas", "serve", "--listen", "127.0.0.1:0"]
        command += ["--data-dir", ",".join(map(str, log_dirs))]
        for key, value in self.overrides.items():
            command += ["--override", f"{key}={value}"]
        refused = children.run(command, capture_output=True, text=True)
        assert refused.returncode == 1, refused.stderr
        assert "Traceback" not in refused.stderr
        lines = [line for line in refused.stderr.splitlines() if " FATAL " in line]
        assert len(lines) == 1, refused.stderr
        return lines[0]

    def where(self) -> dict[int, Path]:
        """The directory of each of the topic's partitions."""
        return {int(path.name.rpartition("-")[2]): d for d in self.all if d.is_dir() for path in d.glob("t-?")}


@pytest.fixture
def dirs(tmp_path: Path) -> Iterator[LogDirs]:
    found = LogDirs(tmp_path)
    yield found
    found.stop()


def fill(process: BarnabasProcess, count: int = 6) -> None:
    admin = AdminClient({"bootstrap.servers": process.bootstrap_servers})
    admin.create_topics([NewTopic("t", count)])["t"].result(PATIENCE_S)
    produce(process, *range(count))


def produce(process: BarnabasProcess, *partitions: int) -> None:
    sender = Producer({"bootstrap.servers": process.bootstrap_servers, "linger.ms": 0})
    for partition in partitions:
        sender.produce("t", str(partition).encode(), partition=partition)
    assert sender.flush(PATIENCE_S) == 0


def ends(process: BarnabasProcess, *partitions: int) -> list[int]:
    """The end offsets; a client gets none of a partition without a leader."""
    consumer = Consumer({"bootstrap.servers": process.bootstrap_servers, "group.id": "g"})
    try:
        return [consumer.get_watermark_offsets(TopicPartition("t", p), timeout=PATIENCE_S)[1] for p in partitions]
    finally:
        consumer.close()


def leaders(process: BarnabasProcess, topic: str = "t") -> dict[int, int]:
    metadata = AdminClient({"bootstrap.servers": process.bootstrap_servers}).list_topics(topic, timeout=PATIENCE_S)
    return {index: partition.leader for index, partition in metadata.topics[topic].partitions.items()}


def produce_error(process: BarnabasProcess, partition: int) -> int:
    """The broker's error for a producer that ignores the metadata."""
    batch = batch_of([b"x"])
    with Connection(process.bootstrap_servers) as connection:
        return int(produce_batch(connection, "t", bytes(batch), partition=partition).error_code)


def described(process: BarnabasProcess) -> dict[str, int]:
    with Connection(process.bootstrap_servers) as connection:
        answer = connection.ask(DescribeLogDirsRequest(topics=None), 4)
    return {result.log_dir: result.error_code for result in answer.results}


def test_the_order_of_log_dirs_does_not_matter_and_new_ones_join(dirs: LogDirs) -> None:
    fill(dirs.start(dirs.a, dirs.b))
    dirs.stop()
    for order in ((dirs.b, dirs.a), (dirs.c, dirs.b, dirs.a)):
        assert ends(dirs.start(*order), *range(6)) == [1] * 6
        dirs.stop()
    assert [directory / STORE for directory in dirs.all if (directory / STORE).exists()] == [dirs.a / STORE]


@pytest.mark.parametrize("is_empty", [False, True], ids=["gone", "not mounted"])
def test_a_missing_directorys_partitions_are_offline(dirs: LogDirs, is_empty: bool) -> None:
    fill(dirs.start(dirs.a, dirs.b))
    dirs.stop()
    where = dirs.where()
    missed = [partition for partition, directory in where.items() if directory == dirs.b]
    kept = [partition for partition, directory in where.items() if directory == dirs.a]
    assert missed
    assert kept
    dirs.b.rename(dirs.away)
    if is_empty:
        dirs.b.mkdir()

    process = dirs.start(dirs.a, dirs.b)
    log = process.log_text()
    assert f"log directory {dirs.b} is missing" in log
    assert all(f"cannot host t-{partition}:" in log for partition in missed)
    assert leaders(process) == {**dict.fromkeys(missed, -1), **dict.fromkeys(kept, process.node_id)}
    assert ends(process, *kept) == [1] * len(kept)
    produce(process, *kept)
    admin = AdminClient({"bootstrap.servers": process.bootstrap_servers})
    admin.create_topics([NewTopic("new", 3)])["new"].result(PATIENCE_S)
    assert set(leaders(process, "new").values()) == {process.node_id}, "what is new need not wait"
    dirs.stop()
    assert set(dirs.where()) == set(kept), "none was created in another directory"
    assert not dirs.b.exists() or not list(dirs.b.iterdir())

    if is_empty:
        dirs.b.rmdir()
    dirs.away.rename(dirs.b)
    process = dirs.start(dirs.a, dirs.b)
    assert "is missing" not in process.log_text()
    assert set(leaders(process).values()) == {process.node_id}
    assert ends(process, *missed, *kept) == [1] * len(missed) + [2] * len(kept)
    produce(process, *missed)
    assert ends(process, *missed) == [2] * len(missed)


def test_a_disk_may_be_mounted_elsewhere_one_start_too_late(dirs: LogDirs) -> None:
    """The folder below, which that start took for a new directory, is missed, and what is in it is not made anew."""
    fill(dirs.start(dirs.a, dirs.b))
    dirs.stop()
    dirs.b.rename(dirs.away)
    process = dirs.start(dirs.a, dirs.c)
    admin = AdminClient({"bootstrap.servers": process.bootstrap_servers})
    admin.create_topics([NewTopic("early", 4)])["early"].result(PATIENCE_S)
    dirs.stop()
    covered = [int(path.name.rpartition("-")[2]) for path in dirs.c.glob("early-?")]
    assert covered
    dirs.c.rename(dirs.folder / "below")
    dirs.away.rename(dirs.c)
    process = dirs.start(dirs.a, dirs.c)
    assert ends(process, *range(6)) == [1] * 6
    assert f"log directory {dirs.c} is missing (another one is at its path: " in process.log_text()
    assert described(process) == {str(dirs.a): 0, str(dirs.c): 0}
    assert sorted(index for index, leader in leaders(process, "early").items() if leader == -1) == sorted(covered)


def test_a_missing_directory_is_a_storage_error(dirs: LogDirs) -> None:
    """A deletion waits for the directory."""
    fill(dirs.start(dirs.a, dirs.b))
    dirs.stop()
    dirs.b.rename(dirs.away)
    process = dirs.start(dirs.a, dirs.b)
    missed = next(partition for partition, leader in leaders(process).items() if leader == -1)
    assert produce_error(process, missed) == KAFKA_STORAGE_ERROR
    assert described(process) == {str(dirs.a): 0, str(dirs.b): KAFKA_STORAGE_ERROR}
    admin = AdminClient({"bootstrap.servers": process.bootstrap_servers})
    with pytest.raises(KafkaException) as refused:
        admin.delete_topics(["t"], operation_timeout=20)["t"].result(PATIENCE_S)
    assert refused.value.args[0].code() == KAFKA_STORAGE_ERROR
    dirs.stop()
    dirs.away.rename(dirs.b)
    process = dirs.start(dirs.a, dirs.b)
    assert (
        "t" not in AdminClient({"bootstrap.servers": process.bootstrap_servers}).list_topics(timeout=PATIENCE_S).topics
    )
    assert dirs.where() == {}, "it went on with the deletion"


@pytest.mark.parametrize("how", ["emptied", "no cluster id"])
def test_an_empty_metadata_store_is_told_as_such_and_stays_empty(dirs: LogDirs, how: str) -> None:
    fill(dirs.start(dirs.a, dirs.b))
    dirs.stop()
    store = dirs.a / STORE
    whole = store.read_bytes()
    if how == "emptied":
        store.write_bytes(b"")
    else:
        with sqlite3.connect(store) as database:
            assert database.execute("DELETE FROM znode WHERE path = '/cluster/id'").rowcount == 1
        database.close()
    for _ in range(2):
        line = dirs.refusal(dirs.a, dirs.b)
        assert "the metadata store has no cluster id, though the log directories belong to cluster " in line
    store.write_bytes(whole)
    assert ends(dirs.start(dirs.a, dirs.b), *range(6)) == [1] * 6


def test_a_start_without_the_metadata_store_is_refused(dirs: LogDirs) -> None:
    fill(dirs.start(dirs.a, dirs.b))
    dirs.stop()
    dirs.a.rename(dirs.away)
    before = {path.name for path in dirs.b.iterdir() if not path.name.startswith(".")}
    for _ in range(2):
        line = dirs.refusal(dirs.a, dirs.b)
        assert f"the metadata store, {STORE}, of cluster " in line
        assert f"is in none of the log directories {dirs.b}: mount or add again what is missing ({dirs.a})" in line
    assert f"({dirs.a})" in dirs.refusal(dirs.b), "nor if it is taken out of log.dirs"
    after = {path.name for path in dirs.b.iterdir() if not path.name.startswith(".")}
    assert after - before == {"barnabas-lost-logs"}, "what may be lost is written down before checkpoints forget it"
    assert before <= after
    assert not dirs.a.exists()
    dirs.away.rename(dirs.a)
    assert ends(dirs.start(dirs.b, dirs.a), *range(6)) == [1] * 6


def test_two_metadata_stores_are_refused(dirs: LogDirs) -> None:
    dirs.start(dirs.a)
    dirs.stop()
    dirs.start(dirs.b)
    dirs.stop()
    (dirs.b / "meta.properties").write_bytes((dirs.a / "meta.properties").read_bytes())
    line = dirs.refusal(dirs.a, dirs.b)
    assert f"there are 2 metadata stores, {dirs.a / STORE}, {dirs.b / STORE}" in line


def test_directories_of_two_clusters_are_refused(dirs: LogDirs) -> None:
    dirs.start(dirs.a)
    dirs.stop()
    dirs.start(dirs.b)
    dirs.stop()
    (dirs.b / STORE).unlink()
    assert "belongs to cluster" in dirs.refusal(dirs.a, dirs.b)
    dirs.start(dirs.a)


def test_a_log_dir_that_is_a_file_is_named(dirs: LogDirs) -> None:
    dirs.b.write_text("")
    assert f"log directory {dirs.b} cannot be used: Not a directory" in dirs.refusal(dirs.a, dirs.b)


def test_partitions_moved_between_directories_are_found(dirs: LogDirs) -> None:
    """Kafka allows it; every one is moved, and the first directory is taken out of log.dirs with its store moved."""
    fill(dirs.start(dirs.a, dirs.b))
    dirs.stop()
    for partition, directory in dirs.where().items():
        (directory / f"t-{partition}").rename((dirs.a if directory == dirs.b else dirs.b) / f"t-{partition}")
    process = dirs.start(dirs.a, dirs.b)
    assert ends(process, *range(6)) == [1] * 6
    produce(process, *range(6))
    dirs.stop()
    for path in [*dirs.a.glob("*-?"), *dirs.a.glob(STORE + "*")]:
        path.rename(dirs.b / path.name)
    process = dirs.start(dirs.b)
    assert f"log directory {dirs.a} is missing (it is not in log.dirs any more)" in process.log_text()
    assert ends(process, *range(6)) == [2] * 6


@pytest.mark.java
def test_with_zookeeper_a_missing_directory_is_missed_too(tmp_path: Path) -> None:
    with ZooKeeperServer() as zookeeper:
        dirs = LogDirs(tmp_path, **{"zookeeper.connect": zookeeper.address})
        try:
            fill(dirs.start(dirs.a, dirs.b))
            dirs.stop()
            missed = [partition for partition, directory in dirs.where().items() if directory == dirs.a]
            dirs.a.rename(dirs.away)
            process = dirs.start(dirs.a, dirs.b)
            assert sorted(p for p, leader in leaders(process).items() if leader == -1) == sorted(missed)
            dirs.stop()
            dirs.away.rename(dirs.a)
            process = dirs.start(dirs.a, dirs.b)
            assert ends(process, *range(6)) == [1] * 6
        finally:
            dirs.stop()
