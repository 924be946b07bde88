"""A compacted topic whose last records are all gone: what remains are batches and a marker that keep their offsets."""

import secrets
from collections.abc import Mapping
from typing import Any, Final

from compat_tests.conftest import Cluster, create_topic
from tools.waiting import PATIENCE_S, wait_until

QUICK_COMPACTION: Final[Mapping[str, str]] = {"log.cleaner.backoff.ms": "100"}
"""Settings of a broker that compacts at once."""
EMPTY: Final = range(1, 6)
"""Offsets of the records that are gone; that of the marker follows."""
END: Final = 7
_CONFIGS: Final = {"cleanup.policy": "compact", "segment.ms": "1000", "min.cleanable.dirty.ratio": "0.01"}
_START_MS: Final = 1_700_000_000_000
"""Long ago, so that the marker, which has the present time, begins a segment, too: the last one is not compacted."""


def make_emptied_topic(cluster: Cluster) -> str:
    """One record, `kept`, and a transaction that was aborted, each of its records in a segment of its own. Compaction
    drops these records, and leaves the last batch of a producer for its sequence numbers.
    """
    from confluent_kafka import Producer

    topic = f"emptied-{secrets.token_hex(4)}"
    create_topic(cluster.bootstrap_servers, topic, 1, _CONFIGS)
    servers = {"bootstrap.servers": cluster.bootstrap_servers}

    def write(producer: Any, offset: int, value: str) -> None:
        producer.produce(topic, value, key=value, partition=0, timestamp=_START_MS + 10_000 * offset)
        assert producer.flush(PATIENCE_S) == 0

    write(Producer(servers), 0, "kept")
    producer = Producer({**servers, "transactional.id": topic})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    for offset in EMPTY:
        write(producer, offset, f"dropped-{offset}")
    producer.abort_transaction(PATIENCE_S)
    wait_until(lambda: _values(servers, topic) == [b"kept"], lambda: _values(servers, topic))
    return topic


def _values(servers: dict[str, str], topic: str) -> list[Any]:
    """All that lies in the log, of transactions that were aborted, too."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {**servers, "group.id": "values", "isolation.level": "read_uncommitted", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values = []
    while True:
        (message,) = consumer.consume(1, timeout=PATIENCE_S)
        if message.error() is not None:
            assert message.error().code() == KafkaError._PARTITION_EOF
            consumer.close()
            return values
        values.append(message.value())
