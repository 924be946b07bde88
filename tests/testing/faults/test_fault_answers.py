"""Answers with an error code in them, for every API and version that is served: they encode, and whoever decodes them
finds the code."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from barnabas.broker.api.response_errors import error_counter
from barnabas.broker.handlers import apis_between_brokers, load_handler, served_apis
from barnabas.broker.network.outcome import CloseConnection
from barnabas.testing.faults.effects import Fail
from barnabas.testing.faults.error_responses import Failure, addressable
from barnabas.testing.interception import entries
from barnabas.testing.interception.answer import Answer, Passage
from barnabas.testing.interception.api_entries import PARTITION
from barnabas.testing.interception.api_entries import TOPIC as TOPIC_ROLE
from barnabas.testing.interception.request import Request
from barnabas.testing.interception.selection import Matcher
from barnabas.wire import codec, headers, messages
from barnabas.wire.messages.add_partitions_to_txn import AddPartitionsToTxnResponse
from barnabas.wire.schema import Array, Message

TOPIC = "a topic"
TOPIC_ID = bytes(range(16))
ERROR = 41
INDEXES = ("partition", "partition_index", "partition_id", "index")


class Server:
    """The part of a broker that a request uses."""

    node_id = 0
    metadata: Any = None

    def __init__(self) -> None:
        self.metadata = self

    def topic_name(self, topic_id: bytes) -> str | None:
        return TOPIC if topic_id == TOPIC_ID else None


class Connection:
    """The part of a connection that a request uses."""

    session: Any = None
    is_broker = False
    connection_id = 1
    client_host = principal = ""

    def __init__(self) -> None:
        self.session = self


def filled(struct: type[Message], version: int, array: str = "") -> Message:
    """A message with a value in every field of the version, and two partitions where there are any."""
    message = struct()
    for field in struct.FIELDS:
        if not field.exists_in(version) or field.name in ("session_id", "session_epoch", "key_type"):
            continue
        setattr(message, field.name, _value(field.type, field.name, version, array))
    return message


def _value(kind: Any, name: str, version: int, array: str) -> Any:
    if isinstance(kind, Array):
        if isinstance(kind.element, str):
            first = _value(kind.element, name, version, name)
            return [first, first + 1] if name in ("partitions", "partition_indexes") else [first]
        first = filled(kind.element, version, name)
        index = next(
            (each for each in ("partition", "partition_index", "partition_id", "index") if hasattr(first, each)), None
        )
        if index is None or "topic_name" in kind.element.__slots__:
            return [first]
        second = filled(kind.element, version, name)
        setattr(second, index, 1)
        return [first, second]
    if isinstance(kind, type):
        return filled(kind, version, name)
    if kind == "string":
        is_topic = name.startswith("topic") or (
            name == "name" and ("topic" in array or array in ("responses", "results"))
        )
        return TOPIC if is_topic or name == "resource_name" else "x"
    return {"bool": False, "bytes": b"", "records": b"", "uuid": TOPIC_ID, "float64": 0.0}.get(kind, _number(name))


def _number(name: str) -> int:
    return {"resource_type": 2, "acks": -1, "replica_id": -1}.get(name, 0)


def passage(key: int, version: int) -> Passage:
    asked = filled(messages.api(key).request_class, version)
    frame = headers.request_header(key, version, 7, "client") + codec.encode(asked, version)
    connection: Any = Connection()
    server: Any = Server()
    request = Request(server, connection, frame, headers.parse_request_header(frame))
    timers: Any = None
    return Passage(request, connection, timers, request.message)


def failed(key: int, version: int, where: dict[str, Any], *, after_work: bool) -> Message | None:
    """A client's response; None when its connection ends."""
    way = passage(key, version)
    api = messages.api(key)
    matcher = Matcher(key, where | {"from_brokers": True})
    assert matcher.matches(way.request)
    effect = Fail(Failure(ERROR, "because"), matcher.addressed, matcher.is_meant, None, after_work)

    async def work(asked: Message | None = None) -> Answer:
        codec.encode(asked or way.message, version)  # what the broker is asked must be a message
        done: Any = filled(api.response_class, version)
        if asked is not None and not any(isinstance(field.type, Array) for field in asked.FIELDS):
            done = api.response_class()
        return Answer(way.request, response=_without_errors(done))

    try:
        answer = asyncio.run(effect.around(way, work))
    except CloseConnection:
        return None
    assert answer is not None
    data = answer.bytes()
    assert int.from_bytes(data[:4]) == len(data) - 4
    correlation_id, position = headers.parse_response_header(data[4:], key, version)
    assert correlation_id == 7
    return codec.decode(api.response_class, version, data[4:], position)


