"""Attacks with what requests say: lengths that lie, broken requests of real clients, names that are paths."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from barnabas.broker.handlers import served_apis
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from barnabas.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from barnabas.wire.messages.produce import ProduceResponse
from barnabas.wire.primitives import unsigned_varint
from barnabas.wire.records import Record, build_batch
from tools.attack.hostile import (
    MIB,
    HealthyClient,
    Memory,
    ThreadTimes,
    ask,
    connect,
    create_topic,
    eventually,
    is_closed,
    open_sockets,
    produce,
    receive,
)
from tools.fuzz.mutation import Mutator
from tools.fuzz.targets import targets
from tools.processes.barnabas import BarnabasProcess

pytestmark = [pytest.mark.slow, pytest.mark.live, pytest.mark.listener("clients")]
Figure = Callable[..., None]


def raw(key: int, version: int, body: bytes, *, flexible: bool = True) -> bytes:
    header = struct.pack(">hhihx" if flexible else ">hhih", key, version, 1, -1)
    return struct.pack(">i", len(header) + len(body)) + header + body


LYING = {
    "metadata of 400,000 topics that claim to be 5 million": raw(
        3, 12, unsigned_varint(5_000_001) + (bytes(16) + b"\0\0") * 400_000
    ),
    "metadata of 2 thousand million topics": raw(3, 1, struct.pack(">i", 2**31 - 1), flexible=False),
    "fetch of 8 MiB of empty topics": raw(1, 12, bytes(25) + unsigned_varint(2_700_001) + b"\1\1\0" * 2_700_000),
    "fetch of nested arrays": raw(
        1, 4, bytes(17) + struct.pack(">i", 1000) + (bytes(2) + struct.pack(">i", 500) + bytes(8000)) * 1000,
        flexible=False,
    ),
    "a request of 9 MiB": raw(11, 5, bytes(9 * MIB), flexible=False),
    "produce of 90 MiB of empty topics": raw(
        0, 9, b"\0\0\1\0\0\0\0" + unsigned_varint(30_000_001) + b"\1\1\0" * 30_000_000
    ),
    "a string of 4 GiB": raw(12, 4, unsigned_varint(2**32 - 1)),
    "a string of 2 GiB": raw(12, 4, unsigned_varint(2**31)),
    "4 thousand million tagged fields": raw(18, 3, b"\1\1" + unsigned_varint(2**32 - 1) + b"\1\0" * 1_000_000),
    "a tagged field of 2 GiB": raw(18, 3, b"\1\1\1\7" + unsigned_varint(2**31)),
    "endless varint": raw(12, 4, b"\xff" * 1000),
    "join with 250,000 protocols": raw(
        11,
        5,
        b"\0\1g\0\0\x75\x30\0\0\x75\x30\0\0\xff\xff\0\1c" + struct.pack(">i", 250_000) + bytes(6) * 250_000,
        flexible=False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("attack", LYING)
def test_a6_lengths_and_counts_that_lie(
    shared_broker: BarnabasProcess, shared_healthy: HealthyClient, figure: Figure, attack: str, is_timed: bool
) -> None:
    """Where processor time is judged, the healthy client's included, at the best of three."""
    data = LYING[attack]
    memory, times = Memory(shared_broker.pid), ThreadTimes(shared_broker.pid)
    spent_ms, growths = [], []
    for _ in range(3 if is_timed else 1):
        memory.mark()
        times.mark()
        with connect(shared_broker.bootstrap_servers) as connection:
            with contextlib.suppress(OSError):
                connection.sendall(data)
            assert is_closed(connection)
        spent_ms.append(times.loop_ms + times.threads_ms)
        growths.append(memory.growth)
    figure(attack=attack, bytes=len(data), ms=round(min(spent_ms), 1), growth_mib=round(max(growths) / MIB, 1),
           **shared_healthy.figures)  # fmt: skip
    assert min(spent_ms) <= max(5, 0.05 * len(data) / 1024) or not is_timed
    # A frame's buffer grows as its bytes come: at worst it is copied once more, while the old one is still there.
    assert max(growths) <= 2 * len(data) + 4 * MIB


