"""Standard output that is full or closed, and other standard streams that are not there."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from barnabas.testing import Broker
from tests.support.parameters import gate_takes_each
from tools.processes import children

pytestmark = [pytest.mark.slow, pytest.mark.live]

COMMANDS = [
    "consume lines -o earliest -e",
    "consume lines -o earliest -e --json",
    "topics list",
    "topics sizes --json",
    "configs describe topic lines --all",
    "cluster describe",
    "version",
    "topics alter --help",
]


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with Broker() as broker:
        broker.create_topic("lines")
        for number in range(3):
            broker.topic("lines").produce(f"line {number}")
        yield broker.bootstrap_servers


def run(command: str, servers: str, **options: object) -> subprocess.CompletedProcess[str]:
    return children.run(
        [sys.executable, "-m", "barnabas", *command.split()], stderr=subprocess.PIPE, text=True,
        env=os.environ | {"BARNABAS_BOOTSTRAP_SERVER": servers}, **options,
    )  # fmt: skip


def closed(*descriptors: int) -> Callable[[], None]:
    def close() -> None:
        for descriptor in descriptors:
            os.close(descriptor)

    return close


@pytest.mark.parametrize("command", gate_takes_each(3, COMMANDS))
def test_a_full_standard_output_is_told_in_one_line(command: str, servers: str) -> None:
    with open("/dev/full", "w") as full:
        ended = run(command, servers, stdout=full)
    assert (ended.returncode, ended.stderr) == (
        1,
        "barnabas: standard output cannot be written: No space left on device\n",
    )


@pytest.mark.parametrize("command", gate_takes_each(3, COMMANDS))
def test_output_to_a_closed_standard_output_is_dropped(command: str, servers: str) -> None:
    ended = run(command, servers, preexec_fn=closed(1))
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_closed_unused_stream_is_no_error(servers: str) -> None:
    with open("/dev/full", "w") as full:
        ended = run("produce lines --json", servers, stdout=full, stdin=subprocess.DEVNULL)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("missing", [(1,), (0,), (0, 1), "full"])
def test_a_broker_serves_without_them(missing: tuple[int, ...] | str, tmp_path: Path) -> None:
    """Its ready line is lost, and no file or connection takes the place of a stream that is not there."""
    command = [sys.executable, "-m", "barnabas", "serve", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path)]
    with open("/dev/full", "w") as full:
        process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, bufsize=1,
            stdout=full if missing == "full" else None,
            preexec_fn=None if isinstance(missing, str) else closed(*missing),
        )  # fmt: skip
    assert process.stderr is not None
    with process.stderr as told:
        lines = []
        for line in told:
            lines.append(line)
            if "started in" in line:
                process.send_signal(signal.SIGTERM)
    assert children.wait(process) == 0, lines
    assert "stopped in" in lines[-1]
    assert any("does not take the ready line" in line for line in lines) == (missing == "full")
