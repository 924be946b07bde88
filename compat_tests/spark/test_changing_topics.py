"""Queries that run while their topics change: continuous mode; topics that vanish, grow, come back, lose records."""

import random
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from compat_tests.conftest import BARNABAS, KAFKA, create_topic
from tools.waiting import PATIENCE_S, wait_until

AT_RANDOM_S = 60
"""For how long topics come and go."""
QUICK_RETENTION = {
    "log.retention.check.interval.ms": "100",
    "log.segment.delete.delay.ms": "0",
    "log.initial.task.delay.ms": "100",  # Kafka looks at retention for the first time after 30 s
}
LOSING = {
    BARNABAS: {"segment.bytes": "70", "retention.bytes": "40"},
    KAFKA: {"internal.segment.bytes": "100", "retention.bytes": "40"},  # 4.x refuses a segment.bytes as small as this
}
"""Each batch is a segment, and all but the newest may go."""
BEGIN, END = "--", "~~"
"""Values of two bytes, as a batch of one such record has 70."""
QUICK_TO_GIVE_UP = {
    "kafka.default.api.timeout.ms": "10000",
    "kafka.request.timeout.ms": "9000",
    "fetchOffset.numRetries": "20",
    "fetchOffset.retryIntervalMs": "200",
    "kafkaConsumer.pollTimeoutMs": "10000",
}
DATA_LOSS = r"data loss|out of range|not available|may have been lost|changed from|missing|reset"


def until(condition: Callable[[], Any], what: Callable[[], object], query: Any = None) -> None:
    """Wait for it while the query runs, if there is one."""

    def look() -> bool:
        is_so = bool(condition())
        assert is_so or query is None or query.isActive, query.exception()
        return is_so

    wait_until(look, what)


class Running:
    """A running query and the values it has read, in the order of its batches."""

    def __init__(self, frame: Any, checkpoint: Path) -> None:
        self.values: list[str] = []
        writer = frame.selectExpr("cast(value as string)").writeStream.foreachBatch(self._take)
        self.query = (
            writer.option("checkpointLocation", str(checkpoint)).trigger(processingTime="100 milliseconds").start()
        )

    def _take(self, batch: Any, _: int) -> None:
        self.values += [row.value for row in batch.collect()]

    def wait_for(self, *values: str) -> None:
        until(lambda: set(values) <= set(self.values), lambda: (values, self.values), self.query)


@contextmanager
def running(frame: Any, checkpoint: Path) -> Iterator[Running]:
    made = Running(frame, checkpoint)
    try:
        yield made
    finally:
        made.query.stop()


@pytest.fixture
def admin(cluster: Any) -> Any:
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": cluster.bootstrap_servers})


def numbered(prefix: str, first: int, end: int) -> list[str]:
    return [f"{prefix}{number}" for number in range(first, end)]


def encoded(values: list[str]) -> list[bytes]:
    return [value.encode() for value in values]


@pytest.fixture
def create_again(admin: Any, make_topic: Any) -> Callable[[str], None]:
    """Deletes a topic and creates another one under its name."""

    def create(topic: str) -> None:
        admin.delete_topics([topic])[topic].result(PATIENCE_S)
        make_topic(name=topic)

    return create


@pytest.fixture
def values_in(cluster: Any) -> Callable[[str], set[str]]:
    """The values in partition 0 of a topic, read without Spark: a continuous query occupies all of its cores."""
    from confluent_kafka import Consumer, TopicPartition

    def read(topic: str) -> set[str]:
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "values"})
        partition = TopicPartition(topic, 0, 0)
        _, high = consumer.get_watermark_offsets(partition, timeout=PATIENCE_S)
        consumer.assign([partition])
        values: set[str] = set()
        for message in consumer.consume(high, timeout=PATIENCE_S):
            values.add(message.value().decode())
        consumer.close()
        return values

    return read


def test_continuous_mode(
    kafka: Any, make_topic: Any, produce: Any, cluster: Any, values_in: Any, tmp_path: Path
) -> None:
    source, sink = make_topic(partitions=2), make_topic()

    @contextmanager
    def running_continuously() -> Iterator[Any]:
        frame = kafka.read_stream(subscribe=source, startingOffsets="earliest")
        upper = frame.selectExpr("upper(cast(value as string)) as value").writeStream
        writer = upper.format("kafka").option("kafka.bootstrap.servers", cluster.bootstrap_servers)
        writer = writer.option("topic", sink).option("checkpointLocation", str(tmp_path))
        query = writer.trigger(continuous="500 milliseconds").start()
        try:
            yield query
        finally:
            query.stop()

    expected: set[str] = set()

    def send_and_wait(query: Any, letter: str, count: int) -> None:
        produce(source, encoded(numbered(letter, 0, count)))
        expected.update(numbered(letter.upper(), 0, count))
        until(lambda: values_in(sink) == expected, lambda: values_in(sink), query)

    with running_continuously() as query:
        send_and_wait(query, "a", 20)
        send_and_wait(query, "b", 20)
    with running_continuously() as query:
        send_and_wait(query, "c", 5)


