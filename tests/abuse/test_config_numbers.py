"""Attacks with configuration: every key of a topic, and every key of a running broker, at its extremes; records,
retention, compaction, a stop and a kill -9 with them.

Numbers of requests are in test_numbers.py; whether an interval makes the broker spin is asked in
test_times_of_settings.py, of each by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from barnabas.broker.configuration.definitions import READ_ONLY
from barnabas.broker.configuration.keys import BROKER_KEYS
from barnabas.broker.configuration.topics import TOPIC_KEYS
from barnabas.storage.check.directory import check_directory
from barnabas.storage.check.report import Level
from barnabas.storage.os_files import OsFiles
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from barnabas.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from barnabas.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.record_batch import iter_headers
from barnabas.wire.records import Record, build_batch, iter_records
from tools.attack.extremes import HUGE_TEXT, config_texts
from tools.attack.hostile import eventually, processor_share
from tools.attack.stage import NODE_ID, Peer, now_ms
from tools.processes.barnabas import BarnabasProcess

pytestmark = [pytest.mark.slow, pytest.mark.live]
FULL = pytest.mark.full
Figure = Callable[..., None]

BUSY = {
    "log.retention.check.interval.ms": "200",
    "log.cleaner.backoff.ms": "200",
    "log.flush.offset.checkpoint.interval.ms": "200",
    "log.flush.start.offset.checkpoint.interval.ms": "200",
    "broker.id": str(NODE_ID),
}
"""Retention, compaction and checkpoints come round all the time."""

TOPIC, BROKER = 2, 4
SET, DELETE = 0, 1
REFUSED_RECORDS = {
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.NOT_ENOUGH_REPLICAS,
}
"""The errors that a topic's own settings may cause for a good record."""
IDLE_SHARE_MAX = 0.15

Entry = tuple[int, bytes | None, bytes | None]
"""Offset, key, value."""


class Case(NamedTuple):
    """A topic with one of its settings at an extreme, and what was written to it."""

    topic: str
    key: str
    value: str
    is_compacted: bool
    written: list[Entry]

    def check(self, found: list[Entry]) -> None:
        """The records that are found in the topic are those that must be there."""
        where = f"{self.key}={self.value[:30]} ({self.topic})"
        if self.is_compacted:
            # What is deleted by retention as well, or tombstones after their time, may be missing: nothing else.
            assert set(found) <= set(self.written), where
            if self.key != "cleanup.policy" or self.value == "compact":
                assert _latest(found) == _latest(self.written), where
        elif self.key in ("retention.ms", "retention.bytes"):
            assert found == self.written[len(self.written) - len(found) :], where
        else:
            assert found == self.written, where


def _latest(entries: list[Entry]) -> dict[bytes | None, bytes]:
    latest = {key: value for _, key, value in entries}
    return {key: value for key, value in latest.items() if value is not None}