def test_a6_absurd_partition_counts_are_refused(
    broker: BarnabasProcess, memory: Memory, healthy: HealthyClient, figure: Figure
) -> None:
    create_topic(broker.bootstrap_servers, "t")
    with connect(broker.bootstrap_servers) as connection:
        for count in (2**31 - 1, 100_000, 0, -5):
            topic = CreatableTopic(name="x", num_partitions=count, replication_factor=1)
            created = ask(connection, CreateTopicsRequest(topics=[topic]), 5, CreateTopicsResponse)
            assert created.topics[0].error_code in (ErrorCode.INVALID_PARTITIONS, ErrorCode.POLICY_VIOLATION)
            more = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="t", count=count)], timeout_ms=1000)
            grown = ask(connection, more, 2, CreatePartitionsResponse)
            assert grown.results[0].error_code in (ErrorCode.INVALID_PARTITIONS, ErrorCode.POLICY_VIOLATION)
    figure(growth_mib=round(memory.growth / MIB, 1), **healthy.figures)
    assert memory.growth <= 16 * MIB


def test_a6_metadata_creates_a_hundred_topics_at_a_time(
    broker: BarnabasProcess, memory: Memory, healthy: HealthyClient, figure: Figure
) -> None:
    names = [MetadataRequestTopic(name=f"flood-{number}") for number in range(40_000)]
    request = MetadataRequest(topics=names, allow_auto_topic_creation=True)
    with connect(broker.bootstrap_servers) as connection:
        response = ask(connection, request, 9, MetadataResponse)
        assert len(response.topics) == 40_000
        every = MetadataRequest(topics=None)
        before = time.monotonic()

        def created_now() -> int:
            return len(ask(connection, every, 9, MetadataResponse).topics) - 1  # not the healthy client's

        assert eventually(lambda: created_now() >= 100)
        taken = time.monotonic() - before
        healthy.write(50)  # were there more, they would come meanwhile
        created = created_now()
    figure(asked=40_000, created=created, seconds=round(taken, 2), growth_mib=round(memory.growth / MIB, 1),
           **healthy.figures)  # fmt: skip
    assert created == 100
    assert memory.growth <= 64 * MIB


@pytest.mark.parametrize("count", [1_000, pytest.param(200_000, marks=[pytest.mark.full, pytest.mark.timeout(2000)])])
def test_a7_broken_requests_of_real_clients(
    broker: BarnabasProcess, memory: Memory, healthy: HealthyClient, figure: Figure, count: int
) -> None:
    """Random bytes, and recorded requests of all clients: cut off, spliced, mutated; on live connections."""
    (recorded,) = targets(["requests"])
    seed = 20 + count
    rng = random.Random(seed)
    seeds = recorded.seeds()
    mutator = Mutator(seeds, rng, size_max=1 << 20)
    served = sorted(served_apis())
    sockets = open_sockets(broker.pid)
    healthy.mark()
    sent = answered = closed = 0
    connection = connect(broker.bootstrap_servers)
    while sent < count:
        body = bytearray(
            rng.choice(
                (mutator.next, mutator.next, lambda: rng.choice(seeds), lambda: rng.randbytes(rng.randrange(99)))
            )()
        )
        if len(body) > 2 and not rng.randrange(4):
            struct.pack_into(">b", body, 1, rng.choice(served))  # an API that is there, whatever the mutation did
            body[0] = 0
        length = len(body) if rng.randrange(20) else rng.randrange(2 * len(body) + 1)
        sent += 1
        try:
            connection.sendall(struct.pack(">i", length) + body)
            connection.settimeout(rng.choice((0.001, 0.05)))
            if receive(connection) is None:
                raise ConnectionError
            answered += 1
        except TimeoutError:
            if rng.randrange(4):
                continue  # go on with what may now be the middle of a frame
            connection.close()
            connection = connect(broker.bootstrap_servers)
        except OSError:
            closed += 1
            connection.close()
            connection = connect(broker.bootstrap_servers)
    connection.close()
    log = broker.log_text()
    figure(seed=seed, requests=sent, answered=answered, closed=closed,
           growth_mib=round(memory.growth / MIB, 1), **healthy.figures,
           failures=log.count("request failed"))  # fmt: skip
    assert "request failed" not in log
    # A request may have been told to wait for weeks, with another one behind it.
    assert eventually(lambda: open_sockets(broker.pid) <= sockets)


