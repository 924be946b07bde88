import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.wire.names import ZERO_TOPIC_ID, random_topic_id, topic_id_from_text, topic_id_to_text


def test_known_text() -> None:
    assert topic_id_to_text(ZERO_TOPIC_ID) == "A" * 22
    assert topic_id_from_text("A" * 22) == ZERO_TOPIC_ID
    assert topic_id_to_text(bytes(15) + b"\x01") == "AAAAAAAAAAAAAAAAAAAAAQ"


@given(st.binary(min_size=16, max_size=16))
def test_round_trip(topic_id: bytes) -> None:
    text = topic_id_to_text(topic_id)
    assert len(text) == 22
    assert text == base64.urlsafe_b64encode(topic_id).decode().rstrip("=")
    assert topic_id_from_text(text) == topic_id
    assert topic_id_from_text(text + "==") == topic_id


@pytest.mark.parametrize(
    "text", ["", "A", *("A" * size for size in (21, 23, 24)), *("A" * 21 + end for end in ("!", "é", "B"))]
)
def test_not_an_id(text: str) -> None:
    with pytest.raises(ValueError, match="not a topic id"):
        topic_id_from_text(text)


def test_wrong_size() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        topic_id_to_text(b"short")


def test_random_ids_are_version_4_and_never_start_with_a_dash() -> None:
    draws = [b"\xf8" + bytes(15), bytes(16)]  # the first would start with "-"
    topic_id = random_topic_id(lambda size: draws.pop(0)[:size])
    assert draws == []
    assert topic_id == bytes.fromhex("00000000000040008000000000000000")
