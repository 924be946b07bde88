"""The messages of `barnabas serve`, in its own process: at the start, at the stop, and when it cannot start."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import barnabas
from tests.support.required import tool_missing
from tools.processes import children
from tools.processes.barnabas import BarnabasProcess
from tools.waiting import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.live]
COMMAND = [sys.executable, "-m", "barnabas", "serve", "--listen", "127.0.0.1:0"]

_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 1, 2
_PR_CAPBSET_DROP = 24


def obey_permissions() -> None:
    """Runs in a child before it becomes the broker: root is as bound by permissions as everybody else."""
    if os.geteuid() == 0:
        for capability in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH):
            ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)


def refused(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A start that does not come about."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("KAFKA_")}
    ended = children.run(
        [*COMMAND, *arguments], capture_output=True, text=True, env=environ,
        preexec_fn=obey_permissions,
    )  # fmt: skip
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    return ended


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_start_names_the_broker_and_the_stop_its_reason(number: signal.Signals, tmp_path: Path) -> None:
    properties = tmp_path / "some server.properties"
    properties.write_text(f"log.dirs={tmp_path / 'data'}\nlisteners=PLAINTEXT://127.0.0.1:0\n")
    command = [sys.executable, "-m", "barnabas", "serve", str(properties)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready: ")
        process.send_signal(number)
        _, err = children.finish(process)
    assert process.returncode == 0
    first, *_, stopping, stopped = err.splitlines()
    assert first.endswith(
        f"barnabas {barnabas.__version__}, pid {process.pid}, configuration file {properties},"
        f" data in {tmp_path / 'data'}, coordination store: SQLite in the data directory"
    )
    assert stopping.endswith(f"{number.name}: stopping")
    assert re.search(r"stopped in \d+ ms$", stopped)


def test_foreign_folders_in_a_log_directory_are_left_alone(tmp_path: Path) -> None:
    """The folders of a file system, of snapshots and of desktops, which only their owner may read."""
    data = tmp_path / "data"
    folders = ["lost+found", ".Trash", ".Trash-1000", ".snapshot", "logs-1 (copy)"]
    for name in folders:
        (data / name).mkdir(parents=True)
        (data / name).chmod(0)
    (data / ".DS_Store").touch(mode=0)
    (data / "loop-0").symlink_to("loop-0")
    for turn in range(2):
        with subprocess.Popen(
            [*COMMAND, "--data-dir", str(data)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            preexec_fn=obey_permissions,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            assert process.stdout.readline().startswith("ready: ")
            process.terminate()
            _, err = children.finish(process)
        assert process.returncode == 0
        assert not re.search("ERROR|FATAL|Traceback", err)
        assert ("the last stop was clean" in err) == (turn == 1)
        assert set(folders) < {found.name for found in data.iterdir()}
    checked = children.run(
        [sys.executable, "-m", "barnabas", "check", str(data)], capture_output=True, text=True,
        preexec_fn=obey_permissions,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout
    for name in folders:
        assert f"note: {name}: is no partition and was not checked" in checked.stdout


def file_in_the_way(folder: Path) -> Path:
    (folder / "file").touch()
    return folder / "file"


def unwritable(folder: Path) -> Path:
    (folder / "sealed").mkdir(mode=0o500)
    return folder / "sealed"


@pytest.mark.parametrize(
    ("directory", "reason"),
    [
        (file_in_the_way, "Not a directory"),
        (lambda folder: file_in_the_way(folder) / "below" / "it", "Not a directory"),
        (unwritable, "Permission denied"),
        (lambda folder: unwritable(folder) / "below", "Permission denied"),
        (lambda _: Path("/proc/barnabas"), "nothing can be created there"),
        (lambda _: Path("/proc"), "nothing can be created there"),
        (lambda folder: folder / ("x" * 256), "File name too long"),
        (lambda folder: folder / "/".join(["x" * 100] * 50), "File name too long"),
    ],
)
def test_a_data_directory_that_cannot_be_is_named(
    directory: Callable[[Path], Path], reason: str, tmp_path: Path
) -> None:
    path = str(directory(tmp_path))
    ended = refused("--data-dir", path)
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    shown = path if len(path) <= 300 else f"{path[:150]}...{path[-150:]} ({len(path)} characters)"
    assert last.endswith(
        f"FATAL barnabas.broker.cli.one_broker: log directory {shown} cannot be used: {reason}."
        " Give this broker another one (--data-dir, log.dirs), or make this one usable"
    )


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder of its own file system of 4 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        tool_missing(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path, name: str) -> None:
    with (folder / name).open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def test_a_new_directory_on_a_full_disk_is_told_in_one_line(small_disk: Path) -> None:
    fill(small_disk, "ballast")
    ended = refused("--data-dir", str(small_disk / "data"))
    assert ended.returncode == 1
    _, last = ended.stderr.splitlines()
    assert last.endswith(
        f"one_broker: log directory {small_disk / 'data'} cannot be used: No space left on device."
        " Give this broker another one (--data-dir, log.dirs), or make this one usable"
    )


@pytest.mark.parametrize("has_logs", [False, True])
def test_a_read_only_directory_is_reported_in_one_line(small_disk: Path, has_logs: bool) -> None:
    """Such a disk can be looked at by `barnabas check`, which writes nothing."""
    data = small_disk / "data"
    if has_logs:
        with BarnabasProcess(data_dir=data) as other:
            client = AdminClient({"bootstrap.servers": other.bootstrap_servers})
            client.create_topics([NewTopic("t", 1)])["t"].result(PATIENCE_S)
            other.stop()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    ended = refused("--data-dir", str(data))
    assert ended.returncode == 1
    _, last = ended.stderr.splitlines()
    assert last.endswith(
        f"one_broker: log directory {data} cannot be used: Read-only file system."
        " Give this broker another one (--data-dir, log.dirs), or make this one usable"
    )
    if has_logs:
        checked = children.run([sys.executable, "-m", "barnabas", "check", str(data)], capture_output=True, text=True)
        assert checked.returncode == 0, checked.stdout
        assert ": 0 errors, 0 warnings" in checked.stdout


def test_a_start_that_a_full_disk_ends_says_what_to_do(small_disk: Path) -> None:
    """After a kill and without the room that is kept for the metadata store, which is used up."""
    with BarnabasProcess(data_dir=small_disk / "data") as other:
        fill(small_disk, "ballast")
        client = AdminClient({"bootstrap.servers": other.bootstrap_servers})
        client.create_topics([NewTopic("t", 1)])["t"].result(PATIENCE_S)
        other.kill()
        fill(small_disk, "more ballast")
        ended = refused("--data-dir", str(other.log_dir))
    assert ended.returncode == 1
    assert re.search(
        rf"FATAL barnabas.broker.cli.one_broker: [^\[]*\. Make room on the disk of {other.log_dir}, or give this broker"
        r" another directory \(--data-dir, log.dirs\)$",
        ended.stderr.splitlines()[-1],
    )


def test_a_directory_in_use_names_the_process(tmp_path: Path) -> None:
    with BarnabasProcess(data_dir=tmp_path / "data") as other:
        ended = refused("--data-dir", str(other.log_dir))
        assert ended.returncode == 1
        expected = f"log directory {other.log_dir} is in use: process {other.pid} holds {other.log_dir}/.lock."
        assert expected in ended.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("--http", "foo", "'foo' is not HOST:PORT with a port of 0 to 65535"),
        ("--listen", "127.0.0.1:70000", "'127.0.0.1:70000' is not HOST:PORT with a port of 0 to 65535"),
        ("--node-id", "two", "expected a whole number from 0 to 2147483647"),
        ("--node-id", "99999999999", "expected a whole number from 0 to 2147483647"),
        ("--log-level", "loud", "expected one of DEBUG, INFO, WARNING, ERROR"),
        ("--log-format", "xml", "expected one of text, json"),
        ("--zookeeper", "a:b:c", "expected HOST:PORT,HOST:PORT/chroot"),
        ("--data-dir", "", "expected a directory, or several separated by commas"),
        ("--override", "num.partitions", "expected KEY=VALUE"),
    ],
)
def test_a_wrong_value_is_blamed_on_its_option(option: str, value: str, reason: str) -> None:
    ended = refused(option, value)
    assert ended.returncode == 2
    head, problem = ended.stderr.splitlines()
    assert head == "barnabas: the configuration cannot be used (1 problem):"
    assert problem.startswith(f"  - {option} {value or repr('')}: {reason}")


def test_a_wrong_override_says_that_it_is_one(tmp_path: Path) -> None:
    ended = refused("--data-dir", str(tmp_path), "--override", "num.partitions=0")
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[1].endswith(
        "num.partitions: Value must be at least 1. Allowed: int, at least 1 (from --override)"
    )
