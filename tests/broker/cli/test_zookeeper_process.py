"""Whom `barnabas zookeeper` listens to, and what it says where it cannot serve."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.broker.cli.zookeeper_process import loopback_address
from tools.processes import children
from tools.processes.barnabas import BarnabasZooKeeper


@pytest.mark.parametrize(
    ("address", "host"), [("127.0.0.1:0", "127.0.0.1"), ("localhost:7", "127.0.0.1"), ("[::1]:7", "::1")]
)
def test_this_machine_may_connect(address: str, host: str) -> None:
    assert loopback_address(address)[0] == host


@pytest.mark.parametrize("address", ["0.0.0.0:7", "[::]:7", "192.0.2.1:7", "example.org:7", ":7"])
def test_only_this_machine_may_connect(address: str) -> None:
    with pytest.raises(ValueError, match="only this machine may connect"):
        loopback_address(address)


@pytest.fixture(scope="module")
def other() -> Iterator[BarnabasZooKeeper]:
    with BarnabasZooKeeper() as process:
        yield process


def refusal(status: int, *arguments: str) -> str:
    """The one line that a start ends with."""
    command = [sys.executable, "-m", "barnabas", "zookeeper", *arguments]
    done = children.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (status, "", 1), done.stderr
    return done.stderr


@pytest.mark.slow
def test_an_unusable_file_is_reported(other: BarnabasZooKeeper, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    damaged.write_text("no znodes")
    for file, why in (
        (tmp_path / "nowhere" / "znodes", "unable to open database file"),
        (tmp_path, "unable to open database file"),
        (damaged, "file is not a database"),
        (other.log_dir / "zookeeper.sqlite", "another process is using it"),
    ):
        told = refusal(1, "--listen", "127.0.0.1:0", "--file", str(file))
        assert told == f"barnabas: the znodes cannot be kept in {file}: {why}. Choose another file (--file)\n"
    assert damaged.read_text() == "no znodes"


@pytest.mark.slow
def test_an_unusable_address_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        told = refusal(1, "--listen", address)
    assert told == f"barnabas: cannot listen on {address}: Address already in use. Choose another address (--listen)\n"
    assert "only this machine may connect" in refusal(2, "--listen", "0.0.0.0:0")
    assert refusal(2, "--listen", "nonsense").startswith("barnabas: --listen nonsense: ")
