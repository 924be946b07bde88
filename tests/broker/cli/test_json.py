"""`consume --json` and `produce --json` are each other's inverse."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.cli.records import NewRecord, json_lines, record_from_json
from barnabas.broker.client.consumer import ConsumedBatch
from barnabas.testing import Broker
from barnabas.wire.record_batch import TimestampType
from barnabas.wire.records import Record
from tools.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

Run = Callable[..., Any]

_NAMES = st.binary().map(lambda name: name.decode("utf-8", "surrogateescape"))
_DATA = st.none() | st.binary()


@given(
    key=_DATA,
    value=_DATA | st.sampled_from([b'{"base64": "AA=="}', b"null", b""]),
    headers=st.lists(st.tuples(_NAMES, _DATA)),
    timestamp=st.integers(-1, 2**63 - 1),
    partition=st.integers(0, 2**31 - 1),
)
def test_any_record_comes_back(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]], timestamp: int, partition: int
) -> None:
    batch = ConsumedBatch("t", partition, TimestampType.CREATE_TIME, [Record(7, timestamp, key, value, headers)])
    line = json_lines(batch)
    assert line.count(b"\n") == 1
    assert record_from_json(line) == NewRecord(key, value, headers, timestamp, partition)


def test_a_topic_is_copied(broker: Broker, run: Run) -> None:
    """Written and read by a foreign client, copied by pipe: the same records in the same partitions."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for future in admin.create_topics([NewTopic("original", 3), NewTopic("copied", 3)]).values():
        future.result(PATIENCE_S)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "compression.type": "lz4"})
    for number in range(30):
        producer.produce(
            "original",
            key=[None, b"", b"\xff\x00", "schlüssel"][number % 4],
            value=[None, b"", b"\xfe\n\r\n", "wert \u2028", b'{"base64": "AA=="}'][number % 5],
            headers=[("zero\xfc", b"\x80"), ("again", None), ("again", b"")][: number % 4],
            partition=number % 3,
            timestamp=1_000 + number,
        )
    assert producer.flush(PATIENCE_S) == 0
    lines = run("consume", "original", "--json", "-o", "earliest", "-e").out
    done = run("produce", "copied", "--json", stdin=lines.encode())
    assert (done.status, done.err.startswith("30 records to copied")) == (0, True)
    original = foreign_records(broker, "original", 30)
    assert len(original) == 30
    assert foreign_records(broker, "copied", 30) == original


def foreign_records(broker: Broker, topic: str, count: int) -> list[tuple[Any, ...]]:
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    found = []
    while len(found) < count:
        for message in consumer.consume(count - len(found), 30):
            assert message.error() is None
            place = (message.partition(), message.offset(), message.timestamp())
            found.append((*place, message.key(), message.value(), message.headers()))
    consumer.close()
    return sorted(found, key=lambda record: record[:2])


def test_a_copy_to_fewer_partitions_says_what_to_do(broker: Broker, run: Run) -> None:
    """The advice helps: the copy after it has all records."""
    run("topics", "create", "wide", "-p", "5")
    lines = "".join(f'{{"value": "{number}", "partition": {number}}}\n' for number in range(5))
    assert run("produce", "wide", "--json", stdin=lines.encode()).status == 0
    copied = run("consume", "wide", "-o", "earliest", "-e", "--json", "-p", "1", "-p", "4").out
    done = run("produce", "narrow", "--json", stdin=b'{"value": "first"}\n' + copied.encode())
    assert done.status == 1
    number = next(number for number, line in enumerate(copied.splitlines(), 2) if '"partition": 4' in line)
    assert done.err.startswith(f"barnabas: line {number} is for partition 4, but narrow has 2 partitions: ")
    command, alternative = re.findall(r"`barnabas ([^`]*)` adds the missing ones, (--partition 0) ", done.err)[0]
    assert run(*command.split()).status == 0
    assert run("produce", "narrow", "--json", stdin=copied.encode()).status == 0
    assert run("produce", "one", "--json", *alternative.split(), stdin=copied.encode()).status == 0


def test_optional_fields_of_a_json_line_may_be_missing(run: Run) -> None:
    line = b'{"value": "only"}\n'
    assert run("produce", "sparse", "--json", "--header", "a=1", "-p", "1", "-q", stdin=line).status == 0
    (record,) = map(json.loads, run("consume", "sparse", "-o", "earliest", "-e", "--json").out.splitlines())
    assert (record["key"], record["value"], record["headers"], record["partition"]) == (None, "only", [["a", "1"]], 1)
    assert record["timestamp"] > 1_600_000_000_000


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"nonsense", "line 2 is not JSON: Expecting value"),
        (b"", "line 2 is not JSON"),
        (
            b'{"valu": "v"}',
            "line 2 has the unknown field 'valu'; known are topic, partition, offset, timestamp, key, value",
        ),
        (b"[]", "line 2 is not a JSON object with key, value, headers, timestamp and partition"),
        (b'{"value": 1}', 'line 2 has a value that is neither text, null nor {"base64": "..."}'),
        (b'{"value": {"base64": "AA==", "x": 1}}', "line 2 has a value that is neither text"),
        (b'{"key": {"base64": "!"}}', "line 2 has a key that is not base64"),
        (b'{"key": "\\ud800"}', "line 2 has a key with half of a surrogate pair"),
        (b'{"headers": {"a": "b"}}', 'line 2 has headers that are not [["NAME", "VALUE"], ...]'),
        (b'{"headers": [["\\ud800", ""]]}', "line 2 has a header with half of a surrogate pair"),
        (b'{"timestamp": "1"}', "line 2 has a timestamp that is no whole number from -1 to"),
        (b'{"timestamp": 9223372036854775808}', "line 2 has a timestamp that is no whole number from -1 to"),
        (b'{"partition": -1}', "line 2 has a partition that is no whole number from 0 to"),
        (
            b'{"partition": 9}',
            "line 2 is for partition 9, but bad-json has 2 partitions: `barnabas topics alter bad-json -",
        ),
    ],
)
def test_bad_lines(run: Run, line: bytes, expected: str) -> None:
    done = run("produce", "bad-json", "--json", stdin=b'{"partition": 0}\n' + line + b"\n")
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith(f"barnabas: {expected}")
    assert done.err.endswith(" acknowledged\n")
