"""A broker on a thread; `run`, which runs one command in this process, and `start`, for commands that go on."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from barnabas.broker.cli.app import main
from barnabas.testing import Broker, Cluster


@dataclass
class Done:
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Done]
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(num_partitions=2) as running:
        yield running


@pytest.fixture
def run(broker: Broker, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs one command against the module's broker."""
    monkeypatch.setenv("BARNABAS_BOOTSTRAP_SERVER", broker.bootstrap_servers)
    monkeypatch.setenv("COLUMNS", "200")

    def command(*arguments: str, stdin: bytes = b"") -> Done:
        capfd.readouterr()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(stdin))))  # type: ignore[type-var]
        status = main(list(arguments))
        sys.stdout.flush()
        captured = capfd.readouterr()
        return Done(status, captured.out, captured.err)

    return command


@pytest.fixture
def start(broker: Broker) -> Iterator[Start]:
    """Starts commands against the module's broker, and ends those that still run."""
    processes = []

    def process(*arguments: str) -> subprocess.Popen[bytes]:
        processes.append(
            subprocess.Popen(
                [sys.executable, "-u", "-m", "barnabas", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=os.environ | {"BARNABAS_BOOTSTRAP_SERVER": broker.bootstrap_servers},
            )
        )
        return processes[-1]

    yield process
    for each in processes:
        each.kill()
        each.communicate()


def end_broker(cluster: Cluster, number: int, *, killed: bool = False) -> None:
    """Stop or kill a broker, and return when the others have heard of it: a command asks any of them."""
    broker = cluster.brokers[number]
    if killed:
        broker.kill()
    else:
        broker.stop()
    deadline = time.monotonic() + 30
    while any(server.metadata.is_alive(number) for server in cluster.live_servers()):
        assert time.monotonic() < deadline, f"not everybody has heard that broker {number} is gone"
        time.sleep(0.005)


def start_broker(cluster: Cluster, number: int) -> None:
    """Start a broker, and return when the others have heard of it: a command asks any of them."""
    cluster.brokers[number].start()
    deadline = time.monotonic() + 30
    while not all(server.metadata.is_alive(number) for server in cluster.live_servers()):
        assert time.monotonic() < deadline, f"not everybody has heard that broker {number} is there"
        time.sleep(0.005)


def wait_leader(cluster: Cluster, topic: str, partition: int, broker: int) -> None:
    """An election is answered when the controller's broker knows; whoever is elected is told then."""
    deadline = time.monotonic() + 30
    while cluster.leader(topic, partition) != broker:
        assert time.monotonic() < deadline, f"broker {broker} does not lead {topic}-{partition}"
        time.sleep(0.005)
