"""`produce` and `consume` while the only broker is away, or the group's coordinator: they continue afterwards."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from barnabas.testing import Broker
from tools.processes import children

pytestmark = [pytest.mark.slow, pytest.mark.live]
Run = Callable[..., Any]
Start = Callable[..., Any]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def test_produce_goes_on_when_the_only_broker_is_back(broker: Broker, run: Run, start: Start) -> None:
    run("topics", "create", "lines", "-p", "1")
    process = start("produce", "lines")
    process.stdin.write(b"before\n")
    process.stdin.flush()
    assert run("consume", "lines", "--from-beginning", "-n", "1").out == "before\n"
    for count, line in enumerate((b"first\n", b"second\n"), 2):  # each time it is told
        broker.kill()
        process.stdin.write(line)
        process.stdin.flush()
        told = process.stderr.readline().decode()
        assert re.fullmatch(
            rf"barnabas: no broker answers at {broker.bootstrap_servers} \(connection refused\);"
            r" trying for another 11\d s\n",
            told,
        )
        broker.start()
        assert run("consume", "lines", "--from-beginning", "-n", str(count)).out.encode().endswith(line)
    _, err = children.finish(process)
    assert (process.returncode, re.sub(rb"\d+\.\d\d", b"N", err)) == (0, b"3 records to lines in N s\n")


@pytest.mark.parametrize("options", [[], ["-g", "readers"]])
def test_consume_goes_on_when_the_only_broker_is_back(
    broker: Broker, run: Run, start: Start, options: list[str]
) -> None:
    run("topics", "create", "lines", "-p", "1")
    run("produce", "lines", "-q", stdin=b"one\n")
    process = start("consume", "lines", "--from-beginning", "-n", "3", *options)
    assert process.stdout.readline() == b"one\n"
    for number, line in enumerate((b"two\n", b"three\n")):
        broker.kill()
        told = process.stderr.readline().decode()
        assert told.startswith("barnabas: "), number
        assert told.endswith("; trying again until it works\n")
        broker.start()
        run("produce", "lines", "-q", stdin=line)
        assert process.stdout.readline() == line
    _, err = children.finish(process)
    assert (process.returncode, err) == (0, b"")
    if options:
        assert run("groups", "describe", "readers", "--json").json[0]["offsets"][0]["offset"] == 3


def test_consume_stops_after_its_timeout_without_a_broker(broker: Broker, start: Start) -> None:
    broker.create_topic("lines", 1)
    broker.topic("lines").produce("one")
    process = start("consume", "lines", "--from-beginning", "--timeout-ms", "3000")
    assert process.stdout.readline() == b"one\n"
    broker.kill()
    _, err = children.finish(process)
    assert (process.returncode, err.count(b"\n")) == (0, 1)


PASSING = ("COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS")


@pytest.mark.parametrize("api", ["OffsetCommit", "OffsetFetch"])
@pytest.mark.parametrize("error", PASSING)
def test_a_coordinator_that_is_away_is_waited_for(broker: Broker, run: Run, api: str, error: str) -> None:
    run("topics", "create", "lines", "-p", "1")
    run("produce", "lines", "-q", stdin=b"one\n")
    fault = broker.faults.fail(api, error, times=2)
    done = run("consume", "lines", "-g", "readers", "--from-beginning", "-e")
    assert (done.status, done.out, done.err) == (0, "one\n", "")
    assert fault.hits == 2
    assert run("groups", "describe", "readers", "--json").json[0]["offsets"][0]["offset"] == 1


def test_reading_goes_on_while_commits_fail(broker: Broker, run: Run, start: Start) -> None:
    """The last one makes up for those that failed."""
    run("topics", "create", "lines", "-p", "1")
    run("produce", "lines", "-q", stdin=b"one\n")
    with broker.faults.fail("OffsetCommit", "COORDINATOR_NOT_AVAILABLE") as fault:
        process = start("consume", "lines", "-g", "readers", "--from-beginning", "-n", "2")
        assert process.stdout.readline() == b"one\n"
        told = process.stderr.readline().decode()
        assert told.startswith("barnabas: cannot commit lines-0: ")
        assert told.endswith(" (COORDINATOR_NOT_AVAILABLE); trying again until it works\n")
        run("produce", "lines", "-q", stdin=b"two\n")
        assert process.stdout.readline() == b"two\n"
        fault.remove()
        _, err = children.finish(process)
    assert (process.returncode, err) == (0, b"")
    assert run("groups", "describe", "readers", "--json").json[0]["offsets"][0]["offset"] == 2


def test_a_commit_that_cannot_be_ends_the_command(broker: Broker, run: Run) -> None:
    run("topics", "create", "lines", "-p", "1")
    run("produce", "lines", "-q", stdin=b"one\n")
    with broker.faults.fail("OffsetCommit", "GROUP_AUTHORIZATION_FAILED"):
        done = run("consume", "lines", "-g", "readers", "--from-beginning", "-e")
    assert (done.status, done.out) == (1, "one\n")
    assert done.err.startswith("barnabas: cannot commit lines-0: ")