def _without_errors(struct: Message) -> Message:
    for field in struct.FIELDS:
        value = getattr(struct, field.name)
        if field.name in ("error_code", "partition_error_code"):
            setattr(struct, field.name, 0)
        elif isinstance(value, list):
            for element in value:
                if isinstance(element, Message):
                    _without_errors(element)
    return struct


def errors(response: Message) -> list[int]:
    """All error codes of a response."""
    if isinstance(response, AddPartitionsToTxnResponse):
        results = [topic for each in response.results_by_transaction for topic in each.topic_results]
        results += response.results_by_topic_v3_and_below
        found = [each.partition_error_code for topic in results for each in topic.results_by_partition]
        return [code for code in [response.error_code, *found] if code]
    found = []
    count = error_counter(type(response), found.append)
    assert count is not None
    count(response)
    return found


def served() -> Iterator[tuple[int, int]]:
    for key in [*served_apis(), *apis_between_brokers()]:
        handler = load_handler(key)
        for version in range(handler.min_version, handler.max_version + 1):
            yield key, version


@pytest.mark.parametrize("after_work", [False, True])
@pytest.mark.parametrize(("key", "version"), list(served()))
def test_every_api_can_fail(key: int, version: int, after_work: bool) -> None:
    told = failed(key, version, {}, after_work=after_work)
    assert told is not None
    assert errors(told), told
    assert set(errors(told)) == {ERROR}


def about(key: int, version: int) -> frozenset[str]:
    known = entries.subjects(passage(key, version).request.message, version, Server().topic_name)
    return frozenset(role for subject in known for role in subject)


@pytest.mark.slow
@pytest.mark.parametrize("after_work", [False, True])
@pytest.mark.parametrize(("key", "version"), [(k, v) for k, v in served() if TOPIC_ROLE in about(k, v)])
def test_every_api_can_fail_for_a_topic(key: int, version: int, after_work: bool) -> None:
    told = failed(key, version, {"topic": TOPIC}, after_work=after_work)
    assert told is not None
    assert set(errors(told)) == {ERROR}, told


def partition_errors(struct: Any) -> Iterator[tuple[int, int]]:
    """The codes of a response's partitions."""
    for field in struct.FIELDS:
        value = getattr(struct, field.name)
        for element in value if isinstance(value, list) else ():
            if not isinstance(element, Message):
                continue
            index = next(
                (each for each in ("partition_index", "partition", "partition_id", "index") if hasattr(element, each)),
                None,
            )
            code = next((each for each in ("error_code", "partition_error_code") if hasattr(element, each)), None)
            if index is not None and code is not None:
                yield getattr(element, index), getattr(element, code)
            yield from partition_errors(element)


OF_PARTITIONS = [
    (key, version)
    for key, version in served()
    if key in served_apis()
    and PARTITION in about(key, version)
    and PARTITION in addressable(messages.api(key), version)
]
"""APIs that ask about partitions and answer for each."""


def test_apis_with_partitions_in_their_answers_are_included() -> None:
    assert {key for key, _ in OF_PARTITIONS} >= {0, 1, 2, 8, 9, 21, 23, 24, 27, 28, 43, 47, 61}


@pytest.mark.slow
@pytest.mark.parametrize("after_work", [False, True])
@pytest.mark.parametrize(("key", "version"), OF_PARTITIONS)
def test_one_partition_fails_and_the_other_does_not(key: int, version: int, after_work: bool) -> None:
    told = failed(key, version, {"topic": TOPIC, "partition": 1}, after_work=after_work)
    assert told is not None
    codes = dict(partition_errors(told))
    assert codes[1] == ERROR, told
    assert codes.get(0, 0) == 0, told
