"""The archive: complete and exact over transactions, compaction, expiry and crashes at every step; and its replay."""

import argparse
import functools
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from barnabas.spark_examples import archive, queue_gaps, replay, sample
from barnabas.spark_examples.archive_audit import audit, without
from barnabas.spark_examples.archive_log import ArchiveError, ArchiveLog, Explained, State, together
from barnabas.spark_examples.archive_reader import COLUMNS, FITS, SchemaError, open_archive, read_archive, value_schema
from barnabas.spark_examples.exactly_once import committed_progress, wait_until_readable
from barnabas.spark_examples.filesystem import AlreadyThere, FileSystem
from compat_tests.spark.pipelines.conftest import consume, options_for
from tools.waiting import PATIENCE_S, wait_until

Rows = list[tuple[Any, ...]]


class Archive:
    """One archive under test, of one or more topics in one cluster."""

    def __init__(
        self, spark: Any, bootstrap_servers: str, run_once: Any, path: Path, *topics: str, uri: str | None = None
    ) -> None:
        """`uri` is what the pipeline is told, `path` where that is."""
        self.spark = spark
        self.topics = topics
        self.path = path
        self.uri = uri or str(path)
        self._bootstrap_servers = bootstrap_servers
        self._run_once = run_once

    def arguments(self) -> list[str]:
        return [f"--archive={self.uri}", f"--topics={','.join(self.topics)}", "--maintain-every=0"]

    def run(self, *arguments: str) -> None:
        """Archive what is there, in micro-batches of 400 records."""
        every = ("--max-offsets-per-trigger=400", *self.arguments(), *arguments)
        self._run_once(archive, *every, bootstrap_servers=self._bootstrap_servers)

    def options(self, *arguments: str) -> argparse.Namespace:
        options: argparse.Namespace = options_for(archive, self._bootstrap_servers, *self.arguments(), *arguments)
        return options

    def rows(self) -> Rows:
        return as_rows(read_archive(self.spark, self.uri))

    def queue(self) -> Rows:
        """The records that a consumer of committed data reads."""
        return [
            (m.topic(), m.partition(), m.offset(), m.timestamp()[1], m.key(), m.value(), m.headers())
            for m in consume(self._bootstrap_servers, *self.topics)
        ]

    def state(self) -> State:
        return open_archive(self.spark, self.uri).state()

    def verdicts(self, *arguments: str) -> dict[str, int]:
        """The audit's reasons and their offsets; fails unless everything is complete."""
        findings = audit(self.spark, self.options(*arguments))
        assert all(finding.is_complete for finding in findings), findings
        reasons: dict[str, int] = {}
        for finding in findings:
            for reason, count in finding.explained.items():
                reasons[reason] = reasons.get(reason, 0) + count
        return reasons


def as_rows(frame: Any) -> Rows:
    columns = ("topic", "partition", "offset", "unix_millis(timestamp) as millis", "key", "value", "headers")
    return sorted(
        (
            r.topic,
            r.partition,
            r.offset,
            r.millis,
            r.key and bytes(r.key),
            r.value and bytes(r.value),
            _headers(r.headers),
        )
        for r in frame.selectExpr(*columns).collect()
    )


def _headers(headers: Any) -> Any:
    return (
        [(each.key, each.value if each.value is None else bytes(each.value)) for each in headers] if headers else None
    )


@pytest.fixture
def archived(
    spark: Any, cluster: Any, run_once: Any, topic_prefix: str, tmp_path: Path, mounted: str
) -> Callable[..., Archive]:
    """An archive of a topic with some flights: `archived(records)`."""

    def make(records: int) -> Archive:
        topic = f"{topic_prefix}-flights"
        sample.create_topics(cluster.bootstrap_servers, topic, partitions=3)
        produce_some(cluster.bootstrap_servers, topic, records)
        uri = f"{mounted}/archive"
        made = Archive(spark, cluster.bootstrap_servers, run_once, tmp_path / "archive", topic, uri=uri)
        made.run()
        return made

    return make


@functools.cache
def some_flights() -> list[sample.Sample]:
    """Those of four days."""
    return sample.flight_samples(3600)


