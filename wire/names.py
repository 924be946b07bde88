"""Names for the plain values of every layer, so that a signature distinguishes an offset from an epoch."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from typing import Final, NewType

ProducerId = NewType("ProducerId", int)

TopicId = NewType("TopicId", bytes)
"""A topic's UUID: 16 bytes, big-endian, as on the wire; bytes hash and compare faster than uuid.UUID."""

ZERO_TOPIC_ID: Final = TopicId(bytes(16))
"""No topic id: Kafka sends it if a topic has none or the sender does not know it."""

TOPIC_ID_TEXT_SIZE: Final = 22


def topic_id_to_text(topic_id: bytes) -> str:
    """Kafka's text form of a UUID: URL-safe base64 without padding, 22 characters (Uuid.toString)."""
    if len(topic_id) != 16:
        raise ValueError(f"a topic id has 16 bytes, not {len(topic_id)}")
    return urlsafe_b64encode(topic_id)[:TOPIC_ID_TEXT_SIZE].decode("ascii")


def topic_id_from_text(text: str) -> TopicId:
    """Read Kafka's text form of a UUID (Uuid.fromString).

    Errors: ValueError when the text is not the base64 of 16 bytes.
    """
    try:
        topic_id = urlsafe_b64decode(text.rstrip("=") + "==") if text.isascii() else b""
    except ValueError:
        topic_id = b""
    if len(topic_id) != 16 or topic_id_to_text(topic_id) != text.rstrip("="):
        raise ValueError(f"not a topic id: {text!r}")
    return TopicId(topic_id)


def random_topic_id(random_bytes: Callable[[int], bytes]) -> TopicId:
    """A new version 4 UUID from `random_bytes(size)`, as Kafka draws it (Uuid.randomUuid).

    Ids whose text starts with a dash are drawn again, as command lines would take them for an option.
    """
    while True:
        raw = bytearray(random_bytes(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        topic_id = TopicId(bytes(raw))
        if not topic_id_to_text(topic_id).startswith("-"):
            return topic_id
