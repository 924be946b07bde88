"""Ctrl-C at any moment ends any command without a traceback, and with status 130 (or by the signal, which a shell shows
as 130). The moments are those of an import, of a request or of the exit, so that they are the same each time."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import typer

from barnabas.broker.cli.app import app
from tools.processes import children
from tools.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

ENDED_BY_SIGNAL = -signal.SIGINT
STATUS = 128 + signal.SIGINT

PROGRAM = """
import atexit, os, signal, sys
from barnabas.__main__ import main

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
if sys.argv[1] == "the exit":
    atexit.register(os.kill, os.getpid(), signal.SIGINT)
main(sys.argv[2:])
"""
"""Runs a command, and interrupts itself when it imports a module or exits."""

REMOTE = {
    "produce": ["t"],
    "consume": ["t"],
    "topics list": [],
    "topics create": ["t"],
    "topics describe": [],
    "topics alter": ["t", "-p", "2"],
    "topics delete": ["t"],
    "topics reassign": ["t", "-r", "1", "--yes"],
    "topics elect": [],
    "topics offsets": ["t"],
    "topics sizes": [],
    "topics delete-records": ["t:0", "--before", "1"],
    "groups list": [],
    "groups describe": ["g"],
    "groups reset-offsets": ["g", "-t", "t", "--to-earliest", "--execute"],
    "groups delete": ["g"],
    "transactions list": [],
    "transactions describe": ["id"],
    "transactions find-hanging": [],
    "transactions abort": ["-t", "t", "-p", "0", "--start-offset", "0"],
    "configs describe": ["topic", "t"],
    "configs alter": ["topic", "t", "-s", "retention.ms=1"],
    "cluster describe": [],
    "brokers list": [],
    "brokers drain": ["3", "--yes"],
    "brokers rebalance": ["--yes"],
    "users list": [],
    "users add": ["alice"],
    "users password": ["alice"],
    "users remove": ["alice"],
    "acls list": [],
    "acls add": ["--user", "alice", "--read", "--topic", "t"],
    "acls remove": ["--user", "alice", "--read", "--topic", "t"],
    "quotas list": [],
    "quotas set": ["--user", "alice", "--produce", "1MB"],
    "quotas remove": ["--user", "alice"],
}
"""The commands that talk to a broker, and arguments that make them do so."""

LOCAL = {
    "check": ["."],
    "configs check": ["/dev/null"],
    "version": [],
    "serve": ["--help"],
    "zookeeper": ["--help"],
    "certificates make": ["--help"],
    "certificates show": ["/dev/null"],
}

OWN_HOST = "127.0.0.2"
"""Clients of other tests, and of former ones, look for brokers at any port of 127.0.0.1: who connects here is ours."""


def commands(command: object = None, name: str = "") -> Iterator[str]:
    command = typer.main.get_command(app) if command is None else command
    if not hasattr(command, "commands"):
        yield name
        return
    for part, below in command.commands.items():
        yield from commands(below, f"{name} {part}".strip())


def test_each_command_is_tried() -> None:
    assert {*REMOTE, *LOCAL} == set(commands())


def interrupted_at(moment: str, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return children.run(
        [sys.executable, "-c", PROGRAM, moment, *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )


@pytest.mark.live
@pytest.mark.parametrize(
    ("moment", "arguments"),
    [
        *(
            (module, ["topics", "list"])
            for module in ("barnabas.broker.cli.app", "typer", "barnabas.broker.client.client")
        ),
        ("barnabas.storage.check.directory", ["check", "."]),
        ("barnabas.broker.cli.one_broker", ["config", "check", "/dev/null"]),
        ("barnabas.broker.cli.serve", ["serve"]),
        ("barnabas.broker.server", ["serve", "--listen", "127.0.0.1:0"]),
        ("the exit", ["version"]),
        ("the exit", ["topics", "list", "-b", "127.0.0.1:1"]),
        ("the exit", ["nonsense"]),
    ],
)
def test_a_signal_without_a_handler_ends_the_process(moment: str, arguments: Sequence[str], tmp_path: Path) -> None:
    if arguments[0] == "serve":
        arguments = [*arguments, "--data-dir", str(tmp_path)]
    uninterrupted = interrupted_at("nothing", arguments).stderr if moment == "the exit" else ""
    ended = interrupted_at(moment, arguments)
    assert ended.returncode == ENDED_BY_SIGNAL
    lines = [line for line in ended.stderr.splitlines() if " INFO " not in line]
    assert lines == uninterrupted.splitlines()


def test_little_is_imported_before_the_signal_is_seen_to() -> None:
    """The modules that pip's script itself imports exist already."""
    code = (
        "import re, sys; there = set(sys.modules); import barnabas.__main__;"
        " print(*sorted(set(sys.modules) - there - {'_signal', 'gc'}))"
    )
    ended = children.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["barnabas", "barnabas.__main__"]


@pytest.mark.live
def test_a_start_that_is_interrupted_is_finished_and_undone(tmp_path: Path) -> None:
    arguments = ["serve", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path)]
    ended = interrupted_at("barnabas.controller.coordination.embedded", arguments)
    assert ended.returncode == 0
    assert "Traceback" not in ended.stderr
    assert "SIGINT: stopping after the start" in ended.stderr
    assert re.search(r"stopped in \d+ ms$", ended.stderr)


