"""Every interval and time-out that can be configured, of the broker and of topics, at its extremes: the broker neither
spins nor stops serving.

Times that a client asks for are in test_times.py; keys of all kinds, and what becomes of the records, in
test_config_numbers.py.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pytest

from barnabas.broker.configuration.config import resolve
from barnabas.broker.configuration.definitions import INT, LONG, ConfigKey, ConfigValueError, parse
from barnabas.broker.configuration.keys import BROKER_KEYS
from barnabas.broker.configuration.topics import TOPIC_KEYS as ALL_TOPIC_KEYS
from barnabas.testing import Cluster
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from barnabas.wire.messages.produce import ProduceResponse
from barnabas.wire.records import Record, build_batch
from barnabas.wire.schema import Message
from tools.attack.hostile import SPINNING, ask, connect, create_topic, eventually, processor_share, produce
from tools.processes.barnabas import BarnabasProcess
from tools.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

GREATEST = {INT: 2**31 - 1, LONG: 2**63 - 1}
TIME_KEY = re.compile(r"\.(ms|seconds|secs|minutes|hours)$")
ANSWER_MAX_S = 2
LEVELS: Mapping[str, Callable[[list[int]], int | None]] = {
    "least": min,
    "-1": lambda values: -1 if -1 in values else None,
    "0": lambda values: 0 if 0 in values else None,
    "1": lambda values: 1 if 1 in values else None,
    "greatest": max,
}
"""The extreme of each key for a broker that has all keys at that level."""


def is_time(key: ConfigKey[Any]) -> bool:
    return key.type in GREATEST and TIME_KEY.search(key.name) is not None


def extremes(key: ConfigKey[Any]) -> list[int]:
    """The values that a key's own rule accepts, of -1, 0, 1, the least and the greatest."""
    greatest = GREATEST[key.type]
    limits = [limit for limit in (key.validator or ())[1:] if isinstance(limit, int)]
    return [value for value in sorted({-greatest - 1, -1, 0, 1, greatest, *limits}) if accepts(key, value)]


def accepts(key: ConfigKey[Any], value: int) -> bool:
    try:
        parse(key, str(value))
    except ConfigValueError:
        return False
    return True


def brokers() -> Iterator[tuple[str, dict[str, str]]]:
    """Settings for few brokers in which every key of a time stands at every one of its extremes: those of a level
    together, but for keys that do not go together; they are left for one more broker of that level.
    """
    keys = [key for key in BROKER_KEYS.values() if is_time(key)]
    for level, choose in LEVELS.items():
        left = {key.name: str(value) for key in keys if (value := choose(extremes(key))) is not None}
        while left:
            chosen: dict[str, str] = {}
            for name, value in left.items():
                if not resolve(options={**chosen, name: value}).errors:
                    chosen[name] = value
            if not chosen:
                break  # not one of them is accepted, not even by itself
            yield f"{level}, {len(chosen)} keys", chosen
            left = {name: value for name, value in left.items() if name not in chosen}


BROKERS = dict(brokers())
ACCEPTED = [
    (key.name, str(value))
    for key in BROKER_KEYS.values()
    if is_time(key)
    for value in extremes(key)
    if not resolve(options={key.name: str(value)}).errors
]
FEW = 6


