"""Attacks with numbers: every numeric field of every request at its extremes, in the middle of what it is about.

Those of configuration are in test_config_numbers.py; whether times among them make the broker spin is asked in
test_times.py, of each by itself.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

from barnabas.broker.handlers import served_apis
from barnabas.storage.check.directory import check_directory
from barnabas.storage.check.report import Level
from barnabas.storage.os_files import OsFiles
from barnabas.wire import codec, headers, messages
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from barnabas.wire.messages.describe_groups import DescribeGroupsRequest
from barnabas.wire.messages.describe_transactions import DescribeTransactionsRequest
from barnabas.wire.messages.list_groups import ListGroupsRequest
from barnabas.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from barnabas.wire.messages.list_transactions import ListTransactionsRequest
from barnabas.wire.messages.produce import ProduceRequest
from barnabas.wire.messages.write_txn_markers import WriteTxnMarkersRequest
from barnabas.wire.record_batch import iter_headers
from barnabas.wire.schema import Message
from tools.attack.extremes import TEXTS, batch_changes, changes, crafted_records, with_record
from tools.attack.hostile import (
    MIB,
    HealthyClient,
    Memory,
    ThreadTimes,
    ask,
    connect,
    eventually,
    frame,
    open_sockets,
    receive,
)
from tools.attack.requests import REQUESTS, WITH_SASL, Builder, served_versions, write_markers
from tools.attack.stage import Stage, errors, fetching, produce
from tools.processes.barnabas import BarnabasProcess
from tools.waiting import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.live]
FULL = [pytest.mark.full, pytest.mark.timeout(3600)]
Figure = Callable[..., None]

SETTINGS = {
    "barnabas.group.newcomer.delay.ms": "0",
    "broker.id": "1",
    "max.incremental.fetch.session.cache.slots": "100000",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
MAY_WAIT = {1, 11, 14}
"""Fetch, JoinGroup and SyncGroup: their numbers say how long, or others are waited for."""
MAY_WAIT_S = 0.15
MAY_CLOSE = {29, 30, 31}
"""The requests of ACLs: the number 0 stands for something unknown, which cannot be parsed."""
ANSWER_S = PATIENCE_S
EVERY_VERSION, NEWEST = slice(None), slice(-1, None)
IDLE_MS = 2_000
IDLE_SHARE_MAX = 0.15
"""Of a processor, the healthy client's requests included, once the attack is over."""


def cases(versions: slice = EVERY_VERSION) -> list[tuple[int, int, Builder]]:
    return [
        (key, version, build)
        for key in sorted(REQUESTS)
        for version in [*served_versions(key)][versions]
        for build in REQUESTS[key]
    ]


def test_a22_every_api_that_is_served_has_its_requests() -> None:
    """But for those that need a listener of SASL."""
    assert set(REQUESTS) == set(served_apis()) - WITH_SASL


def _plain(stage: Stage) -> tuple[bytearray, str | None]:
    return stage.batch(), None


def _idempotent(stage: Stage) -> tuple[bytearray, str | None]:
    producer = stage.idempotent_producer()
    return stage.batch(producer_id=producer, producer_epoch=0, base_sequence=0), None


def _transactional(stage: Stage) -> tuple[bytearray, str | None]:
    producer = stage.producer()
    fields = {"producer_id": producer.producer_id, "producer_epoch": producer.epoch, "base_sequence": 1}
    return stage.batch(**fields, transactional=True), producer.transactional_id


KINDS = {"plain": _plain, "idempotent": _idempotent, "transactional": _transactional}


