"""SIGTERM and SIGINT end commands in order, as processes of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from barnabas.testing import Broker
from tools.processes import children

pytestmark = [pytest.mark.slow, pytest.mark.live]
Run = Callable[..., Any]
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("produce", "A record per line; Ctrl-D ends."),
        ("consume", "Waiting for new records; --from-beginning prints those that are there, Ctrl-C ends."),
    ],
)
def test_a_command_in_a_terminal_says_what_it_waits_for(broker: Broker, run: Run, command: str, told: str) -> None:
    run("topics", "create", "typed", "-p", "1", "--if-not-exists")
    ours, theirs = os.openpty()
    arguments = [sys.executable, "-m", "barnabas", command, "typed", "-b", broker.bootstrap_servers]
    with (
        os.fdopen(ours, "r+b", buffering=0) as terminal,
        subprocess.Popen(arguments, stdin=theirs, stdout=theirs, stderr=theirs) as process,
    ):
        os.close(theirs)
        line = b""
        while not line.endswith(b"\n"):
            line += terminal.read(1)
        assert line.decode() == f"{told}\r\n"
        if command == "consume":
            process.send_signal(signal.SIGINT)
        else:
            terminal.write(b"one\n\x04")
        shown = b""
        with contextlib.suppress(OSError):  # how Linux tells that the other side is gone
            while chunk := terminal.read(1000):
                shown += chunk
    if command == "consume":
        assert (shown, process.returncode in (130, -signal.SIGINT)) == (b"", True)
    else:
        assert (shown.startswith(b"one\r\n1 record to typed in "), process.returncode) == (True, 0)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_member_leaves_its_group(broker: Broker, run: Run, start: Start, number: signal.Signals, status: int) -> None:
    """And commits what it printed: nobody waits for its session to end."""
    topic = group = f"left-{number}"
    run("topics", "create", topic, "-p", "1")
    run("produce", topic, "-q", stdin=b"one\n")
    process = start("consume", topic, "-g", group, "--from-beginning")
    assert process.stdout is not None
    assert process.stdout.readline() == b"one\n"
    process.send_signal(number)
    out, err = children.finish(process)
    assert (process.returncode, out, err) == (status, b"", b"")
    (described,) = run("groups", "describe", group, "--json").json
    assert (described["state"], described["members"]) == ("Empty", [])
    assert described["offsets"][0]["offset"] == 1


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_produce_ends_while_it_waits_for_a_line(
    broker: Broker, run: Run, start: Start, number: signal.Signals, status: int
) -> None:
    """Without waiting for the next line, and with the number of records that are safe."""
    topic = f"typed-{number}"
    run("topics", "create", topic, "-p", "1")
    process = start("produce", topic)
    assert process.stdin is not None
    process.stdin.write(b"first\nsecond\nhalf of a li")
    process.stdin.flush()
    assert run("consume", topic, "--from-beginning", "-n", "2").out == "first\nsecond\n"
    process.send_signal(number)
    assert children.wait(process) == status
    assert process.stderr is not None
    assert process.stderr.read() == b"barnabas: stopped: 2 records were acknowledged\n"


def test_an_interrupted_produce_ends_without_acknowledgements(broker: Broker, run: Run, start: Start) -> None:
    """A broker that has the record gets some time to say so."""
    run("topics", "create", "unacknowledged", "-p", "1")
    with broker.faults.hold("Produce") as held:
        process = start("produce", "unacknowledged")
        assert process.stdin is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        held.wait_held()
        process.send_signal(signal.SIGINT)
        out, err = children.finish(process)
    assert (process.returncode, out, err) == (130, b"", b"barnabas: stopped: 0 records were acknowledged\n")


def test_an_interrupted_member_ends_without_an_answer(broker: Broker, run: Run, start: Start) -> None:
    """Its last commit is not answered either."""
    run("topics", "create", "unleft", "-p", "1")
    run("produce", "unleft", "-q", stdin=b"one\n")
    with broker.faults.hold(["OffsetCommit", "LeaveGroup"]):
        process = start("consume", "unleft", "-g", "unleft", "--from-beginning")
        assert process.stdout is not None
        assert process.stdout.readline() == b"one\n"
        process.send_signal(signal.SIGINT)
        out, err = children.finish(process)
    assert (process.returncode, out, err) == (130, b"", b"")