@pytest.mark.live
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_start_that_waits_for_zookeeper_is_given_up(number: signal.Signals, tmp_path: Path) -> None:
    """Not after `zookeeper.connection.timeout.ms`."""
    with socket.create_server((OWN_HOST, 0)) as silent:
        silent.settimeout(PATIENCE_S)
        address = f"{OWN_HOST}:{silent.getsockname()[1]}"
        command = [sys.executable, "-m", "barnabas", "serve", "--listen", "127.0.0.1:0", "--zookeeper", address]
        command += ["--data-dir", str(tmp_path), "--override", "zookeeper.connection.timeout.ms=600000"]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=children.environment()
        )
        with process, silent.accept()[0]:
            process.send_signal(number)
            out, err = children.finish(process)
    assert (process.returncode, out) == (0, "")
    assert "Traceback" not in err
    assert f"{number.name}: stopping after the start" in err
    assert err.splitlines()[-1].endswith("the start was interrupted")


TWICE = ("consume", "produce", "topics list")
IN_THE_GATE = {(command, 1) for command in [*REMOTE][::4]} | {("consume", 1), ("produce", 1), ("topics list", 2)}


@pytest.mark.live
@pytest.mark.parametrize(
    ("command", "times"),
    [
        pytest.param(command, times, marks=() if (command, times) in IN_THE_GATE else pytest.mark.full)
        for command, times in [*((command, 1) for command in REMOTE), *((command, 2) for command in TWICE)]
    ],
)
def test_while_a_broker_is_asked(command: str, times: int) -> None:
    """One that never answers, so that the command waits for it. The second signal may come while the command ends, or
    find that it has ended."""
    with socket.create_server((OWN_HOST, 0)) as silent:
        silent.settimeout(PATIENCE_S)
        line = [*command.split(), *REMOTE[command], "-b", f"{OWN_HOST}:{silent.getsockname()[1]}"]
        process = subprocess.Popen(
            [sys.executable, "-m", "barnabas", *line],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=children.environment(),
        )  # fmt: skip
        with process, silent.accept()[0] as connection:
            connection.settimeout(PATIENCE_S)
            assert connection.recv(4), "a request"
            for _ in range(times):
                process.send_signal(signal.SIGINT)
            out, err = children.finish(process)
    assert process.returncode == STATUS or (times == 2 and process.returncode == ENDED_BY_SIGNAL)
    assert out == ""
    assert err in ("", "barnabas: stopped: 0 records were acknowledged\n")


WORK = """
import asyncio, os, signal, sys, threading, time
from barnabas.broker.cli import interrupts

async def returns():
    return await signalled()

async def fails():
    await signalled()
    raise ValueError

async def tidies_for_ever():
    await signalled()
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.Event().wait()

async def is_not_to_be_cancelled():
    await signalled()
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass

async def asks_a_silent_name_server():
    await signalled()
    await asyncio.to_thread(threading.Event().wait)

async def prints_what_nobody_reads():
    await signalled()
    while True:
        os.write(1, bytes(65536))

async def signalled():
    os.kill(os.getpid(), signal.SIGINT)

without_a_thread = returns

work, tidy_s, end_s = sys.argv[1:]
signal.signal(signal.SIGINT, signal.SIG_DFL)  # as the command does
if work == "without_a_thread":
    threading.stack_size(1 << 50)  # none can be started
try:
    print(interrupts.run(globals()[work], tidy_s=float(tidy_s), end_s=float(end_s)))
except interrupts.Interrupted as end:
    print(repr(end), repr(end.__cause__))
"""
"""Runs a coroutine that is interrupted at its beginning."""


@pytest.mark.parametrize(
    ("work", "limits_s", "status", "out"),
    [
        # The result and the error come before the cancellation.
        ("returns", (PATIENCE_S, PATIENCE_S), 0, "Interrupted(2) None\n"),
        ("fails", (PATIENCE_S, PATIENCE_S), 0, "Interrupted(2) ValueError()\n"),
        ("tidies_for_ever", (0.01, PATIENCE_S), 0, "Interrupted(2) None\n"),
        ("is_not_to_be_cancelled", (0.01, 0.01), STATUS, ""),
        ("asks_a_silent_name_server", (0.01, 0.01), STATUS, ""),
        ("prints_what_nobody_reads", (0.01, 0.01), STATUS, None),
        ("without_a_thread", (PATIENCE_S, PATIENCE_S), ENDED_BY_SIGNAL, ""),
    ],
)
def test_a_signal_cancels_all_work(work: str, limits_s: tuple[float, float], status: int, out: str | None) -> None:
    """A signal ends all of it; what does not tidy up in time is cancelled again, and then the process ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", WORK, work, *map(str, limits_s)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=children.environment(),
    )  # fmt: skip
    with process:
        assert process.wait(PATIENCE_S) == status
        assert process.stdout is not None
        assert process.stderr is not None
        assert out in (None, process.stdout.read())
        assert process.stderr.read() == ""