def test_partitions_added_under_a_running_query(
    kafka: Any, topic: str, produce: Any, admin: Any, tmp_path: Path
) -> None:
    from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]

    with running(kafka.read_stream(subscribe=topic, startingOffsets="earliest"), tmp_path) as reading:
        produce(topic, encoded(numbered("first-", 0, 5)))
        reading.wait_for(*numbered("first-", 0, 5))
        for partitions in (2, 5):
            admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(PATIENCE_S)
            for partition in range(partitions):
                produce(topic, encoded([f"{partition} of {partitions}"]), partition=partition)
            reading.wait_for(*[f"{partition} of {partitions}" for partition in range(partitions)])
    assert len(reading.values) == len(set(reading.values)) == 12


def test_a_topic_deleted_and_created_again_under_a_running_query(
    kafka: Any, topic: str, produce: Any, create_again: Callable[[str], None], tmp_path: Path
) -> None:
    frame = kafka.read_stream(subscribe=topic, startingOffsets="earliest", failOnDataLoss="false")
    with running(frame, tmp_path) as reading:
        produce(topic, encoded(numbered("old-", 0, 10)))
        reading.wait_for(*numbered("old-", 0, 10))
        create_again(topic)
        # Spark goes by offsets: what lies below those it has read already may be lost for it, what is beyond is not.
        produce(topic, encoded(numbered("new-", 0, 20)))
        deadline = time.monotonic() + PATIENCE_S
        more = 0
        while not any(value.startswith("more-") for value in reading.values):
            assert reading.query.isActive, reading.query.exception()
            assert time.monotonic() < deadline, reading.values
            produce(topic, encoded([f"more-{more}"]))
            more += 1
            time.sleep(0.3)  # Real time: the pace at which more come
    assert reading.values[:10] == numbered("old-", 0, 10)
    assert len(reading.values) == len(set(reading.values))


@pytest.mark.full
def test_a_topic_created_again_fails_a_running_strict_query(
    kafka: Any, topic: str, produce: Any, create_again: Callable[[str], None], tmp_path: Path
) -> None:
    """Spark goes by the offsets that it has read to, and names them in its error."""
    options = {"subscribe": topic, "startingOffsets": "earliest", "failOnDataLoss": "true", **QUICK_TO_GIVE_UP}
    with running(kafka.read_stream(**options), tmp_path) as reading:
        produce(topic, encoded(numbered("old-", 0, 10)))
        reading.wait_for(*numbered("old-", 0, 10))
        reading.query.processAllAvailable()
        create_again(topic)
        produce(topic, encoded(["new"]))
        wait_until(lambda: not reading.query.isActive, lambda: reading.values)
        with pytest.raises(Exception, match=f"{topic}-0 offset was changed from 10 to [01]"):
            raise reading.query.exception()
    assert reading.values == numbered("old-", 0, 10)


def test_a_topic_with_fewer_records_fails_a_strict_query(
    kafka: Any, topic: str, produce: Any, create_again: Callable[[str], None], tmp_path: Path
) -> None:
    frame = kafka.read_stream(subscribe=topic, startingOffsets="earliest", failOnDataLoss="true")
    with running(frame, tmp_path) as reading:
        produce(topic, encoded(numbered("old-", 0, 10)))
        reading.wait_for(*numbered("old-", 0, 10))
        # Stopped before it commits, the batch is read again, and its task waits two minutes for what is gone.
        reading.query.processAllAvailable()
    create_again(topic)
    produce(topic, encoded(["new"]))

    with running(frame, tmp_path) as again:
        until(lambda: not again.query.isActive, lambda: again.values)
        with pytest.raises(Exception, match=f"(?i){DATA_LOSS}"):
            raise again.query.exception()


def short(start: int, end: int) -> list[str]:
    """Numbers as values of two bytes, in order."""
    return [f"{number:02x}" for number in range(start, end)]


class Losing:
    """A broker of one's own with a topic whose old records go away all the time."""

    def __init__(self, own: Any, kafka: Any) -> None:
        from compat_tests.spark.conftest import Kafka

        self.kafka = Kafka(kafka._spark, own.bootstrap_servers)
        self.topic = f"losing-{secrets.token_hex(4)}"
        self._servers = {"bootstrap.servers": own.bootstrap_servers}
        create_topic(own.bootstrap_servers, self.topic, 1, LOSING[own.target])

    def produce(self, values: list[str]) -> None:
        """One batch for each value, so that there is something to delete between any two."""
        from confluent_kafka import Producer

        producer = Producer({**self._servers, "linger.ms": 0})
        problems: list[Any] = []
        for value in values:
            producer.produce(self.topic, value, on_delivery=lambda error, _: problems.append(error))
            producer.flush(PATIENCE_S)
        assert problems == [None] * len(values)

    def log_start(self) -> int:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({**self._servers, "group.id": "watermarks"})
        low: int = consumer.get_watermark_offsets(TopicPartition(self.topic, 0), timeout=PATIENCE_S)[0]
        consumer.close()
        return low

    def frame(self, fail_on_data_loss: str, **options: Any) -> Any:
        wanted = {"subscribe": self.topic, "startingOffsets": "earliest", "failOnDataLoss": fail_on_data_loss}
        return self.kafka.read_stream(**wanted, **options)


