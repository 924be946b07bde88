"""Ctrl-C at each point of a command that works with a broker: one signal ends it, without a traceback, and without
waiting for a broker that never answers. The points: `tests/support/interrupted_command.py`.

Two were lost. One came when the event loop was about to wait: it was noticed when the wait was over, 30 s later. The
other came when the work was done: the command went on as if there had been none.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable

import pytest

from barnabas.testing import Broker
from tests.broker.cli.test_interrupts import ENDED_BY_SIGNAL, REMOTE, STATUS
from tests.support.interrupted_command import LONG_WAIT, POINT, POLL, SILENT, Ending, Job, endings

pytestmark = pytest.mark.slow

TOLD = re.compile(r"barnabas: stopped: (\d+) records? w\w+ acknowledged\n|(\d+) records? to \w+ in [\d.]+ s\n")
"""The final line of `produce`."""


def interrupted(job: Job) -> list[Ending]:
    """How a command ended at the points that it came to; each time it was the signal that ended it."""
    counts, ended = endings(job)
    there = [each for each in ended if each.place]
    assert counts.main
    assert len(there) > len(ended) / 2
    bad = [each for each in there if each.status not in (STATUS, ENDED_BY_SIGNAL) or each.waited_s]
    assert not bad
    return there


def assert_silent(ended: Iterable[Ending]) -> None:
    """Nothing was printed, but by `produce` how little it has done."""
    nothing = ("", "barnabas: stopped: 0 records were acknowledged\n")
    assert not [each for each in ended if each.out or each.err not in nothing]


def test_a_broker_that_never_answers() -> None:
    """A sample of lines, and all waits of the event loop."""
    ended = interrupted(Job(["transactions", "describe", "id", "-b", SILENT], every=200))
    assert_silent(ended)
    assert any(each.kind == POLL and each.place == LONG_WAIT for each in ended)


@pytest.mark.full
@pytest.mark.parametrize("first", range(1, 9))
def test_each_line_before_a_broker_that_never_answers(first: int) -> None:
    assert_silent(interrupted(Job(["transactions", "describe", "id", "-b", SILENT], first=first, every=8)))


@pytest.mark.full
@pytest.mark.parametrize("command", REMOTE)
def test_each_command_before_a_broker_that_never_answers(command: str) -> None:
    assert_silent(interrupted(Job([*command.split(), *REMOTE[command], "-b", SILENT], every=150)))


@pytest.mark.full
def test_the_way_to_the_broker() -> None:
    """Imports, options and help: nobody waits for the signal there, and it ends the process."""
    line = ["transactions", "describe", "id", "-b", SILENT]
    assert_silent(interrupted(Job(line, begin="_open_what_is_closed", every=20_000, others=False)))


@pytest.mark.full
@pytest.mark.parametrize("first", range(1, 90, 10))
def test_a_broker_that_answers(broker: Broker, first: int) -> None:
    """The command prints what was asked for, or nothing."""
    job = Job(["topics", "list", "--json", "-b", broker.bootstrap_servers], first=first, every=90, others=first == 1)
    for each in interrupted(job):
        assert each.err == ""
        assert each.out == "" or isinstance(json.loads(each.out), list)


@pytest.mark.parametrize(("topic", "every"), [("sampled", 3000), pytest.param("dense", 40, marks=pytest.mark.full)])
def test_produce_tells_what_is_written(broker: Broker, topic: str, every: int) -> None:
    """It may write more than it heard of; where it says nothing, it wrote nothing."""
    broker.create_topic(topic, partitions=1)
    job = Job(["produce", topic, "-b", broker.bootstrap_servers], every=every, stdin=f"{POINT}\n{POINT}\n")
    ended = interrupted(job)
    written = Counter((record.value or b"").decode() for record in broker.topic(topic).records())
    for each in ended:
        told = TOLD.fullmatch(each.err)
        count = int(told[1] or told[2]) if told else 0
        assert told or not each.err, each
        assert each.out == "", each
        assert count <= written[f"{each.kind} {each.number}"] <= (2 if told else 0), each
