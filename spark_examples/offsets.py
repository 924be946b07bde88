"""Offsets by topic and partition, in the form in which Spark writes them: {"topic": {"0": 42}}."""

from collections.abc import Mapping

Partition = tuple[str, int]
Offsets = dict[Partition, int]
Range = tuple[int, int]
"""Offsets from the first one up to, not including, the second."""


def flat(nested: Mapping[str, Mapping[str, int]]) -> Offsets:
    """Offsets from Spark's form."""
    return {(topic, int(number)): at for topic, numbers in nested.items() for number, at in numbers.items()}


def nested(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Offsets in Spark's form."""
    by_topic: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        by_topic.setdefault(topic, {})[str(partition)] = offset
    return by_topic