class Client(Peer):
    """Writes to topics, reads them and alters settings."""

    def write(self, topic: str, number: int) -> tuple[int, Entry]:
        """One record; the error code, and the record where it is."""
        key = b"key-%d" % (number % 2)
        value = None if number == 3 else b"%d" % number * 200
        batch = build_batch([Record(0, now_ms(), key, value)])
        data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])
        answer = self.ask(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[data]), 9)
        (partition,) = answer.responses[0].partition_responses
        return partition.error_code, (partition.base_offset, key, value)

    def read(self, topic: str) -> list[Entry]:
        found: list[Entry] = []
        offset = self.earliest(topic)
        while True:
            partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
            request = FetchRequest(topics=[FetchTopic(topic=topic, partitions=[partition])], min_bytes=0)
            (answer,) = self.ask(request, 11).responses[0].partitions
            if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:  # deleted meanwhile
                found, offset = [], self.earliest(topic)
                continue
            assert answer.error_code == 0, f"{topic}: {answer}"
            records = bytes(answer.records or b"")
            if not records:
                assert offset <= answer.high_watermark
                return found
            for header in iter_headers(records):
                offset = header.next_offset
                found += [(record.offset, record.key, record.value) for record in iter_records(records, header)]

    def earliest(self, topic: str) -> int:
        partition = ListOffsetsPartition(partition_index=0, timestamp=-2)
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[partition])])
        offset: int = self.ask(request, 5).topics[0].partitions[0].offset
        return offset

    def alter(self, kind: int, name: str, changes: dict[str, str | None]) -> int:
        """Set keys, or (None) have their defaults again; the error code."""
        configs = [
            AlterableConfig(name=key, config_operation=DELETE if value is None else SET, value=value)
            for key, value in changes.items()
        ]
        resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
        answer = self.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)
        code: int = answer.responses[0].error_code
        return code

    def describe(self, kind: int, name: str, key: str) -> int:
        """Ask for a key; the error code."""
        resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=[key])
        answer = self.ask(DescribeConfigsRequest(resources=[resource], include_synonyms=True), 4)
        code: int = answer.results[0].error_code
        return code

    def sizes(self) -> list[tuple[str, int, int]]:
        """Topic, partition and bytes of all logs."""
        answer = self.ask(DescribeLogDirsRequest(topics=None), 1)
        return sorted(
            (topic.name, partition.partition_index, partition.partition_size)
            for topic in answer.results[0].topics
            for partition in topic.partitions
        )


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    """Of one broker after the other; what they leave behind is in order."""
    yield tmp_path / "data"
    findings = check_directory(OsFiles(), tmp_path / "data").findings
    assert [finding for finding in findings if finding.level is Level.ERROR] == []


def idle_share(broker: BarnabasProcess) -> float:
    """The share of a processor that the broker uses, with nobody connected but idlers."""
    return processor_share(broker.pid, span_s=1)


def is_settled(client: Client) -> bool:
    """Whether retention and compaction, which go round all the time, find nothing to do any more."""
    before, changed = client.sizes(), []
    eventually(lambda: changed.append(client.sizes() != before) or len(changed) >= 20 or changed[-1])
    return not any(changed)


def make_cases(client: Client) -> list[Case]:
    cases = []
    for key in TOPIC_KEYS.values():
        for value in config_texts(key):
            for policy in ("delete", "compact"):
                configs = {"cleanup.policy": policy, "segment.bytes": "1000", "min.cleanable.dirty.ratio": "0"}
                configs[key.name] = value
                topic = client.name("config")
                code = client.create(topic, 1, configs)
                assert code in (ErrorCode.NONE, ErrorCode.INVALID_CONFIG), f"{key.name}={value[:30]}: {code}"
                if code == ErrorCode.NONE:
                    assert value != HUGE_TEXT
                    cases.append(Case(topic, key.name, value, "compact" in configs["cleanup.policy"], []))
    return cases


def write_cases(client: Client, cases: list[Case]) -> None:
    for case in cases:
        for number in range(8):
            code, entry = client.write(case.topic, number)
            assert code == 0 or code in REFUSED_RECORDS, f"{case.key}={case.value}: {code}"
            if code == 0:
                case.written.append(entry)


@FULL
def test_a23_topic_settings_at_their_extremes(data_dir: Path, figure: Figure, is_timed: bool) -> None:
    """Records, retention, compaction and flushes under every setting; then a stop, a kill -9, and the settings go."""
    with BarnabasProcess(BUSY, data_dir=data_dir) as broker:
        client = Client(broker.bootstrap_servers)
        cases = make_cases(client)
        write_cases(client, cases)
        shrinking = {("retention.ms", False), ("retention.bytes", False), ("flush.ms", True)}

        def went_round() -> bool:
            """Whether retention and compaction have taken something away from each kind of these topics."""
            shrunk = set()
            for case in cases:
                kind = (case.key, case.is_compacted)
                if kind in shrinking - shrunk and len(client.read(case.topic)) < len(case.written):
                    shrunk.add(kind)
            return shrunk == shrinking

        assert eventually(went_round)
        assert eventually(lambda: is_settled(client))
        for case in cases:
            case.check(client.read(case.topic))
            assert client.describe(TOPIC, case.topic, case.key) == 0, f"{case.key}={case.value}"
        client.close()
        assert "Traceback" not in broker.log_text()
    with BarnabasProcess({"broker.id": str(NODE_ID)}, data_dir=data_dir) as broker:
        for _ in range(2):
            client = Client(broker.bootstrap_servers)
            for case in cases:
                case.check(client.read(case.topic))
            client.close()
            broker.kill()
            broker.start()
        client = Client(broker.bootstrap_servers)
        share = idle_share(broker) if is_timed else 0.0
        for case in cases:
            assert client.alter(TOPIC, case.topic, {case.key: None}) == 0, f"{case.key}={case.value}"
            code, _ = client.write(case.topic, 9)
            assert code == 0, f"{case.key}={case.value}"
        client.close()
        assert "Traceback" not in broker.log_text()
    figure(topics=len(cases), idle=round(share, 3))
    assert share <= IDLE_SHARE_MAX


