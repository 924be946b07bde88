"""Spark over committed and aborted data: `kafka.isolation.level`."""

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tools.waiting import PATIENCE_S, wait_until


@pytest.fixture
def transactions(cluster: Any) -> Callable[..., None]:
    """Write transactions to a topic: `transactions(topic, ("commit", values), ("abort", values))`."""
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": f"spark-{secrets.token_hex(6)}"}
    )
    producer.init_transactions(PATIENCE_S)

    def write(topic: str, *outcomes: tuple[str, list[str]]) -> None:
        for outcome, values in outcomes:
            producer.begin_transaction()
            for number, value in enumerate(values):
                producer.produce(topic, value.encode(), partition=number % 2)
            assert producer.flush(PATIENCE_S) == 0
            if outcome == "commit":
                producer.commit_transaction(PATIENCE_S)
            elif outcome == "abort":
                producer.abort_transaction(PATIENCE_S)

    return write


def test_a_batch_of_committed_data(
    kafka: Any, make_topic: Callable[..., str], transactions: Callable[..., None], wait_for_end: Callable[..., None]
) -> None:
    topic = make_topic(partitions=2)
    kept, dropped = [f"kept-{n}" for n in range(50)], [f"dropped-{n}" for n in range(50)]
    transactions(topic, ("commit", kept[:20]), ("abort", dropped), ("commit", kept[20:]))
    wait_for_end(topic)

    committed = kafka.read(subscribe=topic, **{"kafka.isolation.level": "read_committed"})
    assert kafka.values(committed) == sorted(kept)
    everything = kafka.read(subscribe=topic, **{"kafka.isolation.level": "read_uncommitted"})
    assert kafka.values(everything) == sorted(kept + dropped)


def test_an_open_transaction_is_not_read(
    kafka: Any, make_topic: Callable[..., str], transactions: Callable[..., None], wait_for_end: Callable[..., None]
) -> None:
    topic = make_topic(partitions=2)
    transactions(topic, ("commit", ["a", "b"]))
    wait_for_end(topic)
    transactions(topic, ("leave open", ["c", "d"]))

    committed = kafka.read(subscribe=topic, **{"kafka.isolation.level": "read_committed"})
    assert kafka.values(committed) == ["a", "b"]


def test_a_stream_of_committed_data(
    kafka: Any,
    make_topic: Callable[..., str],
    transactions: Callable[..., None],
    wait_for_end: Callable[..., None],
    collect_stream: Any,
    tmp_path: Path,
) -> None:
    topic = make_topic(partitions=2)
    seen: list[str] = []
    for round_number in range(3):
        kept = [f"{round_number}-{n}" for n in range(10)]
        transactions(topic, ("abort", ["never"] * 4), ("commit", kept), ("abort", ["never"] * 6))
        wait_for_end(topic)
        frame = kafka.read_stream(
            subscribe=topic, startingOffsets="earliest", **{"kafka.isolation.level": "read_committed"}
        )
        rows = collect_stream(frame.selectExpr("cast(value as string) as value"), tmp_path / "checkpoint")
        seen += [row[0] for row in rows]
    assert sorted(seen) == sorted(f"{round_number}-{n}" for round_number in range(3) for n in range(10))


@pytest.fixture
def wait_for_end(cluster: Any) -> Callable[[str], None]:
    """Wait until every decision is visible: markers follow the producer's commit."""
    from confluent_kafka import Consumer, TopicPartition

    def wait(topic: str) -> None:
        def ends(isolation: str) -> list[int]:
            consumer = Consumer(
                {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "ends", "isolation.level": isolation}
            )
            try:
                return [consumer.get_watermark_offsets(TopicPartition(topic, index), PATIENCE_S)[1] for index in (0, 1)]
            finally:
                consumer.close()

        wait_until(lambda: ends("read_committed") == ends("read_uncommitted"))

    return wait


@pytest.mark.parametrize("count", [9, pytest.param(40, marks=pytest.mark.full)])
def test_partitions_with_gaps_are_split_and_read_once(
    kafka: Any,
    make_topic: Callable[..., str],
    transactions: Callable[..., None],
    wait_for_end: Callable[..., None],
    count: int,
) -> None:
    """`minPartitions` splits ranges of offsets: some end in an aborted transaction, some have nothing else."""
    topic = make_topic(partitions=2)
    kept: list[str] = []
    for number in range(5):
        values = [f"kept-{number}-{n}" for n in range(3)]
        transactions(topic, ("abort", ["dropped"] * (7 * number + 1)), ("commit", values))
        kept += values
    transactions(topic, ("abort", ["dropped"] * 40))
    wait_for_end(topic)

    frame = kafka.read(subscribe=topic, minPartitions=str(count), **{"kafka.isolation.level": "read_committed"})
    assert frame.rdd.getNumPartitions() == count
    assert kafka.values(frame) == sorted(kept)
