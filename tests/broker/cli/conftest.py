"""A broker on a thread; `run`, which runs one command in this process, and `start`, for commands that go on."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from barnabas.broker.cli.app import main
from barnabas.testing import Broker


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
