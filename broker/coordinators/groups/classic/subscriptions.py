"""The topics that a group of Kafka consumers reads, so that offsets in use are neither expired nor deleted.

Subscriptions belong to the clients; the coordinator reads only their first fields, which are the same in every version:

    int16 version | int32 count | count x (int16 size, size bytes of UTF-8) | ...

Source: ConsumerProtocolSubscription v0; ClassicGroup.computeSubscribedTopics.
"""

import struct

from barnabas.broker.coordinators.groups.classic.state import CONSUMER_PROTOCOL_TYPE, Group

_COUNT_AT = 2
_NAMES_AT = 6


def parse_topics(subscription: bytes) -> frozenset[str] | None:
    """The topics of one subscription, None when it cannot be read."""
    try:
        (count,) = struct.unpack_from(">i", subscription, _COUNT_AT)
        position = _NAMES_AT
        topics = set()
        for _ in range(count):
            (size,) = struct.unpack_from(">h", subscription, position)
            position += 2 + size
            if size < 0 or position > len(subscription):
                return None
            topics.add(subscription[position - size : position].decode())
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)


def subscribed_topics(group: Group) -> frozenset[str] | None:
    """The topics that the members read, None if unknown."""
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return None
    if group.members and group.protocol_name is None:
        return None
    topics: set[str] = set()
    for member in group.members.values():
        parsed = parse_topics(member.metadata(group.protocol_name) or b"")
        if parsed is None:
            return None
        topics |= parsed
    return frozenset(topics)
