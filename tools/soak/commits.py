"""Acknowledged commits of groups, and a check that they are still there."""

from collections.abc import Iterable, Mapping

from confluent_kafka import Consumer, TopicPartition

Place = tuple[str, int]
"""A group and a partition."""


def moved_back(acknowledged: Mapping[Place, int], found: Mapping[Place, int]) -> list[str]:
    """The acknowledged offsets that are no longer there, as text; `found` may contain only some of all places.

    A larger offset than the acknowledged one is fine: the response to its commit may have been lost.
    """
    return [
        f"group {group} committed offset {acknowledged[group, partition]} of partition {partition}, found {offset}"
        for (group, partition), offset in found.items()
        if offset < acknowledged.get((group, partition), offset)
    ]


def fetch(consumer: Consumer, group: str, topic: str, partitions: Iterable[int]) -> dict[Place, int]:
    """The committed offsets of the consumer's group; OFFSET_INVALID, which is negative, where it has none.

    Partitions for which the broker returns an error are left out. Raises KafkaException.
    """
    found = consumer.committed([TopicPartition(topic, each) for each in partitions], timeout=30)
    return {(group, each.partition): each.offset for each in found if each.error is None}