class Attacker:
    """Sends requests on one connection; one whose request waits is left open, and another one taken."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._connection = connect(address, ANSWER_S)
        self._parked: list[socket.socket] = []
        self.sent = self.answered = self.waiting = self.closed = 0

    def close(self) -> None:
        for connection in (self._connection, *self._parked):
            connection.close()

    def _renew(self) -> None:
        self._connection = connect(self._address, ANSWER_S)

    def send(self, request: Message, version: int) -> Message | None:
        """The answer, if there is one. Fails where one must come and does not, or cannot be read."""
        key = request.API_KEY
        self.sent += 1
        self._connection.sendall(frame(request, version))
        if isinstance(request, ProduceRequest) and request.acks == 0:
            return self._after_silence()
        self._connection.settimeout(MAY_WAIT_S if key in MAY_WAIT else ANSWER_S)
        try:
            body = receive(self._connection)
        except TimeoutError:
            assert key in MAY_WAIT, f"no answer to {request} of version {version}"
            self.waiting += 1
            self._parked.append(self._connection)
            self._renew()
            return None
        if body is None and key in MAY_CLOSE:
            self.closed += 1
            self._connection.close()
            self._renew()
            return None
        assert body is not None, f"the connection was closed after {request} of version {version}"
        self.answered += 1
        _, position = headers.parse_response_header(body, key, version)
        return codec.decode(messages.api(key).response_class, version, body, position)

    def _after_silence(self) -> None:
        """A Produce without an answer: the next request gets one, or the connection was closed, to tell of an error."""
        try:
            ask(self._connection, ApiVersionsRequest(), 0, ApiVersionsResponse)
        except ConnectionError:
            self.closed += 1
            self._connection.close()
            self._renew()


@pytest.fixture
def stage(broker: BarnabasProcess) -> Iterator[Stage]:
    stage = Stage(broker.bootstrap_servers)
    yield stage
    stage.close()


@pytest.fixture
def attacker(broker: BarnabasProcess) -> Iterator[Attacker]:
    attacker = Attacker(broker.bootstrap_servers)
    yield attacker
    attacker.close()


def idle_share(broker: BarnabasProcess, healthy: HealthyClient) -> float:
    """The share of a processor that the broker uses now."""
    times, before = ThreadTimes(broker.pid), healthy.seconds
    eventually(lambda: healthy.seconds - before >= IDLE_MS / 1000)
    return (times.loop_ms + times.threads_ms) / ((healthy.seconds - before) * 1000)


@pytest.fixture
def intact(broker: BarnabasProcess) -> Iterator[None]:
    """No request failed, and what the broker leaves behind at a stop, and at a kill -9, is in order."""
    yield
    log = broker.log_text()
    assert "request failed" not in log
    for end in (broker.stop, broker.kill):
        end()
        findings = check_directory(OsFiles(), broker.log_dir).findings  # not deep: records are stored unopened
        assert [finding for finding in findings if finding.level is Level.ERROR] == []
        broker.start()


@pytest.mark.parametrize("broker", [SETTINGS], indirect=True)
def test_a22_the_requests_are_answered_without_an_error(
    broker: BarnabasProcess, stage: Stage, attacker: Attacker
) -> None:
    """Else the numbers would be tried in the anteroom."""
    for _, version, build in cases():
        answer = attacker.send(build(stage, version), version)
        assert errors(answer) == [], f"{build.__name__}, version {version}: {answer}"
    assert attacker.sent == attacker.answered


@pytest.mark.parametrize("broker", [SETTINGS], indirect=True)
@pytest.mark.parametrize(
    ("versions", "together"),
    [
        pytest.param(NEWEST, 1, id="newest"),
        pytest.param(EVERY_VERSION, 1, marks=FULL, id="every version"),
        pytest.param(EVERY_VERSION, 2, marks=FULL, id="every version, two at once"),
    ],
)
def test_a22_numbers_at_their_extremes(
    broker: BarnabasProcess,
    intact: None,
    memory: Memory,
    healthy: HealthyClient,
    stage: Stage,
    attacker: Attacker,
    figure: Figure,
    versions: slice,
    together: int,
    is_timed: bool,
) -> None:
    """One number of a request, or two at once, at the least, -1, 0, 1, and the greatest."""
    share_before = idle_share(broker, healthy) if is_timed else 0.0
    sockets = open_sockets(broker.pid)
    healthy.mark()
    unforeseen: set[str] = set()
    for _, version, build in cases(versions):
        for change in changes(build(stage, version), version, together):
            answer = attacker.send(change.apply(build(stage, version)), version)
            if ErrorCode.UNKNOWN_SERVER_ERROR in errors(answer):
                unforeseen.add(f"{build.__name__}, version {version}, {change}: {answer}")
    attacker.close()
    assert not unforeseen
    assert eventually(lambda: open_sockets(broker.pid) <= sockets)
    share = idle_share(broker, healthy) if is_timed else 0.0
    figure(requests=attacker.sent, answered=attacker.answered, waiting=attacker.waiting, closed=attacker.closed,
           growth_mib=round(memory.growth / MIB, 1), idle=round(share, 3), idle_before=round(share_before, 3),
           **healthy.figures)  # fmt: skip
    assert share <= share_before + IDLE_SHARE_MAX
    assert memory.growth <= 64 * MIB


@pytest.mark.full
@pytest.mark.parametrize("broker", [SETTINGS], indirect=True)
@pytest.mark.parametrize(
    "versions", [pytest.param(NEWEST, id="newest"), pytest.param(EVERY_VERSION, marks=FULL, id="every version")]
)
def test_a22_texts_at_their_extremes(
    broker: BarnabasProcess,
    intact: None,
    healthy: HealthyClient,
    stage: Stage,
    attacker: Attacker,
    figure: Figure,
    versions: slice,
) -> None:
    """Every string, byte string and id of a request empty, or as long as it can be; what is kept of it can be told."""
    for _, version, build in cases(versions):
        for change in changes(build(stage, version), version, extremes=TEXTS):
            answer = attacker.send(change.apply(build(stage, version)), version)
            assert ErrorCode.UNKNOWN_SERVER_ERROR not in errors(answer), f"{build.__name__}, {version}, {change}"
    groups = stage.ask(ListGroupsRequest(), 2).groups
    transactions = stage.ask(ListTransactionsRequest(), 0).transaction_states
    for group in groups:
        assert errors(attacker.send(DescribeGroupsRequest(groups=[group.group_id]), 5)) == []
    for transaction in transactions:
        request = DescribeTransactionsRequest(transactional_ids=[transaction.transactional_id])
        assert errors(attacker.send(request, 0)) == []
    figure(requests=attacker.sent, groups=len(groups), transactions=len(transactions), **healthy.figures)


@pytest.mark.parametrize("broker", [SETTINGS], indirect=True)
@pytest.mark.parametrize(
    ("producer_id", "epoch", "error"),
    [
        (-(2**63), 0, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (-1, 0, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (2**63 - 1, -1, ErrorCode.INVALID_PRODUCER_EPOCH),
        (2**63 - 1, -(2**15), ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_a22_a_marker_is_that_of_a_producer(
    broker: BarnabasProcess, stage: Stage, attacker: Attacker, producer_id: int, epoch: int, error: ErrorCode
) -> None:
    """Else a log would remember a producer that cannot be."""
    for version in served_versions(WriteTxnMarkersRequest.API_KEY):
        request = write_markers(stage, version)
        assert isinstance(request, WriteTxnMarkersRequest)
        before = read_all(stage)
        request.markers[0].producer_id, request.markers[0].producer_epoch = producer_id, epoch
        assert errors(attacker.send(request, version)) == [error]
        assert read_all(stage) == before


@pytest.mark.parametrize("broker", [SETTINGS], indirect=True)
def test_a22_numbers_of_a_batch_at_their_extremes(
    broker: BarnabasProcess, intact: None, stage: Stage, attacker: Attacker, figure: Figure
) -> None:
    """Each number of a batch's header, under a right checksum; of a plain batch, an idempotent one, and one in a
    transaction. What is taken can be read by everybody, and outlives a stop and a kill -9."""
    taken = []
    for version in (3, 8, 13):
        for kind, make in KINDS.items():
            for name, change in batch_changes():
                batch, transactional_id = make(stage)
                change(batch)
                answer = attacker.send(produce(batch, topic=stage.topic_id, transactional_id=transactional_id), version)
                if not errors(answer):
                    taken.append((kind, name))
    figure(requests=attacker.sent, taken=len(taken), closed=attacker.closed)
    before = read_all(stage)
    assert len(before) > len(taken)
    for end in (broker.stop, broker.kill):
        end()
        broker.start()
        stage.connect()
        assert read_all(stage) == before


def read_all(stage: Stage) -> list[tuple[int, int]]:
    """Offset and checksum of every batch of partition 0."""
    found: list[tuple[int, int]] = []
    offset = 0
    while True:
        request = fetching(stage)
        request.topics[0].partitions[0].fetch_offset = offset
        (partition,) = stage.ask(request, 12).responses[0].partitions
        assert partition.error_code == 0
        read = [(header.base_offset, header.crc) for header in iter_headers(partition.records or b"")]
        if not read:
            assert offset == partition.high_watermark
            return found
        found += read
        offset = max(base for base, _ in read) + 1


TIMES = (-3, -2, -1, 0, 1, 2**62, 2**63 - 1)
"""The timestamps of ListOffsets: the largest timestamp, the start, the end, and times."""


@pytest.mark.full
def test_a22_numbers_of_a_record_at_their_extremes(figure: Figure) -> None:
    """Records that contradict their batch are stored unopened where the topic is not compacted: all requests about them
    are answered, compaction and retention go round, and a broker starts with them."""
    settings = {"broker.id": "1", "log.cleaner.backoff.ms": "200", "log.retention.check.interval.ms": "200"}
    taken = sent = 0
    with BarnabasProcess(settings) as broker:
        stage, attacker = Stage(broker.bootstrap_servers), Attacker(broker.bootstrap_servers)
        plain = stage.batch()
        for policy in ("delete", "compact"):
            configs = {"cleanup.policy": policy, "segment.bytes": "100", "min.cleanable.dirty.ratio": "0"}
            configs["message.timestamp.after.max.ms"] = str(2**63 - 1)
            for what, base, largest, record in crafted_records():
                topic = stage.name("crafted")
                assert stage.create(topic, 1, configs) == 0
                request = produce(with_record(plain, base, largest, record))
                request.topic_data[0].name = topic
                sent += 1
                if errors(attacker.send(request, 9)):
                    continue
                taken += 1
                for timestamp in TIMES:
                    partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
                    topics = [ListOffsetsTopic(name=topic, partitions=[partition])]
                    answer = attacker.send(ListOffsetsRequest(replica_id=-1, topics=topics), 11)
                    assert errors(answer) == [], f"{what}, {timestamp}: {answer}"
                request.topic_data[0].partition_data[0].records = plain
                assert errors(attacker.send(request, 9)) == []
        stage.close()
        attacker.close()
        for end in (broker.stop, broker.kill):
            end()
            broker.start()
        assert "Traceback" not in broker.log_text()
    figure(sent=sent, taken=taken)