def produce_some(bootstrap_servers: str, topic: str, count: int) -> None:
    """Flights of four days with headers."""
    flights = some_flights()[:: max(1, 3600 // count)][:count]
    headers = [(("n", str(number).encode()), ("n", b"again")) for number in range(count)]
    produced = (each._replace(headers=pair) for each, pair in zip(flights, headers, strict=True))
    assert sample.produce(bootstrap_servers, topic, produced) == count


@pytest.mark.full
def test_transactions_and_markers_are_accounted_for(
    spark: Any, cluster: Any, run_once: Any, topic_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from confluent_kafka import Producer

    topics = (f"{topic_prefix}-a", f"{topic_prefix}-b")
    sample.create_topics(cluster.bootstrap_servers, *topics, partitions=2)
    produce_some(cluster.bootstrap_servers, topics[0], 300)
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": f"archive-{secrets.token_hex(4)}"}
    )
    producer.init_transactions(PATIENCE_S)
    for number in range(12):
        producer.begin_transaction()
        for record in range(20):
            topic = topics[record % 2]
            producer.produce(topic, f"{number}-{record}", headers=[("empty", b""), ("null", None)] if record else None)
        producer.produce(topics[1], None, "a tombstone")
        assert producer.flush(PATIENCE_S) == 0
        producer.abort_transaction(PATIENCE_S) if number % 3 == 2 else producer.commit_transaction(PATIENCE_S)
    # Not in a transaction, and so read only when every marker before it is.
    produce_some(cluster.bootstrap_servers, topics[1], 300)

    assert wait_until_readable({"bootstrap.servers": cluster.bootstrap_servers}, *topics)
    made = Archive(spark, cluster.bootstrap_servers, run_once, tmp_path / "archive", *topics)
    made.run()

    assert made.rows() == made.queue()
    assert len(made.rows()) == 600 + 8 * 21
    assert made.state().through >= 1
    explain = queue_gaps.explain_gaps

    def overtaken(*arguments: Any) -> Any:
        """While the audit asks the queue, the archive is compacted."""
        found = explain(*arguments)
        assert archive.compact(spark, made.options("--min-files=2")) > 0
        return found

    with monkeypatch.context() as patch:
        patch.setattr(queue_gaps, "explain_gaps", overtaken)
        reasons = made.verdicts()
    assert made.state().snapshot == 2
    assert set(reasons) == {"transaction marker", "aborted"}
    assert reasons["aborted"] == 4 * 21
    assert 12 * 2 <= reasons["transaction marker"] <= 12 * 4  # one in each partition that the transaction wrote to
    # What was found is in the log: a later audit needs no queue.
    alone = audit(spark, archive.parser().parse_args(["audit", *made.arguments()]))
    assert all(finding.is_complete for finding in alone)
    assert made.rows() == made.queue()


@pytest.mark.full
def test_an_audit_finds_errors_in_an_archive(archived: Any, spark: Any, cluster: Any) -> None:
    made = archived(900)
    log = open_archive(spark, made.uri)
    state = made.state()
    lost = state.pieces[0]

    log.commit_snapshot(lambda now: replace(now, pieces=state.pieces[1:]))
    findings = audit(spark, made.options())
    assert sum(each.end - each.start for finding in findings for each in finding.missing) == lost.rows
    assert {each.reason for finding in findings for each in finding.missing} == {"lost: the queue has it"}
    assert not any(finding.is_complete for finding in findings if finding.missing)

    [copied] = [job for job in (made.path / "data").iterdir() if job.name in lost.path]
    (copied.parent / "commit=copy").symlink_to(copied)
    twice = replace(lost, path=lost.path.replace(copied.name, "commit=copy"))
    log.commit_snapshot(lambda now: replace(now, pieces=(*state.pieces, twice)))
    assert sum(finding.duplicates for finding in audit(spark, made.options())) == lost.rows

    shorter = {partition: end - 1 for partition, end in state.ends.items()}
    log.commit_snapshot(lambda now: replace(now, pieces=state.pieces, ends=shorter))
    assert [len(finding.strays) for finding in audit(spark, made.options())] == [1, 1, 1]


def test_compacted_offsets_are_accounted_for(
    spark: Any, start_cluster: Any, run_once: Any, topic_prefix: str, tmp_path: Path
) -> None:
    own = start_cluster({"log.cleaner.backoff.ms": "100", "log.initial.task.delay.ms": "100"})
    topic = f"{topic_prefix}-compacted"
    settings = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.01", "segment_ms": "100"}
    sample.create_topics(own.bootstrap_servers, topic, partitions=1, **settings)
    sample.produce(own.bootstrap_servers, topic, [sample.Sample(str(n), f"key-{n % 7}") for n in range(500)])

    def is_compacted() -> bool:
        sample.produce(own.bootstrap_servers, topic, [sample.Sample("another", "key-0")])  # the segment is rolled by it
        return len(consume(own.bootstrap_servers, topic)) <= 100

    wait_until(is_compacted)

    made = Archive(spark, own.bootstrap_servers, run_once, tmp_path / "archive", topic)
    made.run("--allow-data-loss")

    # Nothing may make holes in a topic that is not compacted: there they are a loss.
    alter_topic(own.bootstrap_servers, topic, "cleanup.policy", "delete")
    [finding] = audit(spark, made.options())
    assert {each.reason for each in finding.missing} == {queue_gaps.HOLE}
    assert sum(each.end - each.start for each in finding.missing) >= 400
    [secured] = audit(spark, made.options("--kafka=security.protocol=SSL"))
    assert {each.reason for each in secured.missing} == {
        "not looked up: the audit's own client needs security.protocol=SSL in --command-config"
    }

    alter_topic(own.bootstrap_servers, topic, "cleanup.policy", "compact,delete")
    reasons = made.verdicts()
    assert set(reasons) == {"compacted"}
    assert reasons["compacted"] >= 400


def alter_topic(bootstrap_servers: str, topic: str, key: str, value: str) -> None:
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)


@pytest.mark.full
def test_compaction_keeps_every_record_and_every_reader(archived: Any, spark: Any) -> None:
    made = archived(1800)
    before = made.rows()
    files = sum(piece.files for piece in made.state().pieces)
    reader = read_archive(spark, made.uri)  # has taken its list of files, and reads them later

    saved = archive.compact(spark, made.options("--min-files=2"))

    state = made.state()
    assert saved == files - sum(piece.files for piece in state.pieces) > 0
    assert sum(piece.files for piece in state.pieces) == len({piece.date for piece in state.pieces})
    assert made.rows() == before == made.queue()
    assert archive.clean(spark, made.options()) == 0  # its grace is a day
    assert as_rows(reader) == before
    assert archive.clean(spark, made.options("--grace-hours=0")) > 0
    assert made.rows() == before
    assert made.verdicts() == {}
    assert len(list((made.path / "data").rglob("*.parquet"))) == sum(piece.files for piece in state.pieces)

    produce_some(made._bootstrap_servers, made.topics[0], 600)  # the query goes on where it was
    made.run()
    assert made.rows() == made.queue()
    assert made.verdicts() == {}


@pytest.mark.full
def test_a_compacted_file_has_its_size_and_is_left_alone(
    spark: Any, cluster: Any, run_once: Any, topic_prefix: str, tmp_path: Path
) -> None:
    servers, topic, target = cluster.bootstrap_servers, f"{topic_prefix}-large", 500_000
    made = Archive(spark, servers, run_once, tmp_path / "archive", topic)
    sample.create_topics(servers, topic, partitions=1)
    care = made.options("--min-files=2", f"--target-bytes={target}")

    def archive_some(records: int) -> None:
        """A kilobyte each, which Snappy makes no smaller, in files of 200."""
        values = (sample.Sample(secrets.token_hex(512), timestamp=1_357_000_000_000) for _ in range(records))
        sample.produce(servers, topic, values)
        made.run("--max-offsets-per-trigger=200")

    archive_some(1600)
    files = sum(piece.files for piece in made.state().pieces)
    saved = archive.compact(spark, care)
    [large] = made.state().pieces
    assert saved == files - large.files
    sizes = [path.stat().st_size for path in (made.path / "data" / large.path).glob("*.parquet")]
    assert len(sizes) == large.files >= 3, "the one partition's offsets are in several files"
    assert max(sizes) < target * 1.3
    assert archive.compact(spark, care) == 0

    archive_some(800)
    assert archive.compact(spark, care) > 0
    state = made.state()
    assert large in state.pieces
    assert len(state.pieces) == 2
    assert made.rows() == made.queue()
    assert made.verdicts() == {}


@pytest.mark.full
def test_a_compaction_that_dies_changes_nothing(archived: Any, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = archived(900)
    before, state = made.rows(), made.state()

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:  # everything is written, nothing committed
        patch.setattr(ArchiveLog, "commit_snapshot", die)
        with pytest.raises(KeyboardInterrupt):
            archive.compact(spark, made.options("--min-files=2"))
    assert made.state() == state
    assert made.rows() == before
    assert len([job for job in (made.path / "data").iterdir() if "compact" in job.name]) == 1
    assert archive.clean(spark, made.options("--grace-hours=0")) >= 1
    assert not [job for job in (made.path / "data").iterdir() if "compact" in job.name]
    assert made.rows() == before

    archive.compact(spark, made.options("--min-files=2"))
    with monkeypatch.context() as patch:  # the files are deleted, that is not noted
        patch.setattr(ArchiveLog, "commit_snapshot", die)
        with pytest.raises(KeyboardInterrupt):
            archive.clean(spark, made.options("--grace-hours=0"))
    assert made.rows() == before
    archive.clean(spark, made.options("--grace-hours=0"))
    assert made.state().replaced == ()
    assert made.rows() == before
    assert made.verdicts() == {}


@pytest.mark.full
def test_two_jobs_that_change_the_archive(archived: Any, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = archived(900)
    before = made.rows()
    write, batches = archive.write_pieces, []

    def overtaken(*arguments: Any) -> Any:
        """While compaction writes, the queue goes on being archived, and another compaction is faster."""
        pieces = write(*arguments)
        if not batches:
            batches.append(made.state().through)
            produce_some(made._bootstrap_servers, made.topics[0], 600)
            made.run()
            archive.compact(spark, made.options("--min-files=2"))
        return pieces

    with monkeypatch.context() as patch:
        patch.setattr(archive, "write_pieces", overtaken)
        with pytest.raises(ArchiveError, match="another job"):
            archive.compact(spark, made.options("--min-files=2"))
    assert made.state().through > batches[0]
    delete, snapshot = FileSystem.delete, made.state().snapshot
    at_work = made.state().replaced

    def meanwhile(files: FileSystem, uri: str) -> None:
        """While `clean` deletes, another job commits."""
        if made.state().snapshot == snapshot:
            open_archive(spark, made.uri).commit_snapshot(lambda now: now)
        delete(files, uri)

    with monkeypatch.context() as patch:
        patch.setattr(FileSystem, "delete", meanwhile)
        assert archive.clean(spark, made.options("--grace-hours=0")) > len(at_work) > 0
    assert made.state().snapshot == snapshot + 2
    assert made.state().replaced == ()
    assert made.rows() == made.queue()
    assert len(made.rows()) == len(before) + 600
    assert made.verdicts() == {}


@pytest.mark.full
def test_a_batch_whose_commit_spark_did_not_note(archived: Any, spark: Any) -> None:
    made = archived(900)
    before, last = made.rows(), made.state().through
    log = open_archive(spark, made.uri)
    noted = f"{log.checkpoint}/commits/{last}"
    log.files.delete(noted)  # killed between our commit and Spark's

    made.run()
    assert log.files.exists(noted)
    assert made.state().through == last
    assert made.rows() == before

    log.files.delete(log.batch_path(last))
    log.files.delete(noted)  # killed before our commit
    made.run()
    assert made.rows() == before
    assert made.verdicts() == {}

    (made.path / "_checkpoint").rename(made.path / "_lost")
    with pytest.raises(Exception, match="one of them is lost"):
        made.run()
    assert made.rows() == before


@pytest.mark.full
def test_expiry_is_told_from_loss(archived: Any, spark: Any) -> None:
    made = archived(900)
    before, state = made.rows(), made.state()
    days = sorted({piece.date for piece in state.pieces})
    third = sample.millis(f"{days[2]}T12:00:00")  # of 2013
    assert archive.expire(spark, made.options(), third) == 0
    assert archive.expire(spark, made.options("--keep-days=1", f"--keep-days-of={made.topics[0]}=5"), third) == 0

    expired = archive.expire(spark, made.options("--keep-days=1"), third)

    assert expired == sum(piece.rows for piece in state.pieces if piece.date < days[1]) > 0
    assert made.rows() == [row for row in before if row[3] >= sample.millis(f"{days[1]}T00:00:00")]
    assert made.verdicts() == {"expired": expired}
    archive.clean(spark, made.options("--grace-hours=0"))
    assert not list((made.path / "data").rglob(f"date={days[0]}"))
    assert made.verdicts() == {"expired": expired}


@pytest.mark.full
def test_a_running_archive_looks_after_itself(
    spark: Any, cluster: Any, run_once: Any, topic_prefix: str, tmp_path: Path
) -> None:
    topic = f"{topic_prefix}-flights"
    sample.create_topics(cluster.bootstrap_servers, topic, partitions=3)
    produce_some(cluster.bootstrap_servers, topic, 1800)
    made = Archive(spark, cluster.bootstrap_servers, run_once, tmp_path / "archive", topic)

    made.run("--maintain-every=2", "--min-files=2")

    state = made.state()
    assert state.snapshot >= 2
    assert made.rows() == made.queue()
    assert made.verdicts() == {}


def test_an_archive_that_only_spark_can_look_for(spark: Any, mounted: str) -> None:
    """On a cluster's file system: what reads it says that it is not there, and does not find it empty."""
    options = archive.parser().parse_args(["show", f"--archive={mounted}/nowhere", "--keep-days=1"])

    for command in (archive.compact, archive.expire, archive.clean, archive.show, audit):
        with pytest.raises(ArchiveError, match=f"no archive at {mounted}/nowhere"):
            command(spark, options)
    with pytest.raises(ArchiveError, match="no archive at "):
        read_archive(spark, f"{mounted}/nowhere")


VALUES = {
    '{"carrier": "UA", "delay": 2, "plane": "N14228"}': ("UA", 2, True),
    '{"carrier": "AA", "delay": "soon"}': ("AA", None, False),
    '{"carrier": "B6"}': ("B6", None, True),
    "[/late]": (None, None, False),
    "null": (None, None, False),
    " ": (None, None, False),
    "": (None, None, False),
    None: (None, None, None),
}
"""Values, with what becomes of them by `carrier STRING, delay INT`."""


def test_fields_of_values(
    spark: Any, cluster: Any, run_once: Any, topic_prefix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, schema = f"{topic_prefix}-departures", "carrier STRING, delay INT"
    sample.create_topics(cluster.bootstrap_servers, topic, partitions=1)
    sample.produce(cluster.bootstrap_servers, topic, [sample.Sample(value, "key") for value in VALUES])
    made = Archive(spark, cluster.bootstrap_servers, run_once, tmp_path / "archive", topic)
    made.run()

    frame = read_archive(spark, made.uri, [topic], schema=schema)

    assert frame.columns == [*COLUMNS, "carrier", "delay", FITS]
    assert [tuple(row)[-3:] for row in frame.orderBy("offset").collect()] == list(VALUES.values())
    assert as_rows(frame) == made.rows() == made.queue(), "values are the bytes that they were"
    archive.show(spark, made.options(f"--schema={schema}"))
    shown = capsys.readouterr()
    assert "5 of 7 values do not fit the schema: fields are null there." in shown.err.splitlines()
    assert "[/late]" in shown.out, "no markup of a table"
    with pytest.raises(ArchiveError, match="the archive holds nothing of elsewhere"):
        archive.show(spark, made.options("--topics=elsewhere", f"--schema={schema}"))


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        ("carrier STRNG", "is no schema: [UNSUPPORTED_DATATYPE] "),
        ("carrier STRING, delay", "is no schema: [PARSE_SYNTAX_ERROR] "),
        ("INT", "is no schema: it names no fields."),
        ("", "is no schema: it names no fields."),
        ("Offset BIGINT, delay INT", "is no schema for an archive: there would be two columns offset."),
        ("delay INT, DELAY INT, value_fits INT", "there would be two columns value_fits, delay."),
    ],
)
def test_a_wrong_schema_is_one_line(
    schema: str, complaint: str, spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is told before the archive, which is not there, is looked at."""
    options = archive.parser().parse_args(["show", f"--archive={tmp_path}/nowhere", f"--schema={schema}"])

    assert archive.run_command(spark, options, False) == 2

    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(repr(schema))
    assert complaint in line
    with pytest.raises(SchemaError):
        value_schema(schema)


def test_ranges() -> None:
    assert without([(0, 10)], []) == [(0, 10)]
    assert without([(0, 10)], [(0, 10)]) == []
    assert without([(0, 10)], [(3, 4), (6, 20)]) == [(0, 3), (4, 6)]
    assert without([(0, 5), (5, 10)], [(4, 6), (4, 5), (9, 9)]) == [(0, 4), (6, 9), (9, 10)]
    assert without([(0, 5), (7, 9)], [(-3, 1), (5, 7), (8, 30)]) == [(1, 5), (7, 8)]


def test_explained_ranges_are_few() -> None:
    def ranges(*given: tuple[int, int, str], topic: str = "t") -> list[Explained]:
        return [Explained(topic, 0, start, end, reason) for start, end, reason in given]

    markers = ranges((10, 11, "transaction marker"), (21, 22, "transaction marker"), (22, 23, "transaction marker"))
    other = ranges((11, 21, "aborted"), topic="u")
    assert together([*other, *reversed(markers)]) == (
        *ranges((10, 11, "transaction marker"), (21, 23, "transaction marker")), *other,
    )  # fmt: skip
    # The marker between two expired ranges, and the one that ends them, went with them; the next day's did not.
    expired = ranges((0, 10, "expired"), (11, 21, "expired"))
    later = ranges((40, 41, "transaction marker"))
    assert together([*markers, *expired, *later]) == (*ranges((0, 23, "expired")), *later)
    assert together(ranges((0, 5, "aborted"), (3, 8, "compacted"), (4, 6, "aborted"))) == tuple(
        ranges((0, 5, "aborted"), (5, 8, "compacted"))
    )


@pytest.mark.parametrize("scheme", ["file", "viewfs"])
def test_a_file_is_created_once(spark: Any, tmp_path: Path, mounted: str, scheme: str) -> None:
    """By a link, and by a rename as on HDFS."""
    files, folder = FileSystem(spark), tmp_path.as_uri() if scheme == "file" else mounted
    files.create(f"{folder}/log/1", "first")
    with pytest.raises(AlreadyThere):
        files.create(f"{folder}/log/1", "second")
    assert files.read_text(f"{folder}/log/1") == "first"
    assert {path.name for path in (tmp_path / "log").iterdir()} - {".1.crc"} == {"1"}


def test_one_of_two_creates_a_file(spark: Any, tmp_path: Path) -> None:
    """Of local files only: Hadoop's rename of them, which a viewfs comes to, is not atomic."""
    made: dict[str, list[int]] = {}
    together_now = threading.Barrier(2)

    def create(who: int) -> None:
        files = FileSystem(spark)
        for number in range(60):
            together_now.wait(PATIENCE_S)
            with suppress(AlreadyThere):
                files.create(f"{tmp_path}/log/{number}", str(who) * 1000)
                made.setdefault(str(number), []).append(who)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(create, range(2)))
    assert {len(who) for who in made.values()} == {1}
    written = {path.name: path.read_text() for path in (tmp_path / "log").iterdir()}
    assert written == {number: str(who) * 1000 for number, [who] in made.items()}


def test_replay(archived: Any, spark: Any, topic_prefix: str, capsys: pytest.CaptureFixture[str]) -> None:
    made = archived(900)
    servers, target = made._bootstrap_servers, f"{topic_prefix}-again"
    sample.create_topics(servers, target, partitions=3, retention_ms="86400000")
    arguments = (f"--archive={made.uri}", f"--topic={made.topics[0]}", f"--output-topic={target}")

    def run(*more: str) -> int:
        return replay.replay(spark, options_for(replay, servers, *arguments, *more))

    def records(rows: Rows) -> Rows:
        return [(row[1], *row[3:]) for row in rows]  # no topic, no offset

    def replayed() -> Rows:
        found = consume(servers, target)
        return [(m.partition(), m.timestamp()[1], m.key(), m.value(), m.headers()) for m in found]

    rows = made.rows()
    assert run() == len(rows)
    assert f"{target} keeps 1.0 days" in capsys.readouterr().err, "flights of 2013 may be gone before they are read"
    assert replayed() == records(rows)
    alter_topic(servers, target, "retention.ms", "-1")
    assert run() == 0, "it is complete already"
    assert "keeps" not in capsys.readouterr().err
    assert replayed() == records(rows)

    sliced = ("--from-offset=100", "--to-offset=200", "--partitions=0,1", "--from-time=2013-01-02T00:00:00")
    wanted = [
        row for row in rows
        if 100 <= row[2] < 200 and row[1] in (0, 1) and row[3] >= sample.millis("2013-01-02T00:00:00")
    ]  # fmt: skip
    assert 0 < run(*sliced) == len(wanted) < len(rows)
    assert sorted(map(repr, replayed())) == sorted(map(repr, records(rows) + records(wanted)))
    with pytest.raises(ArchiveError, match="holds nothing"):
        run("--to-time=2012-01-01")


@pytest.mark.full
def test_a_replay_that_was_killed_goes_on(
    spark: Any, cluster: Any, run_once: Any, start_program: Any, topic_prefix: str, tmp_path: Path
) -> None:
    servers, topic, target = cluster.bootstrap_servers, f"{topic_prefix}-flights", f"{topic_prefix}-again"
    sample.create_topics(servers, topic, target, partitions=2)
    flights = sample.flight_samples(45_000)  # more than one transaction
    sample.produce(servers, topic, (each._replace(headers=(("h", b"\0"), ("h", b"2"))) for each in flights))
    made = Archive(spark, servers, run_once, tmp_path / "archive", topic)
    made.run("--max-offsets-per-trigger=45000")
    arguments = (f"--archive={made.uri}", f"--topic={topic}", f"--output-topic={target}", "--name", topic_prefix)
    ends = {partition: end for (_, partition), end in made.state().ends.items()}

    def progress() -> list[int]:
        config = {"bootstrap.servers": servers}
        return [committed_progress(config, replay.unit_name(topic_prefix, each), target, 0) for each in sorted(ends)]

    program = start_program("replay", f"--bootstrap-servers={servers}", "--master=local[1]", *arguments)
    program.wait_until(lambda: any(progress()))
    program.kill()

    left = replay.replay(spark, options_for(replay, servers, *arguments))

    assert 0 < left < len(flights), "it was killed in the middle"
    assert progress() == [end for _, end in sorted(ends.items())]
    came = [(m.partition(), m.timestamp()[1], m.key(), m.value(), m.headers()) for m in consume(servers, target)]
    assert came == [(row[1], *row[3:]) for row in made.rows()]
    assert len(came) == len(flights)


@pytest.mark.full
def test_commands_and_their_exit_statuses(
    spark: Any, cluster: Any, run_once: Any, start_program: Any, topic_prefix: str, tmp_path: Path
) -> None:
    servers, topic, target = cluster.bootstrap_servers, f"{topic_prefix}-flights", f"{topic_prefix}-again"
    sample.create_topics(servers, topic, target, partitions=1)
    sample.produce(servers, topic, sample.flight_samples(90_000))  # several transactions
    made = Archive(spark, servers, run_once, tmp_path / "archive", topic)
    made.run("--max-offsets-per-trigger=45000")
    reach = (f"--bootstrap-servers={servers}", f"--archive={made.uri}")

    def audited() -> Any:
        program = start_program("archive", "audit", *reach, f"--topics={topic}")
        return program.wait(), program.log()

    status, told = audited()
    assert (status, "complete" in told) == (0, True), told

    again = ("replay", *reach, f"--topic={topic}", f"--output-topic={target}", f"--name={topic_prefix}")
    unit = ({"bootstrap.servers": servers}, replay.unit_name(topic_prefix, 0), target, 0)
    program = start_program(*again)
    program.wait_until(lambda: committed_progress(*unit))
    assert program.stop() == 130, program.log()
    assert 0 < committed_progress(*unit) < 90_000, "it was stopped in the middle"
    program = start_program(*again)
    assert program.wait() == 0, program.log()
    replayed = [(m.timestamp()[1], m.key(), m.value()) for m in consume(servers, target)]
    assert replayed == [(row[3], row[4], row[5]) for row in made.rows()]

    pieces = made.state().pieces[1:]
    open_archive(spark, made.uri).commit_snapshot(lambda now: replace(now, pieces=pieces))
    status, told = audited()
    assert (status, "lost: the" in told) == (1, True), told  # the rest may be in the cell's next line
