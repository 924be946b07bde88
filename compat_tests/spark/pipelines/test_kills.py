"""`kill -9` of the broker and of the query, in the middle of four pipelines: afterwards nothing is lost or doubled."""

import json
import random
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas
import pytest

from barnabas.spark_examples import archive, dedupe, flight_delays, retry_and_dead_letter, sample
from barnabas.spark_examples.archive_reader import read_archive
from compat_tests.spark.pipelines.conftest import FULL_SIZE_S, commits, consume, waiting_batch
from compat_tests.spark.pipelines.test_archive import Archive
from compat_tests.spark.pipelines.test_exactly_once import (
    HANDLER,
    create_retry_topics,
    expected_keys,
    fates,
    keys_in,
    repeated,
)
from compat_tests.spark.pipelines.test_joins_and_windows import delays_by_day, final_figures, last_values, over_by
from tools.waiting import PATIENCE_S

BATCHES = 20
"""So many micro-batches, at least, a pipeline's input is divided into."""
THE_REST = "--max-offsets-per-trigger=1000000"
"""Afterwards, once the batch that was cut off is repeated."""
STEPS, STEP_S = 200, 0.25
"""Into how many parts a producer divides its input, and the time before each of them."""


class Upheaval:
    """Kills a broker, which is started again, and a program, each somewhere within a micro-batch.

    That is after Spark has planned the batch (`offsets/N`) and before it has noted that the batch is done
    (`commits/N`), a random part of the last batch's time later.
    """

    def __init__(self, broker: Any, checkpoint: Path) -> None:
        self._broker = broker
        self._checkpoint = checkpoint
        seed = secrets.randbits(32)
        print(f"\nkills at random moments, seed {seed}")
        self._random = random.Random(seed)

    def happen(self, program: Any) -> None:
        """Kill the broker, two batches later the program; Spark has to repeat the batch it was at."""
        self._wait_for_batches(program, 2)
        self._wait_within_a_batch(program)
        self._broker.kill()
        self._broker.start()
        self._wait_for_batches(program, 2)
        while True:
            batch = self._wait_within_a_batch(program)
            program.send(signal.SIGSTOP)
            if self._unfinished() == batch:
                break
            program.send(signal.SIGCONT)  # it was done before its processes heard
        program.kill()
        assert self._unfinished() == batch

    def planned(self) -> int:
        """How many offsets of its one topic the newest batch reaches."""
        newest = _newest(self._checkpoint / "offsets")
        text = (self._checkpoint / "offsets" / str(newest)).read_text() if newest >= 0 else "{}"
        return sum(offset for offsets in json.loads(text.splitlines()[-1]).values() for offset in offsets.values())

    def _wait_for_batches(self, program: Any, more: int) -> None:
        done = commits(self._checkpoint)
        program.wait_until(lambda: commits(self._checkpoint) >= done + more)

    def _wait_within_a_batch(self, program: Any) -> int:
        """Returns the batch's number."""
        while True:
            program.wait_until(lambda: self._unfinished() is not None)
            batch = self._unfinished()
            if batch is None:
                continue
            # Real time: a kill comes at any moment of a batch.
            time.sleep(self._random.uniform(0, self._seconds_of(batch - 1)))
            if self._unfinished() == batch:
                return batch

    def _unfinished(self) -> int | None:
        """The batch that is planned and not done."""
        planned = _newest(self._checkpoint / "offsets")
        return None if planned == _newest(self._checkpoint / "commits") else planned

    def _seconds_of(self, batch: int) -> float:
        planned, done = (self._checkpoint / kind / str(batch) for kind in ("offsets", "commits"))
        return max(0.0, done.stat().st_mtime - planned.stat().st_mtime)


def _newest(folder: Path) -> int:
    return max((int(path.name) for path in folder.glob("*") if path.name.isdigit()), default=-1)


def kill_within_compaction(program: Any, archived: Path) -> str:
    """Kill an archive's program as soon as a compaction writes; returns the name of what it leaves behind."""

    def compactions() -> set[str]:
        return {path.name for path in (archived / "data").glob("commit=compact-*")}

    before = compactions()
    program.wait_until(lambda: compactions() - before)
    program.kill()
    [left] = compactions() - before
    return left