NAMES = [
    "..",
    ".",
    "../evil",
    "/tmp/evil",
    "a/b",
    "a\\b",
    "a\0b",
    "",
    "x" * 250,
    "a b",
    "é",
    "a\nb",
    "%2e%2e",
    "~",
    "a:b",
]


@pytest.fixture
def changes(broker: BarnabasProcess) -> Callable[[], dict[Path, set[str]]]:
    """Restarts the broker and tells which paths it changes from then on, and how."""
    record = broker.log_dir.parent / "changed-paths"
    broker.stop()
    broker.module = f"tests.support.changed_paths:{record}"
    broker.start()

    def found() -> dict[Path, set[str]]:
        paths: dict[Path, set[str]] = {}
        for event, path in map(json.loads, record.read_text().splitlines()):
            paths.setdefault(Path(path).resolve(), set()).add(event)
        return paths

    return found


def test_a17_topic_names_that_are_paths(
    broker: BarnabasProcess, changes: Callable[[], dict[Path, set[str]]], healthy: HealthyClient, figure: Figure
) -> None:
    """INVALID_TOPIC_EXCEPTION wherever a name comes in, and nothing outside of the data directory is made, written,
    renamed or removed, not even for a moment."""
    healthy.mark()
    batch = build_batch([Record(0, 1_700_000_000_000, None, b"v")])
    unknown = (ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    with connect(broker.bootstrap_servers) as connection:
        for name in NAMES:
            created = ask(connection, _creation(name), 5, CreateTopicsResponse)
            assert created.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION, name
            request = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
            found = ask(connection, request, 9, MetadataResponse)
            assert found.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION, name
            written = ask(connection, produce(name, batch), 9, ProduceResponse)
            assert written.responses[0].partition_responses[0].error_code in unknown, name
            assert _delete(connection, name) in unknown, name
        # Kafka's metrics take both characters for the same one, so names may not differ in them only.
        assert ask(connection, _creation("a.b"), 5, CreateTopicsResponse).topics[0].error_code == 0
        collision = ask(connection, _creation("a_b"), 5, CreateTopicsResponse)
        assert collision.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert ask(connection, _creation("x" * 249), 5, CreateTopicsResponse).topics[0].error_code == 0
        assert ask(connection, _creation("unwanted"), 5, CreateTopicsResponse).topics[0].error_code == 0
        assert _delete(connection, "unwanted") == 0
    data = broker.log_dir.resolve()
    changed = changes()
    assert [path for path in changed if not path.is_relative_to(data)] == []
    assert {"os.mkdir", "os.rename"} <= changed[data / "unwanted-0"], "else the record is not complete"
    assert "open" in changed[data / "a.b-0" / f"{0:020}.log"]
    # Beside the data are its log and the record.
    assert [path for path in _open_for_writing(broker.pid) if not path.is_relative_to(data.parent)] == []
    topics = {path.name for path in data.iterdir() if path.is_dir() and not path.name.endswith("-delete")}
    assert topics == {"a.b-0", "x" * 249 + "-0", "healthy-0"}
    figure(names=len(NAMES), changed=len(changed), **healthy.figures)


def _creation(name: str) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=[CreatableTopic(name=name, num_partitions=1, replication_factor=1)], timeout_ms=15_000
    )


def _delete(connection: socket.socket, name: str) -> int:
    request = DeleteTopicsRequest(topic_names=[name], timeout_ms=15_000)
    code: int = ask(connection, request, 5, DeleteTopicsResponse).responses[0].error_code
    return code


def _open_for_writing(pid: int) -> list[Path]:
    """The files that a process holds open for writing, whoever opened them."""
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            target = link.readlink()
            flags = int((Path(f"/proc/{pid}/fdinfo") / link.name).read_text().split("flags:")[1].split()[0], 8)
            if flags & os.O_ACCMODE and target.is_absolute() and not str(target).startswith(("/dev/", "/proc/")):
                found.append(target)
    return found
