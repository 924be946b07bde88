"""A Spark session that the folder shares, with the data frames that read from and write to the cluster under test."""

from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from barnabas.spark_examples.java import JavaMissing, find_java
from tests.support.required import tool_missing
from tools.jvm.local_files import settings_for_spark
from tools.waiting import PATIENCE_S

Row = tuple[Any, ...]

SHORT_LIVED_JAVA = "-Xss8m -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
"""The stack of session.py, without the compiler whose work these seconds do not earn back. Java would then reserve
48 MiB for compiled code. These tests fill that, and Java would compile over and over."""


def quick_settings() -> dict[str, str]:
    """The settings that make a Spark of these tests quicker than that of a pipeline's user, and do not affect the
    results."""
    return {
        "spark.driver.extraJavaOptions": SHORT_LIVED_JAVA,
        "spark.sql.shuffle.partitions": "2",
        **settings_for_spark(),
    }


@pytest.fixture(scope="session")
def shared_spark() -> Iterator[Any]:
    try:
        find_java()
    except JavaMissing as missing:
        tool_missing(missing)
    from barnabas.spark_examples.session import spark_session
    from compat_tests.spark.shared_spark import SharedSpark

    shared = SharedSpark(lambda: spark_session("compat_tests", quick_settings()))
    yield shared
    shared.stop()


@pytest.fixture
def spark(shared_spark: Any) -> Any:
    return shared_spark.session()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure that ends a test early may have interrupted the test's call of Java."""
    shared = getattr(item, "funcargs", {}).get("shared_spark")
    if shared is not None and call.excinfo is not None:
        shared.has_failed()
    return (yield)


class Kafka:
    """Spark's `format("kafka")`, aimed at the cluster."""

    def __init__(self, spark: Any, bootstrap_servers: str) -> None:
        self._spark = spark
        self._bootstrap_servers = bootstrap_servers

    def read(self, **options: Any) -> Any:
        """A batch data frame; options as Spark spells them."""
        return self._reader(self._spark.read, options).load()

    def read_stream(self, **options: Any) -> Any:
        """A streaming data frame."""
        return self._reader(self._spark.readStream, options).load()

    def _reader(self, reader: Any, options: dict[str, Any]) -> Any:
        return reader.format("kafka").options(**{"kafka.bootstrap.servers": self._bootstrap_servers, **options})

    def write(self, frame: Any, topic: str | None = None, **options: Any) -> None:
        """Write a batch data frame; its columns are key, value, headers, topic, partition."""
        target = {"topic": topic} if topic else {}
        writer = frame.write.format("kafka").options(**{"kafka.bootstrap.servers": self._bootstrap_servers, **target})
        writer.options(**options).save()

    def stream_to_topic(self, frame: Any, topic: str, checkpoint: Path, mode: str = "append") -> None:
        """Write what is there of a streaming data frame to a topic, and stop."""
        writer = frame.writeStream.format("kafka").option("kafka.bootstrap.servers", self._bootstrap_servers)
        run_to_end(writer.option("topic", topic).outputMode(mode), checkpoint)

    def values(self, frame: Any) -> list[str]:
        """The values of a frame read from a topic, as text, sorted."""
        return sorted(row.value.decode() for row in frame.select("value").collect())


def run_to_end(writer: Any, checkpoint: Path) -> None:
    """Run a streaming query until it has caught up with the data that was there at its start."""
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_S), "the query did not catch up"
    assert query.exception() is None, query.exception()


@pytest.fixture
def kafka(spark: Any, cluster: Any) -> Kafka:
    return Kafka(spark, cluster.bootstrap_servers)


@pytest.fixture
def collect_stream() -> Callable[[Any, Path], list[Row]]:
    """Run a streaming data frame to its present end; returns the rows that were new since the checkpoint."""

    def collect(frame: Any, checkpoint: Path) -> list[Row]:
        rows: list[Row] = []
        query = frame.writeStream.foreachBatch(lambda batch, _: rows.extend(tuple(row) for row in batch.collect()))
        run_to_end(query, checkpoint)
        return rows

    return collect


@pytest.fixture
def produce(cluster: Any) -> Callable[..., None]:
    """Produce with librdkafka, where a test needs timestamps, partitions or nulls of its own choice."""
    from confluent_kafka import Producer

    def send(topic: str, values: Sequence[Any], **arguments: Any) -> None:
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
        for value in values:
            producer.produce(topic, value=value, **arguments)
        assert producer.flush(PATIENCE_S) == 0

    return send


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.spark)
            # PySpark leaves the sockets of collect() to the garbage collector.
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
