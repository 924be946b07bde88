"""The container image: built, started and used as its users do. Skipped where there is no container engine."""

import gc
import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tools.required import tool_missing

ROOT = Path(__file__).resolve().parent.parent
START_TIMEOUT_S = 60

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),  # the first build downloads the base image
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # docker's client leaves its sockets to the collector
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@dataclass(frozen=True, slots=True)
class RunningImage:
    """A started container and the address of its broker."""

    container: Any
    bootstrap_servers: str


@pytest.fixture(scope="module")
def engine() -> Any:
    """The container engine's client."""
    import docker

    reason = ""
    try:
        client = docker.from_env()
        client.ping()
    except docker.errors.DockerException as problem:
        reason = f"no container engine: {problem}"
    if reason:
        gc.collect()  # the socket of the failed attempt goes while its warning is ignored
        tool_missing(reason)
    return client


@pytest.fixture(scope="module")
def image(engine: Any) -> Iterator[str]:
    from testcontainers.core.image import DockerImage

    with DockerImage(path=ROOT, tag=f"barnabas-test:{secrets.token_hex(4)}") as built:
        yield str(built)


@pytest.fixture
def broker(image: str) -> Iterator[RunningImage]:
    """A container whose address inside and outside is the same, as clients need it."""
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.waiting_utils import wait_for_logs

    port = free_port()
    container = (
        DockerContainer(image)
        .with_bind_ports(9092, port)
        .with_env("KAFKA_ADVERTISED_LISTENERS", f"PLAINTEXT://localhost:{port}")
        .with_env("KAFKA_NUM_PARTITIONS", "3")
    )
    with container as started:
        wait_for_logs(started, "ready: PLAINTEXT://", timeout=START_TIMEOUT_S)
        yield RunningImage(started, f"localhost:{port}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_clients_outside_produce_and_consume(broker: RunningImage) -> None:
    from confluent_kafka import Consumer, Producer

    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(100):
        producer.produce("images", str(number))
    assert producer.flush(30) == 0

    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "images", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["images"])
    values: list[int] = []
    for _ in range(60):
        values += [int(message.value() or b"-1") for message in consumer.consume(100, timeout=0.5)]
        if len(values) == 100:
            break
    partitions = consumer.list_topics("images", timeout=30).topics["images"].partitions
    consumer.close()

    assert sorted(values) == list(range(100))
    assert len(partitions) == 3, "KAFKA_NUM_PARTITIONS is num.partitions"


def test_it_becomes_healthy(broker: RunningImage) -> None:
    import time

    container = broker.container.get_wrapped_container()
    deadline = time.monotonic() + START_TIMEOUT_S
    while container.attrs["State"]["Health"]["Status"] == "starting" and time.monotonic() < deadline:
        time.sleep(0.5)
        container.reload()

    assert container.attrs["State"]["Health"]["Status"] == "healthy"


def test_it_does_not_run_as_root_and_keeps_data_where_kafka_does(broker: RunningImage) -> None:
    status, user = broker.container.exec(["python", "-c", "import os; print(os.getuid())"])
    assert (status, user.strip()) == (0, b"1000")

    status, files = broker.container.exec(["ls", "/var/lib/kafka/data"])
    assert status == 0
    assert b"meta.properties" in files


def test_it_stops_cleanly(broker: RunningImage) -> None:
    container = broker.container.get_wrapped_container()

    container.stop(timeout=30)

    assert container.wait()["StatusCode"] == 0
