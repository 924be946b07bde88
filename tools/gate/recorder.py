"""A pytest plugin: records the outcome of each test as lines of JSON, and the machine's load during a failure.

`--record FILE` appends a line when a test starts, and one for each phase with a result. For a failed test it contains
the whole failure, so that the final table can show it again. `--recorded FILE` deselects the tests whose outcome is in
that file; an interrupted run is continued in this way.
"""

import json
import os
import re
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Final, TextIO

import pytest

from tools.gate.outcomes import read_outcomes

LIVE: Final = "live"
PROCESSORS: Final = "processor_seconds"
SEED: Final = re.compile(r"\bseed\b\W{0,3}(\d+)|@seed\((\d+)\)|@reproduce_failure\([^)]*\)", re.IGNORECASE)
"""The seeds that tests and Hypothesis print."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gate")
    group.addoption("--record", metavar="FILE", help="append what became of each test to FILE, as lines of JSON")
    group.addoption("--record-passed", action="store_true", help="record the output of tests that pass, too")
    group.addoption("--recorded", metavar="FILE", help="leave out the tests whose outcome FILE holds")


def pytest_configure(config: pytest.Config) -> None:
    is_worker = hasattr(config, "workerinput")
    if config.getoption("--record") and not is_worker:
        recorder = Recorder(Path(config.getoption("--record")), config.getoption("--record-passed"))
        config.pluginmanager.register(recorder, "gate-recorder")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    file = config.getoption("--recorded")
    if file and Path(file).exists():
        known = read_outcomes(Path(file))
        left_out = [item for item in items if item.nodeid in known]
        items[:] = [item for item in items if item.nodeid not in known]
        config.hook.pytest_deselected(items=left_out)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put into the report's properties, which a worker passes on to the main process, whether the test is live, and the
    processor time of the phase."""
    report = yield
    if item.get_closest_marker(LIVE) and (LIVE, True) not in report.user_properties:
        report.user_properties.append((LIVE, True))
    report.user_properties.append((PROCESSORS, _processor_time.lap_s()))
    return report


class ProcessorTime:
    """The processor time of this process and its ended children. A child that outlives a test counts for the test in
    which it ends, and one that nobody waits for is not counted."""

    def __init__(self) -> None:
        self._last_s = self._now_s()

    def lap_s(self) -> float:
        """The seconds since the last lap."""
        before, self._last_s = self._last_s, self._now_s()
        return self._last_s - before

    @staticmethod
    def _now_s() -> float:
        return sum(os.times()[:4])


_processor_time = ProcessorTime()


class Recorder:
    """Writes the lines, in the main process, which receives the reports of all workers."""

    def __init__(self, file: Path, has_passed: bool) -> None:
        self._has_passed = has_passed
        self._lines: TextIO = file.open("a", buffering=1)
        self._running: set[str] = set()
        self._neighbours: dict[str, set[str]] = {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        for other in self._running:
            self._neighbours[other].add(nodeid)
        self._neighbours[nodeid] = set(self._running)
        self._running.add(nodeid)
        self._write(started=nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._running.discard(nodeid)
        self._neighbours.pop(nodeid, None)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            report.sections.append(("the machine meanwhile", self._meanwhile(report.nodeid)))
        # The captured output is in the report of each phase, also that of earlier phases.
        is_told = report.failed or (self._has_passed and report.when == "teardown")
        self._write(
            test=report.nodeid,
            phase=report.when,
            outcome=report.outcome,
            seconds=round(report.duration, 3),
            processor_seconds=round(processor_seconds(report), 2),
            live=(LIVE, True) in report.user_properties,
            **({"text": full_text(report), "seeds": seeds(report)} if is_told else {}),
        )

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            what = {"test": report.nodeid, "phase": "collect", "outcome": report.outcome}
            self._write(**what, seconds=0, live=False, text=report.longreprtext, seeds=[])

    def pytest_unconfigure(self) -> None:
        self._lines.close()

    def _meanwhile(self, nodeid: str) -> str:
        load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
        beside = sorted(self._neighbours.get(nodeid, ()))[-5:]
        return f"load {load} on {os.cpu_count()} processors\nbeside {', '.join(beside) or 'no other test'}"

    def _write(self, **fields: Any) -> None:
        self._lines.write(json.dumps(fields) + "\n")


def processor_seconds(report: pytest.TestReport) -> float:
    """The processor time of a phase; 0 for one whose worker crashed."""
    return next((value for name, value in report.user_properties if name == PROCESSORS and isinstance(value, float)), 0)


def full_text(report: pytest.TestReport) -> str:
    """The failure as pytest prints it, with all captured output."""
    return "\n".join([report.longreprtext, *(f"--- {title}\n{text}" for title, text in report.sections)])


def seeds(report: pytest.TestReport) -> list[str]:
    """The seeds printed by a failed test."""
    return list(dict.fromkeys(_printed_seeds(full_text(report))))


def _printed_seeds(text: str) -> Iterator[str]:
    for found in SEED.finditer(text):
        yield found.group(1) or found.group(2) or found.group(0)
