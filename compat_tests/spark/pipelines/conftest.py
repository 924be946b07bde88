"""The pipelines of spark_examples/ on the folder's Spark session, and as programs of their own that can be killed."""

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from compat_tests.conftest import ROOT
from compat_tests.spark.conftest import SHORT_LIVED_JAVA, quick_settings
from tools.waiting import PATIENCE_S, wait_until

FULL_SIZE_S = 4 * PATIENCE_S
"""For all the work of a pipeline, which is no single event; pytest's own limit comes first, but for the full sizes."""
JAVA_OPTIONS = f"spark.driver.extraJavaOptions={SHORT_LIVED_JAVA}"


@pytest.fixture
def topic_prefix() -> str:
    """The prefix that makes this test's topics unique."""
    return f"pipeline-{secrets.token_hex(4)}"


@pytest.fixture
def mounted(spark: Any, tmp_path: Path, topic_prefix: str) -> str:
    """`tmp_path` under a URI that only Hadoop's file systems understand, as those of HDFS are."""
    settings = spark.sparkContext._jsc.hadoopConfiguration()
    settings.set(f"fs.viewfs.mounttable.{topic_prefix}.link./data", tmp_path.as_uri())
    return f"viewfs://{topic_prefix}/data"


def sizes(small: int) -> pytest.MarkDecorator:
    """For tests with `flights`: so many of them, and with `full` those of four months. The demonstration has all of the
    year.
    """
    return pytest.mark.parametrize("flights", [small, pytest.param(110_000, marks=pytest.mark.full)], indirect=True)


@pytest.fixture(scope="session")
def flights(request: pytest.FixtureRequest) -> Any:
    """The first flights of the year as pandas has them, by their scheduled time; `json` is the event's text."""
    import pandas

    from barnabas.spark_examples import sample

    samples = sample.flight_samples(getattr(request, "param", 20_000))
    frame = pandas.DataFrame([json.loads(each.value) for each in samples])
    frame["json"] = [each.value for each in samples]
    frame["millis"] = [each.timestamp for each in samples]
    frame["date"] = frame.scheduled.str[:10]
    return frame


@pytest.fixture
def run_once(spark: Any, cluster: Any) -> Callable[..., dict[str, Any]]:
    """Work off what is there: `run_once(module, "--option=value")` returns the totals of each query."""
    from barnabas.spark_examples import pipeline

    def run(module: ModuleType, *arguments: str, bootstrap_servers: str | None = None) -> dict[str, Any]:
        options = options_for(module, bootstrap_servers or cluster.bootstrap_servers, "--once", *arguments)
        queries = module.start(spark, options)
        return {**options.totals, **pipeline.follow(queries, options.stop)}

    return run


def options_for(module: ModuleType, bootstrap_servers: str, *arguments: str) -> Any:
    """A pipeline's options, as its command line would have them."""
    options = module.parser().parse_args([f"--bootstrap-servers={bootstrap_servers}", *arguments])
    options.stop = threading.Event()
    return options