class Pace:
    """Holds a producer back, so that it is at work whenever something is killed.

    It takes its time, and stays at most `ahead` offsets ahead of what the query has planned, until it is released.
    """

    def __init__(self, planned: Callable[[], int], ahead: int) -> None:
        self._planned = planned
        self._ahead = ahead
        self._released = threading.Event()

    def wait(self, offset: int) -> None:
        """Before the record of this offset is produced."""
        self.rest()
        while offset > self._planned() + self._ahead and not self._released.is_set():
            self.rest()

    def rest(self) -> None:
        """Take a moment."""
        self._released.wait(STEP_S)  # Real time: the pace of the producer

    def samples(self, samples: list[sample.Sample], first: int) -> Iterator[sample.Sample]:
        """The samples, of which `first` are in the topic, from there on."""
        for number in range(first, len(samples)):
            if (number - first) % (len(samples) // STEPS) == 0:
                self.wait(number)
            yield samples[number]

    def release(self) -> None:
        """Let the producer come to its end."""
        self._released.set()


@contextmanager
def in_the_background(work: Callable[[], object], pace: Pace) -> Iterator[None]:
    """Produce meanwhile. At the end of the block the producer has to be at work still; then it produces the rest."""
    with ThreadPoolExecutor(1) as thread:
        doing = thread.submit(work)
        try:
            yield
            assert not doing.done(), doing.exception() or "the producer was through before the last kill"
        finally:
            pace.release()
        doing.result(FULL_SIZE_S)


@contextmanager
def produced_meanwhile(servers: str, topic: str, samples: list[sample.Sample], upheaval: Upheaval) -> Iterator[None]:
    """Two micro-batches of some samples are there, and the rest comes while the block is at work."""
    two = 2 * len(samples) // BATCHES
    pace = Pace(upheaval.planned, ahead=two)
    sample.produce(servers, topic, samples[:two])
    with in_the_background(lambda: sample.produce(servers, topic, pace.samples(samples, two)), pace):
        yield


@pytest.fixture
def own_cluster(start_cluster: Any) -> Any:
    """A broker that may be killed, with all that is acknowledged on its disk."""
    return start_cluster()


@pytest.mark.full
def test_archive(spark: Any, own_cluster: Any, run_once: Any, start_program: Any, flights: Any, tmp_path: Path) -> None:
    servers, path = own_cluster.bootstrap_servers, tmp_path / "archive"
    sample.create_topics(servers, "flights")
    each = len(flights) // BATCHES
    arguments = ("--topics=flights", f"--archive={path}", f"--max-offsets-per-trigger={each}", "--maintain-every=3")
    start = ("archive", "run", f"--bootstrap-servers={servers}", *arguments, "--min-files=2", "--trigger=0 seconds")

    upheaval = Upheaval(own_cluster, path / "_checkpoint")
    with produced_meanwhile(servers, "flights", sample.flight_samples(len(flights)), upheaval):
        upheaval.happen(start_program(*start))
        left = kill_within_compaction(start_program(*start), path)

    made = Archive(spark, servers, run_once, path, "flights")
    assert not [piece for piece in made.state().pieces if piece.path.startswith(left)]
    run_once(archive, *arguments, THE_REST, bootstrap_servers=servers)
    rows = made.rows()
    assert rows == made.queue()
    archived = pandas.DataFrame([json.loads(row[5]) for row in rows])
    assert delays_by_day(archived.assign(date=archived.scheduled.str[:10])) == delays_by_day(flights)
    assert made.verdicts() == {}
    archive.compact(spark, made.options("--min-files=2"))
    assert archive.clean(spark, made.options("--grace-hours=0")) > 0
    assert not (path / "data" / left).exists()
    assert made.rows() == rows
    assert made.verdicts() == {}


@pytest.mark.full
def test_flight_delays(
    spark: Any, own_cluster: Any, run_once: Any, start_program: Any, flights: Any, tmp_path: Path
) -> None:
    servers, final, checkpoint = own_cluster.bootstrap_servers, tmp_path / "final", tmp_path / "c"
    sample.create_topics(servers, "flights", "delays")
    arguments = (
        "--output-topic=delays", f"--output-path={final}", f"--checkpoint={checkpoint}", "--lateness=10 days",
        f"--max-offsets-per-trigger={len(flights) // BATCHES}",
    )  # fmt: skip

    upheaval = Upheaval(own_cluster, checkpoint / "final-figures")
    with produced_meanwhile(servers, "flights", sample.flight_samples(len(flights)), upheaval):
        upheaval.happen(
            start_program("flight_delays", f"--bootstrap-servers={servers}", *arguments, "--trigger=0 seconds")
        )

    run_once(flight_delays, *arguments, bootstrap_servers=servers)
    expected = delays_by_day(flights)
    assert last_values(servers, "delays") == expected
    over = over_by(expected, flights, "10D")
    assert over
    assert final_figures(spark, final) == over


class Numbers:
    """Produces the numbers from 0 on, in transactions of 50,000, each after one that is aborted.

    A transaction that a broker's death breaks is aborted, and done again.
    """

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        from confluent_kafka import Producer

        self._topic = topic
        self._producer = Producer(
            {"bootstrap.servers": bootstrap_servers, "transactional.id": topic, "linger.ms": 20, "log_level": 4}
        )
        _retried(self._producer.init_transactions)

    def produce(self, count: int, pace: Pace) -> None:
        """Transactions wait for the query, never with one open: readers of committed data do not get past that."""
        for first in range(0, count, PER_TRANSACTION):
            self._transaction([b"aborted"] * ABORTED, self._producer.abort_transaction)
            values = [b"%d" % number for number in range(first, first + PER_TRANSACTION)]
            pace.wait(first)
            while not self._transaction(values, self._producer.commit_transaction, pace):
                pass

    def _transaction(self, values: list[bytes], end: Callable[[float], None], pace: Pace | None = None) -> bool:
        """Whether it could be ended as it was to be."""
        from confluent_kafka import KafkaException

        self._producer.begin_transaction()
        try:
            for number, value in enumerate(values):
                if pace is not None and number % (PER_TRANSACTION // STEPS_OF_TRANSACTION) == 0:
                    pace.rest()
                self._send(value)
            assert self._producer.flush(PATIENCE_S) == 0
            _retried(end)
        except KafkaException as problem:
            if problem.args[0].fatal():
                raise
            _retried(self._producer.abort_transaction)
            return False
        return True

    def _send(self, value: bytes) -> None:
        while True:
            try:
                return self._producer.produce(self._topic, value)
            except BufferError:
                self._producer.poll(0.05)


def _retried(call: Callable[[float], None]) -> None:
    """Call again what librdkafka says may be called again: the broker may be away."""
    from confluent_kafka import KafkaException

    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call(PATIENCE_S)
        except KafkaException as problem:
            if not problem.args[0].retriable() or time.monotonic() > deadline:
                raise


RECORDS = 1_500_000
PER_TRANSACTION = 15_000
STEPS_OF_TRANSACTION = 20
ABORTED = 150
PER_BATCH = 30_000


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_archive_of_a_million_records_and_more(
    spark: Any, own_cluster: Any, run_once: Any, start_program: Any, tmp_path: Path
) -> None:
    servers, path = own_cluster.bootstrap_servers, tmp_path / "archive"
    sample.create_topics(servers, "numbers")
    limits = (f"--max-offsets-per-trigger={PER_BATCH}", "--min-files=8", "--maintain-every=4")
    arguments = ("--topics=numbers", f"--archive={path}", *limits)
    start = ("archive", "run", f"--bootstrap-servers={servers}", *arguments, "--trigger=0 seconds")
    upheaval = Upheaval(own_cluster, path / "_checkpoint")

    pace, left = Pace(upheaval.planned, 4 * PER_BATCH), []
    with in_the_background(lambda: Numbers(servers, "numbers").produce(RECORDS, pace), pace):
        for share in (0, 0.35, 0.7):
            program = start_program(*start)
            while (before := upheaval.planned()) < share * RECORDS:
                program.wait_until(lambda before=before: upheaval.planned() > before)
            upheaval.happen(program)
            left.append(kill_within_compaction(start_program(*start), path))
    run_once(archive, *arguments, bootstrap_servers=servers)

    made = Archive(spark, servers, run_once, path, "numbers")
    assert not [piece for piece in made.state().pieces for job in left if piece.path.startswith(job)]
    reasons = made.verdicts()
    print(f"\nthe audit's reasons: {reasons}; snapshots: {made.state().snapshot}, batches: {made.state().through + 1}")
    assert set(reasons) == {"aborted", "transaction marker"}
    assert reasons["aborted"] >= RECORDS // PER_TRANSACTION * ABORTED
    numbers = read_archive(spark, str(path)).selectExpr("cast(cast(value as string) as bigint) as number")
    [row] = numbers.selectExpr("count(*) as rows", "count(distinct number) as numbers", "sum(number) as sum").collect()
    assert (row.rows, row.numbers, row.sum) == (RECORDS, RECORDS, RECORDS * (RECORDS - 1) // 2)


@pytest.mark.full
@pytest.mark.parametrize("flights", [20_000], indirect=True)
def test_dedupe(spark: Any, own_cluster: Any, run_once: Any, start_program: Any, flights: Any, tmp_path: Path) -> None:
    servers = own_cluster.bootstrap_servers
    sample.create_topics(servers, "events", "unique-events")
    events = repeated(flights, times=2, apart=300)
    arguments = (
        f"--checkpoint={tmp_path}/c", "--id-field=id", "--window=60 days",
        f"--max-offsets-per-trigger={len(events) // BATCHES}",
    )  # fmt: skip

    upheaval = Upheaval(own_cluster, tmp_path / "c" / dedupe.QUERY)
    with produced_meanwhile(servers, "events", events, upheaval):
        upheaval.happen(start_program("dedupe", f"--bootstrap-servers={servers}", *arguments, "--trigger=0 seconds"))

    run_once(dedupe, *arguments, THE_REST, bootstrap_servers=servers)
    ids = pandas.Series([json.loads(message.value())["id"] for message in consume(servers, "unique-events")])
    assert ids.value_counts().to_dict() == dict.fromkeys(range(len(flights)), 1)


@pytest.mark.full
def test_retry_and_dead_letter(spark: Any, own_cluster: Any, run_once: Any, start_program: Any, tmp_path: Path) -> None:
    servers, samples = own_cluster.bootstrap_servers, fates(8000)
    create_retry_topics(servers, "checked")
    arguments = (
        "--input-topic=checked", "--output-topic=checked-out", f"--handler={HANDLER}", "--delays=0.2,0.4",
        f"--checkpoint={tmp_path}/c", f"--max-offsets-per-trigger={len(samples) // BATCHES}",
    )  # fmt: skip
    start = ("retry_and_dead_letter", f"--bootstrap-servers={servers}", *arguments, "--trigger=0 seconds")

    upheaval = Upheaval(own_cluster, tmp_path / "c" / "checked")
    with produced_meanwhile(servers, "checked", samples, upheaval):
        upheaval.happen(start_program(*start))

    run_once(retry_and_dead_letter, *arguments, THE_REST, bootstrap_servers=servers)
    assert keys_in(servers, "checked-out") == expected_keys(samples, "1", "2", "3")
    assert keys_in(servers, "checked-dead") == expected_keys(samples, "never", "hopeless")
    assert keys_in(servers, "checked-retry-2") == expected_keys(samples, "3", "never")


@pytest.mark.full
def test_a_stopped_program_ends_cleanly(spark: Any, own_cluster: Any, start_program: Any, tmp_path: Path) -> None:
    servers, samples = own_cluster.bootstrap_servers, fates(1000)
    create_retry_topics(servers, "checked")
    sample.produce(servers, "checked", samples)
    arguments = (
        f"--bootstrap-servers={servers}", "--input-topic=checked", "--output-topic=checked-out",
        f"--handler={HANDLER}", "--delays=3600", f"--checkpoint={tmp_path}/c",
    )  # fmt: skip
    program = start_program("retry_and_dead_letter", *arguments)
    retries = tmp_path / "c" / "checked-retry-1"

    program.wait_until(lambda: waiting_batch(retries) is not None)
    waiting = waiting_batch(retries)  # for an hour

    assert program.stop() == 0, program.log()

    assert waiting_batch(retries) == waiting
    assert keys_in(servers, "checked-out") == expected_keys(samples, "1")
    assert keys_in(servers, "checked-retry-1") == expected_keys(samples, "2", "3", "never")
