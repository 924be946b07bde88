"""`kill -9` of the broker and of the query, in the middle of four pipelines: afterwards nothing is lost or doubled."""

import json
from pathlib import Path
from typing import Any

import pandas
import pytest

from compat_tests.spark.pipelines.conftest import commits, consume
from compat_tests.spark.pipelines.test_archive import Archive
from compat_tests.spark.pipelines.test_exactly_once import (
    HANDLER,
    create_retry_topics,
    expected_keys,
    fates,
    keys_in,
    repeated,
)
from compat_tests.spark.pipelines.test_joins_and_windows import final_figures, last_values, over_by
from spark_examples import archive, dedupe, flight_delays, retry_and_dead_letter, sample
from spark_examples.archive_reader import read_archive
from spark_examples.demo import delays_by_day


class Upheaval:
    """A broker that is killed and started again, then a program that is killed, each in the middle of its work."""

    def __init__(self, broker: Any, program: Any, checkpoint: Path) -> None:
        self._broker = broker
        self._program = program
        self._checkpoint = checkpoint

    def happen(self) -> None:
        self._wait_for_batches(2)
        self._broker.kill()
        self._broker.start()
        self._wait_for_batches(2)
        self._program.kill()

    def _wait_for_batches(self, more: int) -> None:
        done = commits(self._checkpoint)
        self._program.wait_until(lambda: commits(self._checkpoint) >= done + more)


@pytest.fixture
def own_cluster(start_cluster: Any) -> Any:
    """A broker that may be killed, with all that is acknowledged on its disk."""
    return start_cluster()


def test_archive(spark: Any, own_cluster: Any, run_once: Any, start_program: Any, flights: Any, tmp_path: Path) -> None:
    servers, path = own_cluster.bootstrap_servers, tmp_path / "archive"
    sample.create_topics(servers, "flights")
    sample.produce(servers, "flights", sample.flight_samples(len(flights)))
    arguments = ("--topics=flights", f"--archive={path}", "--max-offsets-per-trigger=1000", "--maintain-every=3")
    program = start_program(
        "archive", "run", f"--bootstrap-servers={servers}", *arguments, "--min-files=2", "--trigger=0 seconds"
    )

    Upheaval(own_cluster, program, path / "_checkpoint").happen()

    made = Archive(spark, servers, run_once, path, "flights")
    in_the_middle = commits(path / "_checkpoint")
    assert in_the_middle < 20, "it was through before it was killed"
    run_once(archive, *arguments, bootstrap_servers=servers)
    rows = made.rows()
    assert rows == made.queue()
    archived = pandas.DataFrame([json.loads(row[5]) for row in rows])
    assert delays_by_day(archived.assign(date=archived.scheduled.str[:10])) == delays_by_day(flights)
    assert made.verdicts() == {}
    archive.compact(spark, made.options("--min-files=2"))
    assert archive.clean(spark, made.options("--grace-hours=0")) > 0
    assert made.rows() == rows
    assert made.verdicts() == {}


@pytest.mark.full
def test_flight_delays(
    spark: Any, own_cluster: Any, run_once: Any, start_program: Any, flights: Any, tmp_path: Path
) -> None:
    servers, final, checkpoint = own_cluster.bootstrap_servers, tmp_path / "final", tmp_path / "c"
    sample.create_topics(servers, "flights", "delays")
    sample.produce(servers, "flights", sample.flight_samples(len(flights)))
    arguments = (
        "--output-topic=delays", f"--output-path={final}", f"--checkpoint={checkpoint}", "--lateness=10 days",
        "--max-offsets-per-trigger=1000",
    )  # fmt: skip
    program = start_program("flight_delays", f"--bootstrap-servers={servers}", *arguments, "--trigger=0 seconds")

    Upheaval(own_cluster, program, checkpoint / "final-figures").happen()

    assert commits(checkpoint / "final-figures") < 20, "it was through before it was killed"
    run_once(flight_delays, *arguments, bootstrap_servers=servers)
    expected = delays_by_day(flights)
    assert last_values(servers, "delays") == expected
    over = over_by(expected, flights, "10D")
    assert over
    assert final_figures(spark, final) == over