DYNAMIC = [key for key in BROKER_KEYS.values() if key.mode != READ_ONLY]
LOCK_OUT = {"max.connections", "max.connections.per.ip", "max.connection.creation.rate"}
"""At 0 nobody can connect any more, as in Kafka."""


@FULL
def test_a23_settings_of_a_running_broker_at_their_extremes(data_dir: Path, figure: Figure, is_timed: bool) -> None:
    """One after the other, under records that are written and read."""
    accepted = 0
    with BarnabasProcess(BUSY, data_dir=data_dir) as broker:
        client = Client(broker.bootstrap_servers)
        topics = [client.make_topic(client.name("plain")) for _ in range(3)]
        compacted = client.name("compacted")
        assert client.create(compacted, 1, {"cleanup.policy": "compact"}) == 0
        for key in DYNAMIC:
            for name in ("", str(NODE_ID)):
                for value in config_texts(key):
                    code = client.alter(BROKER, name, {key.name: value})
                    assert code in (ErrorCode.NONE, ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST), (
                        f"{key.name}={value[:30]}: {code}"
                    )
                    if code:
                        continue
                    accepted += 1
                    for number, topic in enumerate((*topics, compacted)):
                        code, _ = client.write(topic, number)
                        assert code == 0 or code in REFUSED_RECORDS, f"{key.name}={value}: {code}"
                    client.read(topics[0])
                    assert client.describe(BROKER, name, key.name) == 0, f"{key.name}={value}"
                    assert client.alter(BROKER, name, {key.name: None}) == 0
        share = idle_share(broker) if is_timed else 0.0
        client.close()
        assert "Traceback" not in broker.log_text()
    figure(accepted=accepted, idle=round(share, 3))
    assert share <= IDLE_SHARE_MAX


@pytest.mark.parametrize("which", ["least", "greatest"])
def test_a23_a_broker_starts_with_all_its_settings_at_an_extreme(
    data_dir: Path, figure: Figure, which: str, is_timed: bool
) -> None:
    """All that it takes at once: it serves, is stopped, killed, and altered again."""
    with BarnabasProcess({"broker.id": str(NODE_ID)}, data_dir=data_dir) as broker:
        client = Client(broker.bootstrap_servers)
        topic = client.make_topic(client.name("plain"))
        for number in range(8):
            assert client.write(topic, number)[0] == 0
        settings = {}
        for key in DYNAMIC:
            if key.name in LOCK_OUT:
                continue
            values = config_texts(key)[2:]
            for value in values if which == "least" else reversed(values):
                if client.alter(BROKER, "", {key.name: value}) == 0:
                    settings[key.name] = value
                    break
        before = client.read(topic)
        for end in (broker.stop, broker.kill):
            client.close()
            end()
            broker.start()
            client = Client(broker.bootstrap_servers)
            found = client.read(topic)
            assert found == before[len(before) - len(found) :]
        share = idle_share(broker) if is_timed else 0.0
        assert client.alter(BROKER, "", dict.fromkeys(settings)) == 0
        assert client.write(topic, 9)[0] == 0
        client.close()
        assert "Traceback" not in broker.log_text()
    figure(settings=len(settings), idle=round(share, 3))
    assert share <= IDLE_SHARE_MAX