def few_at_a_time(settings: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    """Groups of settings of different keys that go together. A setting that makes a broker spin may be hidden by
    another one, so the groups are small and mixed; each setting by itself would take a broker of its own.
    """
    groups: list[dict[str, str]] = []
    for name, value in sorted(settings, key=lambda each: hashlib.sha256(repr(each).encode()).digest()):
        for group in groups:
            if len(group) < FEW and name not in group and not resolve(options={**group, name: value}).errors:
                group[name] = value
                break
        else:
            groups.append({name: value})
    return groups


GROUPS = few_at_a_time(ACCEPTED)


def test_a26_no_extreme_is_left_out() -> None:
    together = {f"{name}={value}" for settings in BROKERS.values() for name, value in settings.items()}
    assert together >= {f"{name}={value}" for name, value in ACCEPTED}  # some go together only
    assert len(ACCEPTED) > 300


def test_a26_a_few_at_a_time_are_all() -> None:
    assert sorted(setting for group in GROUPS for setting in group.items()) == sorted(ACCEPTED)
    assert all(1 <= len(group) <= FEW and not resolve(options=group).errors for group in GROUPS)


class Client:
    """Asks one thing at a time, each on a connection of its own: one that is idle for a moment may have been closed by
    then, and another one is made."""

    def __init__(self, address: str, answer_s: float) -> None:
        self._address = address
        self._answer_s = answer_s

    def _ask(self, *questions: tuple[Message, int, type[Any]]) -> Any:
        """The answer to the last of some requests, each with its version and the class of its response."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                with connect(self._address, timeout_s=self._answer_s) as connection:
                    return [ask(connection, *question) for question in questions][-1]
            except ConnectionError:
                if time.monotonic() > deadline:
                    raise

    def write(self, topic: str, key: bytes = b"key", value: bytes | None = b"value") -> ErrorCode:
        batch = build_batch([Record(0, int(time.time() * 1000), key, value)])  # noqa: TID251
        response = self._ask((produce(topic, batch), 9, ProduceResponse))
        return ErrorCode(response.responses[0].partition_responses[0].error_code)

    def read(self, topic: str) -> ErrorCode:
        partition = FetchPartition(fetch_offset=0, partition_max_bytes=1000)
        asked = FetchTopic(topic=topic, partitions=[partition])
        request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1000, session_epoch=-1, topics=[asked])
        response = self._ask((request, 11, FetchResponse))
        return ErrorCode(response.responses[0].partitions[0].error_code)

    def commits(self) -> bool:
        """Whether an offset is committed, by which `__consumer_offsets` comes to be."""
        topic = OffsetCommitRequestTopic(name="t", partitions=[OffsetCommitRequestPartition(committed_offset=0)])
        response = self._ask(
            (FindCoordinatorRequest(key="g"), 2, FindCoordinatorResponse),
            (OffsetCommitRequest(group_id="g", topics=[topic]), 5, OffsetCommitResponse),
        )
        return bool(response.topics[0].partitions[0].error_code == ErrorCode.NONE)

    def has_producer_id(self) -> bool:
        """The same for `__transaction_state`."""
        request = InitProducerIdRequest(transactional_id="id", transaction_timeout_ms=1)
        response = self._ask(
            (FindCoordinatorRequest(key="id", key_type=1), 2, FindCoordinatorResponse),
            (request, 2, InitProducerIdResponse),
        )
        return bool(response.error_code == ErrorCode.NONE)


def client_of(process: BarnabasProcess, is_timed: bool) -> Client:
    return Client(process.bootstrap_servers, ANSWER_MAX_S if is_timed else PATIENCE_S)


def check(settings: Mapping[str, str], is_timed: bool = True) -> None:
    """Use a broker with these settings, look at what it does when nobody asks for anything, where that is judged, and
    use it again. It starts and ends, too.
    """
    with BarnabasProcess(settings) as process:
        create_topic(process.bootstrap_servers, "t", message_timestamp_type="LogAppendTime")
        create_topic(process.bootstrap_servers, "timestamps")
        client = client_of(process, is_timed)
        assert client.write("t") is ErrorCode.NONE
        assert client.write("timestamps") in (ErrorCode.NONE, ErrorCode.INVALID_TIMESTAMP)
        assert eventually(client.commits)
        assert eventually(client.has_producer_id)
        if is_timed:
            share = processor_share(process.pid)
            print(f"{share:.3f} of a processor")
            assert share < SPINNING
        for _ in range(10):
            assert client.write("t") is ErrorCode.NONE
        assert client.read("t") in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE)
        assert "Traceback" not in process.log_text(), process.log_text()


@pytest.mark.live
@pytest.mark.parametrize("name", BROKERS)
def test_a26_all_settings_at_their_extremes(name: str, is_timed: bool) -> None:
    check(BROKERS[name], is_timed)


@pytest.mark.full
@pytest.mark.alone
@pytest.mark.parametrize("number", range(len(GROUPS)))
def test_a26_a_few_settings_at_their_extremes(number: int) -> None:
    print(GROUPS[number])
    check(GROUPS[number])


# Topics


TOPIC_KEYS = [key for key in ALL_TOPIC_KEYS.values() if is_time(key)]
CLEANUPS = ("delete", "compact", "compact,delete")
BUSY = {"log.retention.check.interval.ms": "1", "log.cleaner.backoff.ms": "0", "log.initial.task.delay.ms": "0"}
"""Settings of a broker that looks at its topics all the time."""
ROLLING = {"segment.bytes": "100", "min.cleanable.dirty.ratio": "0"}
"""Settings of a topic by which retention and compaction have something to look at after each record."""

RECORDS = ((b"key", b"value"), (b"key", None), (b"other", b"value"))
"""The last one stays in the active segment, so that compaction meets a tombstone that nothing has superseded."""


def topics() -> list[CreatableTopic]:
    """A topic for each key at each of its extremes, and for each level with all keys at it, by every cleanup policy."""
    settings = {f"{key.name}.{value}": {key.name: str(value)} for key in TOPIC_KEYS for value in extremes(key)}
    for level, choose in LEVELS.items():
        settings[f"all.{level}"] = {
            key.name: str(value) for key in TOPIC_KEYS if (value := choose(extremes(key))) is not None
        }
    return [
        CreatableTopic(
            name=f"{name}.{cleanup.replace(',', '-')}",
            num_partitions=1,
            replication_factor=1,
            configs=[
                CreatableTopicConfig(name=key, value=value)
                for key, value in {**configs, **ROLLING, "cleanup.policy": cleanup}.items()
            ],
        )
        for name, configs in settings.items()
        for cleanup in CLEANUPS
    ]


def create(address: str) -> list[str]:
    """Those topics whose settings go together."""
    with connect(address) as connection:
        request = CreateTopicsRequest(topics=topics(), timeout_ms=30_000)
        response = ask(connection, request, 5, CreateTopicsResponse)
    codes = {topic.name: ErrorCode(topic.error_code) for topic in response.topics}
    assert set(codes.values()) <= {ErrorCode.NONE, ErrorCode.INVALID_CONFIG}, codes
    created = [name for name, code in codes.items() if code is ErrorCode.NONE]
    assert {key.name for key in TOPIC_KEYS} == {
        key.name for key in TOPIC_KEYS if any(name.startswith(f"{key.name}.") for name in created)
    }
    return created


@pytest.mark.live
def test_a26_topics_with_settings_at_their_extremes(is_timed: bool) -> None:
    with BarnabasProcess(BUSY) as process:
        client = client_of(process, is_timed)
        names = create(process.bootstrap_servers)
        print(len(names), "topics")
        for _ in range(3 if is_timed else 1):
            for name in names:
                for record in RECORDS:
                    assert client.write(name, *record) in (ErrorCode.NONE, ErrorCode.INVALID_TIMESTAMP), name
            # Retention and compaction have looked at all of them meanwhile.
            if is_timed:
                share = processor_share(process.pid, span_s=1, spans=10)
                print(f"{share:.3f} of a processor")
                assert share < SPINNING
        for name in names:
            assert client.read(name) in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE), name
        assert "Traceback" not in process.log_text(), process.log_text()
        assert " ERROR " not in process.log_text(), process.log_text()


# Followers


@pytest.mark.alone
@pytest.mark.parametrize(
    "settings",
    [{"replica_fetch_wait_max_ms": value} for value in (-(2**31), -1, 0, 1)]
    + [{"replica_fetch_min_bytes": value} for value in (-(2**31), -1, 0)],
    ids=str,
)
def test_a26_followers_that_need_not_wait(settings: dict[str, int]) -> None:
    """A broker alone follows nobody: these keys do something in a cluster only."""
    with Cluster(2, **settings) as cluster:
        cluster.create_topic("t")
        share = processor_share(os.getpid(), span_s=1, spans=10)
        print(f"{share:.3f} of a processor")
        assert share < SPINNING
