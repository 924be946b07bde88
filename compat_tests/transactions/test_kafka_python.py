"""kafka-python's transactional producer."""

import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from tools.waiting import PATIENCE_S, wait_until

with warnings.catch_warnings():
    # It reads its message definitions through functions of importlib.resources that Python 3.11 deprecates.
    warnings.filterwarnings("ignore", ".*_text is deprecated", DeprecationWarning)
    import kafka


def values_of(cluster: Any, topic: str, count: int, isolation: str = "read_committed") -> list[bytes]:
    """The first `count` values, and whatever comes within a moment after."""
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=cluster.bootstrap_servers,
        isolation_level=isolation,
        auto_offset_reset="earliest",
        group_id=None,
        enable_auto_commit=False,
    )
    consumer.assign([kafka.TopicPartition(topic, 0)])
    values: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    try:
        while len(values) < count and time.monotonic() < deadline:
            for records in consumer.poll(timeout_ms=200).values():
                values += [record.value for record in records]
        for records in consumer.poll(timeout_ms=300).values():
            values += [record.value for record in records]
    finally:
        consumer.close()
    return values


@pytest.fixture
def transactional(cluster: Any, transactional_id: str) -> Any:
    """An initialised producer."""
    producer = kafka.KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, transactional_id=transactional_id)
    producer.init_transactions()
    yield producer
    producer.close(timeout=5)  # Real time: what is left over is not waited for


def test_committed_and_aborted(cluster: Any, transactional: Any, topic: str) -> None:
    for number in range(4):
        transactional.begin_transaction()
        for each in range(5):
            transactional.send(topic, f"{number}-{each}".encode())
        transactional.flush(PATIENCE_S)
        if number == 1:
            transactional.abort_transaction()
        else:
            transactional.commit_transaction()
    committed = [f"{number}-{each}".encode() for number in (0, 2, 3) for each in range(5)]
    assert values_of(cluster, topic, 15) == committed
    assert len(values_of(cluster, topic, 20, "read_uncommitted")) == 20


def test_offsets_are_part_of_the_transaction(
    cluster: Any, transactional: Any, make_topic: Callable[..., str], group: str
) -> None:
    source, target = make_topic(), make_topic()
    partition = kafka.TopicPartition(source, 0)
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=cluster.bootstrap_servers, group_id=group, enable_auto_commit=False
    )
    consumer.assign([partition])
    try:
        for offset, is_commit in ((3, True), (8, False), (5, True)):
            transactional.begin_transaction()
            transactional.send(target, str(offset).encode())
            offsets = {partition: kafka.structs.OffsetAndMetadata(offset, "", -1)}
            transactional.send_offsets_to_transaction(offsets, group)
            if is_commit:
                transactional.commit_transaction()
            else:
                transactional.abort_transaction()
        wait_until(lambda: consumer.committed(partition) == 5)
        assert values_of(cluster, target, 2) == [b"3", b"5"]
    finally:
        consumer.close()
