"""State after a stopped or killed process: records, groups, offsets. The real command, a stock client."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tools.processes import children
from tools.processes.barnabas import BarnabasProcess
from tools.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.live]


@pytest.fixture
def process(request: pytest.FixtureRequest) -> Iterator[BarnabasProcess]:
    """The fixture's parameter are further settings."""
    with BarnabasProcess({"offsets.topic.num.partitions": "4", **getattr(request, "param", {})}) as process:
        yield process


def producer(process: BarnabasProcess, **config: object) -> Producer:
    return Producer(
        {"bootstrap.servers": process.bootstrap_servers, "enable.idempotence": True, "linger.ms": 0, **config}
    )


def read_all(process: BarnabasProcess, topic: str, count: int) -> list[bytes]:
    consumer = Consumer(
        {"bootstrap.servers": process.bootstrap_servers, "group.id": "reader", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    values: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(values) < count and time.monotonic() < deadline:
        values += [message.value() or b"" for message in consumer.consume(1000, timeout=1) if message.error() is None]
    values += [message.value() or b"" for message in consumer.consume(1000, timeout=0.5) if message.error() is None]
    consumer.close()
    return values


def commit(process: BarnabasProcess, group: str, topic: str, offset: int, metadata: str) -> None:
    consumer = Consumer({"bootstrap.servers": process.bootstrap_servers, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset, metadata)], asynchronous=False)
    consumer.close()


def committed(process: BarnabasProcess, group: str, topic: str) -> tuple[int, str]:
    consumer = Consumer({"bootstrap.servers": process.bootstrap_servers, "group.id": group})
    (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=PATIENCE_S)
    consumer.close()
    return found.offset, found.metadata


@pytest.mark.parametrize(
    ("how", "process"),
    [
        ("stop", {}),
        ("kill", {}),
        ("kill", {"log.flush.interval.messages": "1"}),
        ("kill", {"barnabas.flush.before.ack": "true"}),
    ],
    ids=["stop", "kill", "kill after flushes", "kill after flushes before acknowledgements"],
    indirect=["process"],
)
def test_records_offsets_and_the_cluster_survive(process: BarnabasProcess, how: str) -> None:
    sender = producer(process)
    for number in range(500):
        sender.produce("t", str(number).encode(), partition=0)
    assert sender.flush(PATIENCE_S) == 0
    commit(process, "g", "t", 123, "where we are")
    cluster_id = (
        AdminClient({"bootstrap.servers": process.bootstrap_servers}).list_topics(timeout=PATIENCE_S).cluster_id
    )

    process.stop() if how == "stop" else process.kill()
    process.start()

    assert read_all(process, "t", 500) == [str(number).encode() for number in range(500)]
    assert committed(process, "g", "t") == (123, "where we are")
    metadata = AdminClient({"bootstrap.servers": process.bootstrap_servers}).list_topics(timeout=PATIENCE_S)
    assert metadata.cluster_id == cluster_id
    assert set(metadata.topics) == {"t", "__consumer_offsets"}


def test_kills_under_load_lose_and_double_no_records(process: BarnabasProcess) -> None:
    sender = producer(process, **{"message.timeout.ms": 120_000, "reconnect.backoff.max.ms": 200})
    acknowledged: list[int] = []
    failed: list[str] = []
    stopping = threading.Event()

    def delivered(error: object, message: object) -> None:
        if error is not None:
            failed.append(str(error))
        else:
            acknowledged.append(int(message.value()))  # type: ignore[attr-defined]

    def send() -> None:
        number = 0
        while not stopping.is_set():
            try:
                sender.produce("t", str(number).encode(), partition=0, on_delivery=delivered)
                number += 1
            except BufferError:
                sender.poll(0.05)
            sender.poll(0)

    thread = threading.Thread(target=send)
    thread.start()
    for _ in range(5):
        before = len(acknowledged)
        wait_until(lambda before=before: len(acknowledged) >= before + 2_000)  # type: ignore[misc]
        process.kill()
        process.start()
    stopping.set()
    thread.join()
    assert sender.flush(PATIENCE_S) == 0
    assert not failed, failed[:3]
    assert len(acknowledged) >= 10_000
    values = [int(value) for value in read_all(process, "t", len(acknowledged))]
    assert values == sorted(values), "out of order"
    assert len(values) == len(set(values)), "a record is there twice"
    assert set(acknowledged) <= set(values), "an acknowledged record is missing"


def test_a_second_process_on_the_same_directory_refuses_to_start(process: BarnabasProcess) -> None:
    command = [sys.executable, "-m", "barnabas", "serve", "--listen", "127.0.0.1:0", "--data-dir", str(process.log_dir)]
    second = children.run(command, capture_output=True, text=True)
    assert second.returncode != 0
    assert second.stdout == ""
    assert f"process {process.pid} holds {process.log_dir / '.lock'}" in second.stderr


def test_the_directory_of_another_broker_is_refused(process: BarnabasProcess) -> None:
    process.stop()
    command = [sys.executable, "-m", "barnabas", "serve", "--listen", "127.0.0.1:0", "--data-dir", str(process.log_dir)]
    refused = children.run([*command, "--node-id", "77"], capture_output=True, text=True)
    assert refused.returncode == 1
    assert "belongs to broker" in refused.stderr
    assert "Traceback" not in refused.stderr
    other = [*command, "--override", "barnabas.cluster.id=another"]
    refused = children.run(other, capture_output=True, text=True)
    assert refused.returncode == 1
    assert "cluster" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_stop_the_broker_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    command = [
        sys.executable,
        "-m",
        "barnabas",
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--data-dir",
        str(tmp_path / "data"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ready: PLAINTEXT://127.0.0.1:")
    process.send_signal(number)
    rest = process.stdout.read()
    assert children.wait(process) == 0
    process.stdout.close()
    assert rest == "", "more than one line on stdout"
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_garbage_is_looked_for_once_a_broker_has_started(tmp_path: Path) -> None:
    program = """
import atexit, gc, sys
from barnabas.__main__ import main
atexit.register(lambda: print(gc.isenabled(), gc.get_freeze_count() > 10_000))
main(sys.argv[1:])
"""
    command = [sys.executable, "-c", program, "serve", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "data")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ready: ")
    process.send_signal(signal.SIGTERM)
    out, _ = children.finish(process)
    assert (process.returncode, out) == (0, "True True\n")
