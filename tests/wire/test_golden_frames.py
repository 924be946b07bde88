"""Frames that stock clients and Apache Kafka 4.3.0 really sent: each decodes, and encodes to the same bytes.

Recorded by tools/golden/record_frames.py.
"""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from barnabas.wire import codec, headers, messages

FOLDER = Path(__file__).parent / "golden_frames"


def recorded_frames() -> list[Any]:
    return [
        pytest.param(entry, id=f"{path.stem}-{number}-{entry['api']}-v{entry['version']}-{entry['kind']}")
        for path in sorted(FOLDER.glob("*.jsonl"))
        for number, entry in enumerate(map(json.loads, path.read_text().splitlines()))
    ]


@pytest.mark.parametrize("entry", recorded_frames())
def test_a_recorded_frame_survives_decoding_and_encoding(entry: dict[str, Any]) -> None:
    frame = base64.b64decode(entry["frame"])
    key, version = entry["key"], entry["version"]
    api = messages.api(key)
    assert api.name == entry["api"]
    if entry["kind"] == "request":
        header = headers.parse_request_header(frame)
        assert (header.api_key, header.api_version) == (key, version)
        encoded_header = headers.request_header(key, version, header.correlation_id, header.client_id)
        message_class, position = api.request_class, header.body_position
    else:
        correlation_id, position = headers.parse_response_header(frame, key, version)
        encoded_header = headers.response_header(key, version, correlation_id)
        message_class = api.response_class
    assert encoded_header == frame[:position]
    message, end = codec.decoder(message_class, version)(frame, position)
    assert end == len(frame)
    assert codec.encode(message, version) == frame[position:]


def test_every_client_was_recorded() -> None:
    assert {path.stem for path in FOLDER.glob("*.jsonl")} >= {
        "aiokafka",
        "confluent-kafka",
        "kafka-python",
        "kcat",
        "java",
    }


def test_the_apis_of_every_client_are_there() -> None:
    entries = [parameters.values[0] for parameters in recorded_frames()]
    for kind in ("request", "response"):
        recorded = {entry["key"] for entry in entries if entry["kind"] == kind}
        assert recorded >= {
            *(0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 19),
            *(20, 21, 22, 32, 35, 37, 42, 44, 60, 66, 74, 75),
        }