def consume(bootstrap_servers: str, *topics: str, isolation_level: str = "read_committed") -> list[Any]:
    """All records of some topics, by topic, partition and offset."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

    from barnabas.spark_examples.exactly_once import wait_until_readable

    assert wait_until_readable({"bootstrap.servers": bootstrap_servers}, *topics)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "all-of-it",
            "isolation.level": isolation_level,
            "enable.partition.eof": True,
        }
    )
    try:
        described = consumer.list_topics(timeout=PATIENCE_S).topics
        places = [
            TopicPartition(topic, number, OFFSET_BEGINNING)
            for topic in topics
            for number in described[topic].partitions
        ]
        consumer.assign(places)
        found: list[Any] = []
        ended: set[tuple[str, int]] = set()
        while len(ended) < len(places):
            for message in consumer.consume(10_000, timeout=0.1):
                if message.error() is None:
                    found.append(message)
                else:
                    assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                    ended.add((message.topic(), message.partition()))
    finally:
        consumer.close()
    return sorted(found, key=lambda message: (message.topic(), message.partition(), message.offset()))


class Program:
    """A pipeline in a process (and a Java process) of its own."""

    def __init__(self, log: Path, module: str, *arguments: str) -> None:
        self._log = log
        quick = [f"--conf={key}={value}" for key, value in quick_settings().items()]
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"barnabas.spark_examples.{module}", *arguments, *quick],
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
            )  # fmt: skip

    def wait_until(self, condition: Callable[[], Any]) -> None:
        """Wait for something that the running program brings about."""

        def look() -> bool:
            is_so = bool(condition())
            assert is_so or self._process.poll() is None, self.log()
            return is_so

        wait_until(look, self.log)

    def send(self, number: signal.Signals) -> None:
        """To Python, Java and the workers."""
        for process in processes_of_session(self._process.pid):
            with suppress(ProcessLookupError):
                os.kill(process, number)

    def send_to_group(self, number: signal.Signals) -> None:
        """As Ctrl-C in a terminal does, and some supervisors do."""
        os.killpg(self._process.pid, number)

    def processes(self) -> list[int]:
        """Python, Java and the workers, those that are left."""
        return processes_of_session(self._process.pid)

    def kill(self) -> None:
        """End Python, Java and the workers, as a machine's crash would.

        PySpark's daemon, the workers' parent, has a process group of its own: what they all share is the session.
        """
        deadline = time.monotonic() + PATIENCE_S
        while left := processes_of_session(self._process.pid):
            assert time.monotonic() < deadline, f"{left} are still there"
            for process in left:  # what one of them has started meanwhile is found in the next round
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        self._process.wait(PATIENCE_S)

    def wait(self) -> int:
        """Let it come to its own end; returns the exit status."""
        return self._process.wait(FULL_SIZE_S)

    def stop(self) -> int:
        """SIGTERM, as an operator would; returns the exit status."""
        self._process.terminate()
        return self.wait()

    def close(self) -> None:
        """End it if it still runs."""
        if self._process.poll() is None:
            self.kill()

    def log(self) -> str:
        """The end of what it printed."""
        return self._log.read_text(errors="replace")[-4000:]


def processes_of_session(session: int) -> list[int]:
    """The ids of a session's processes that have not ended, as Linux's /proc has them (see proc_pid_stat(5))."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            # PID (NAME) STATE PPID PGRP SESSION ...; a name may hold spaces and parentheses.
            state, _, _, of_session, *_ = path.read_text().rpartition(")")[2].split()
            if int(of_session) == session and state not in "ZX":
                found.append(int(path.parent.name))
    return found


@pytest.fixture
def start_program(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Start a pipeline as a program: `start_program("archive", "run", "--option=value")`."""
    programs: list[Program] = []

    def start(module: str, *arguments: str) -> Program:
        programs.append(Program(tmp_path / f"{module}-{len(programs)}.log", module, *arguments))
        return programs[-1]

    yield start
    for program in programs:
        program.close()


def commits(checkpoint: Path) -> int:
    """How many micro-batches a checkpoint says are done."""
    return len([path for path in (checkpoint / "commits").glob("*") if path.name.isdigit()])


def waiting_batch(checkpoint: Path) -> int | None:
    """The batch that has been planned, is not empty, and is not done."""
    planned = [int(path.name) for path in (checkpoint / "offsets").glob("*") if path.name.isdigit()]
    if not planned or (checkpoint / "commits" / str(max(planned))).exists():
        return None
    ends = json.loads((checkpoint / "offsets" / str(max(planned))).read_text().splitlines()[-1])
    return max(planned) if any(sum(offsets.values()) for offsets in ends.values()) else None


def forget_commits(checkpoint: Path) -> None:
    """As if Spark had been killed at the end of its first micro-batch, when all was written, before its own commit.

    What it has planned since goes, too: a query begins with the newest batch that is planned.
    """
    first = checkpoint / "offsets" / "0"
    assert first.exists()
    for path in (*(checkpoint / "commits").iterdir(), *(checkpoint / "offsets").iterdir()):
        if path not in (first, first.with_name(".0.crc")):
            path.unlink()
