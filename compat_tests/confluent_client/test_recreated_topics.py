"""Topics that are deleted and created again under the same name while a client uses them."""

import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tools.waiting import PATIENCE_S, wait_until


def recreate(admin: AdminClient, topic: str, partitions: int = 1) -> None:
    admin.delete_topics([topic])[topic].result(PATIENCE_S)

    def is_created() -> bool:
        try:
            admin.create_topics([NewTopic(topic, partitions)])[topic].result(PATIENCE_S)
        except KafkaException as raised:
            if raised.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            return False
        return True

    wait_until(is_created)


def watermarks(consumer: Consumer, partition: TopicPartition) -> tuple[int, int]:
    """Low and high offset of a partition that may be so new that its leader is not known everywhere yet."""

    def look() -> tuple[int, int] | None:
        try:
            return consumer.get_watermark_offsets(partition, timeout=PATIENCE_S)  # type: ignore[no-any-return]
        except KafkaException as raised:
            if raised.args[0].code() not in (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART):
                raise
            return None

    found = wait_until(look)
    assert found is not None
    return found


def test_a_live_producer_goes_on_in_the_new_topic(
    admin: AdminClient, topic: str, group: str, make_producer: Any, make_consumer: Any, consume: Any
) -> None:
    producer = make_producer({"topic.metadata.refresh.interval.ms": 500})
    errors: list[KafkaError] = []
    producer.produce(topic, b"old", partition=0, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(PATIENCE_S) == 0
    recreate(admin, topic)
    for number in range(5):
        producer.produce(topic, b"new %d" % number, partition=0, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(PATIENCE_S) == 0
    assert errors == [None] * 6
    consumer = make_consumer(group)
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages = consume(consumer, 5)
    assert [(message.offset(), message.value()) for message in messages] == [
        (number, b"new %d" % number) for number in range(5)
    ]


def test_a_live_group_member_reads_the_new_topic(
    admin: AdminClient, topic: str, group: str, make_consumer: Any, produce: Any, consume: Any
) -> None:
    produce(topic, [b"old"] * 5)
    consumer = make_consumer(group, {"topic.metadata.refresh.interval.ms": 300})
    consumer.subscribe([topic])
    consume(consumer, 5)
    recreate(admin, topic)
    produce(topic, [b"new %d" % number for number in range(3)])
    values: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(values) < 3 and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            values.append(message.value())
    assert values == [b"new 0", b"new 1", b"new 2"]


def test_the_new_topic_starts_empty_and_with_its_own_partitions(
    admin: AdminClient, topic: str, group: str, make_consumer: Any, produce: Any
) -> None:
    produce(topic, [b"old"] * 5)
    recreate(admin, topic, partitions=3)
    consumer = make_consumer(group)
    for partition in range(3):
        assert watermarks(consumer, TopicPartition(topic, partition)) == (0, 0)
