"""A stream from topic to topic on three brokers, the leader of which is killed and started again meanwhile."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from compat_tests.conftest import KAFKA, TARGET
from compat_tests.spark.conftest import Kafka
from compat_tests.spark.pipelines.conftest import commits
from tools.soak.cluster import TOPIC_CONFIG, ClusterOfProcesses, barnabas
from tools.soak.write_gap import Kafka3
from tools.waiting import PATIENCE_S, wait_until

RECORDS, BATCHES, PARTITIONS = 6_000, 12, 3
MORE = RECORDS // 3
"""Of four batches, written without the broker: those of before may all be done when it is killed."""
GIVES_UP_SOON = {"kafka.default.api.timeout.ms": "10000", "kafka.request.timeout.ms": "9000"}
"""Java's admin client may have chosen a broker that is gone by the time it asks, and waits for it to come back until
this is over (a minute by default, on Apache Kafka too); then Spark tries again."""

pytestmark = pytest.mark.full


@pytest.fixture
def brokers() -> Iterator[ClusterOfProcesses]:
    """Three of them, processes on a real ZooKeeper, with topics `in` and `out`, replicated to all."""
    with ClusterOfProcesses(make_broker=Kafka3 if TARGET == KAFKA else barnabas) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap_servers})
        topics = [NewTopic(name, PARTITIONS, replication_factor=3, config=dict(TOPIC_CONFIG)) for name in ("in", "out")]
        for created in admin.create_topics(topics).values():
            created.result(PATIENCE_S)
        running.wait_settled("in", "out")
        yield running


def test_a_stream_goes_on_without_a_broker_and_with_it_again(
    spark: Any, brokers: ClusterOfProcesses, tmp_path: Path
) -> None:
    kafka = Kafka(spark, brokers.bootstrap_servers)

    def write(first: int, end: int) -> None:
        kafka.write(spark.range(first, end).selectExpr("cast(id as string) as value"), "in")

    write(0, RECORDS)
    frame = kafka.read_stream(
        subscribe="in",
        startingOffsets="earliest",
        maxOffsetsPerTrigger=str(RECORDS // BATCHES),
        **GIVES_UP_SOON,
    )
    query = (
        frame.select("value").writeStream.format("kafka")
        .options(**{"kafka.bootstrap.servers": brokers.bootstrap_servers, "topic": "out"})
        .option("checkpointLocation", str(tmp_path))
        .start()
    )  # fmt: skip
    try:
        wait_until(lambda: commits(tmp_path) >= 2)
        leader = brokers.leader("out", 0)
        leader.kill()
        without_it = commits(tmp_path)
        write(RECORDS, RECORDS + MORE)
        wait_until(lambda: commits(tmp_path) >= without_it + 2)
        leader.start()
        query.processAllAvailable()
    finally:
        query.stop()

    assert query.exception() is None, query.exception()
    # A task that is tried again may write a record twice, as Spark says of this sink.
    written = {int(value) for value in kafka.values(kafka.read(subscribe="out"))}
    assert written == set(range(RECORDS + MORE))
    brokers.wait_settled()
