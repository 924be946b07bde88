"""Offsets that groups were told to be committed, and whether they are still there."""

from collections.abc import Iterable, Mapping

from confluent_kafka import Consumer, TopicPartition

Place = tuple[str, int]
"""A group and a partition."""


def moved_back(acknowledged: Mapping[Place, int], found: Mapping[Place, int]) -> list[str]:
    """What was committed, and is not there any more, in words; `found` may be a part of all places.

    A larger offset than the acknowledged one is fine: the answer to its commit may have been lost.
    """
    return [
        f"group {group} committed offset {acknowledged[group, partition]} of partition {partition}, found {offset}"
        for (group, partition), offset in found.items()
        if offset < acknowledged.get((group, partition), offset)
    ]


def fetch(consumer: Consumer, group: str, topic: str, partitions: Iterable[int]) -> dict[Place, int]:
    """What the consumer's group has committed; OFFSET_INVALID, which is negative, where it has nothing.

    Partitions whose offset the broker does not tell are left out. Raises KafkaException.
    """
    found = consumer.committed([TopicPartition(topic, each) for each in partitions], timeout=30)
    return {(group, each.partition): each.offset for each in found if each.error is None}