@pytest.fixture
def losing(start_cluster: Any, kafka: Any) -> Losing:
    return Losing(start_cluster(QUICK_RETENTION), kafka)


def test_records_that_retention_took_before_a_query_came_back(losing: Losing, tmp_path: Path) -> None:
    losing.produce([BEGIN])
    strict, lenient = tmp_path / "strict", tmp_path / "lenient"
    for checkpoint in (strict, lenient):
        with running(losing.frame("true"), checkpoint) as reading:
            until(lambda now=reading: now.query.lastProgress is not None, lambda: "no progress", reading.query)  # type: ignore[misc]
    losing.produce(short(0, 50))
    until(lambda: losing.log_start() > 20, losing.log_start)

    with running(losing.frame("true"), strict) as failing:
        until(lambda: not failing.query.isActive, lambda: failing.values)
        with pytest.raises(Exception, match=f"(?i){DATA_LOSS}"):
            raise failing.query.exception()
    with running(losing.frame("false"), lenient) as reading:
        losing.produce([END])
        reading.wait_for(END)
    read = [value for value in reading.values if value not in (BEGIN, END)]
    assert read == sorted(set(read)), "nothing twice, nothing out of order"
    assert short(0, 1)[0] not in read


@pytest.mark.full
def test_retention_that_moves_under_a_running_query(losing: Losing, tmp_path: Path) -> None:
    frame = losing.frame("false", maxOffsetsPerTrigger="15")
    losing.produce([BEGIN])
    with running(frame, tmp_path) as reading:
        for start in range(0, 200, 20):
            losing.produce(short(start, start + 20))
        until(lambda: losing.log_start() > 100, losing.log_start, reading.query)
        losing.produce([END])
        reading.wait_for(END)
    read = [value for value in reading.values if value not in (BEGIN, END)]
    assert read == sorted(set(read)), "nothing twice, nothing out of order"


@pytest.mark.full
def test_topics_created_and_deleted_while_reading(
    kafka: Any, topic_name: str, make_topic: Any, produce: Any, admin: Any, tmp_path: Path
) -> None:
    """All records of a topic that stays are read, each once, while topics beside it come and go.

    Spark needs some help, on Apache Kafka as here. It lists topics first and asks for their offsets then: Java's
    admin client goes on asking for a topic that went away meanwhile, for a minute by default. All batches wait that
    long, and sometimes the last record came too late for this test on Apache Kafka 4.3.0. With `QUICK_TO_GIVE_UP`
    Spark lists the topics again, up to 20 times instead of 3. A task that is to read what a new topic of the same name
    lacks waits for a record first, two minutes by default, and only then asks where the topic ends: 10 s here. All
    topics have one partition: when a name comes back with fewer than before, the task that reads the missing one fails
    with TimeoutException, and the query with it, whatever failOnDataLoss says. Partition 0 comes back, as the task's
    asking for it creates the topic.
    """
    from confluent_kafka import KafkaException

    dice = random.Random(AT_RANDOM_S)
    always = f"{topic_name}-always"
    pattern = {"subscribePattern": f"{topic_name}-.*", "startingOffsets": "earliest", "failOnDataLoss": "false"}
    topics: set[str] = set()
    sent: set[str] = set()
    kept: list[str] = []

    def step(number: int) -> None:
        choice = dice.random()
        if choice < 0.2 or not topics:
            name = f"{topic_name}-{dice.randrange(6)}"  # names come back: the same name is another topic then
            if name not in topics:
                with suppress(KafkaException):  # the query itself asks for topics that are gone, which creates them
                    make_topic(name=name)
                topics.add(name)
            return
        name = dice.choice(sorted(topics))
        if choice < 0.4:
            with suppress(KafkaException):
                admin.delete_topics([name])[name].result(PATIENCE_S)
            topics.discard(name)
        else:
            values = numbered(f"{number}-", 0, dice.randrange(1, 20))
            chosen = dice.choice([name, always])
            produce(chosen, encoded(values))
            sent.update(values)
            kept.extend(values if chosen == always else ())

    make_topic(name=always)
    with running(kafka.read_stream(**pattern, **QUICK_TO_GIVE_UP), tmp_path) as reading:
        ends = time.monotonic() + AT_RANDOM_S  # Real time: so long they come and go, however fast that is
        number = 0
        while time.monotonic() < ends or len(kept) <= 20:
            step(number)
            number += 1
            assert reading.query.isActive, reading.query.exception()
        kept.append("end")
        produce(always, encoded(kept[-1:]))
        reading.wait_for("end")
    assert [value for value in reading.values if value in set(kept)] == kept, "all, once, in order"
    assert set(reading.values) <= sent | {"end"}
    assert len(kept) > 20