RECORDS = 5_000_000
BATCH = 125_000


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_archive_of_five_million_records(
    spark: Any, own_cluster: Any, run_once: Any, start_program: Any, tmp_path: Path
) -> None:
    from confluent_kafka import Producer

    servers, path = own_cluster.bootstrap_servers, tmp_path / "archive"
    sample.create_topics(servers, "numbers")
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "numbers", "linger.ms": 20})
    producer.init_transactions(60)
    arguments = ("--topics=numbers", f"--archive={path}", f"--max-offsets-per-trigger={BATCH}", "--maintain-every=5")
    start = ("archive", "run", f"--bootstrap-servers={servers}", *arguments, "--trigger=0 seconds", "--min-files=8")

    def produce(numbers: range) -> None:
        """In transactions of 50,000, each after one that is aborted."""
        for first in range(numbers.start, numbers.stop, 50_000):
            for values in ([b"aborted"] * 500, (b"%d" % number for number in range(first, first + 50_000))):
                producer.begin_transaction()
                for value in values:
                    while True:
                        try:
                            producer.produce("numbers", value)
                            break
                        except BufferError:
                            producer.poll(0.05)
                assert producer.flush(120) == 0
                producer.abort_transaction(60) if value == b"aborted" else producer.commit_transaction(60)

    produce(range(RECORDS // 2))
    for _ in range(2):
        program = start_program(*start)
        Upheaval(own_cluster, program, path / "_checkpoint").happen()
    assert commits(path / "_checkpoint") < RECORDS // 2 // BATCH, "it was through before it was killed"
    produce(range(RECORDS // 2, RECORDS))
    run_once(archive, *arguments, bootstrap_servers=servers)

    made = Archive(spark, servers, run_once, path, "numbers")
    reasons = made.verdicts()
    print(f"\nthe audit's reasons: {reasons}; snapshots: {made.state().snapshot}, batches: {made.state().through + 1}")
    assert set(reasons) == {"aborted", "transaction marker"}
    assert reasons["aborted"] == RECORDS // 50_000 * 500
    numbers = read_archive(spark, str(path)).selectExpr("cast(cast(value as string) as bigint) as number")
    [row] = numbers.selectExpr("count(*) as rows", "count(distinct number) as numbers", "sum(number) as sum").collect()
    assert (row.rows, row.numbers, row.sum) == (RECORDS, RECORDS, RECORDS * (RECORDS - 1) // 2)


def test_dedupe(spark: Any, own_cluster: Any, run_once: Any, start_program: Any, flights: Any, tmp_path: Path) -> None:
    servers = own_cluster.bootstrap_servers
    sample.create_topics(servers, "events", "unique-events")
    sample.produce(servers, "events", repeated(flights, times=2, apart=300))
    arguments = (f"--checkpoint={tmp_path}/c", "--id-field=id", "--window=60 days", "--max-offsets-per-trigger=2000")
    program = start_program("dedupe", f"--bootstrap-servers={servers}", *arguments, "--trigger=0 seconds")

    Upheaval(own_cluster, program, tmp_path / "c" / dedupe.QUERY).happen()

    assert commits(tmp_path / "c" / dedupe.QUERY) < 20, "it was through before it was killed"
    run_once(dedupe, *arguments, bootstrap_servers=servers)
    ids = pandas.Series([json.loads(message.value())["id"] for message in consume(servers, "unique-events")])
    assert ids.value_counts().to_dict() == dict.fromkeys(range(len(flights)), 1)


def test_retry_and_dead_letter(spark: Any, own_cluster: Any, run_once: Any, start_program: Any, tmp_path: Path) -> None:
    servers, samples = own_cluster.bootstrap_servers, fates(8000)
    create_retry_topics(servers, "checked")
    sample.produce(servers, "checked", samples)
    arguments = (
        "--input-topic=checked", "--output-topic=checked-out", f"--handler={HANDLER}", "--delays=0.2,0.4",
        f"--checkpoint={tmp_path}/c", "--max-offsets-per-trigger=400",
    )  # fmt: skip
    program = start_program(
        "retry_and_dead_letter", f"--bootstrap-servers={servers}", *arguments, "--trigger=0 seconds"
    )

    Upheaval(own_cluster, program, tmp_path / "c" / "checked").happen()

    assert commits(tmp_path / "c" / "checked") < 20, "it was through before it was killed"
    run_once(retry_and_dead_letter, *arguments, bootstrap_servers=servers)
    assert keys_in(servers, "checked-out") == expected_keys(samples, "1", "2", "3")
    assert keys_in(servers, "checked-dead") == expected_keys(samples, "never", "hopeless")
    assert keys_in(servers, "checked-retry-2") == expected_keys(samples, "3", "never")


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

    def waiting_batch() -> int | None:
        """The batch of retries that has been planned, is not empty, and is not done: it waits for an hour."""
        planned = [int(path.name) for path in (retries / "offsets").glob("*") if path.name.isdigit()]
        if not planned or (retries / "commits" / str(max(planned))).exists():
            return None
        ends = json.loads((retries / "offsets" / str(max(planned))).read_text().splitlines()[-1])
        return max(planned) if sum(ends["checked-retry-1"].values()) else None

    program.wait_until(lambda: waiting_batch() is not None)
    waiting = waiting_batch()

    assert program.stop() == 0, program.log()

    assert waiting_batch() == waiting
    assert keys_in(servers, "checked-out") == expected_keys(samples, "1")
    assert keys_in(servers, "checked-retry-1") == expected_keys(samples, "2", "3", "never")
