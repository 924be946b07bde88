"""The outcome of each test, from the lines of `recorder.py`."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

PASSED: Final = "passed"
FAILED: Final = "failed"
SKIPPED: Final = "skipped"
LAST_PHASES: Final = ("teardown", "collect", "???")
"""The phases that end a test. The last one is xdist's, of a test that crashed its worker."""


@dataclass
class Outcome:
    """One test in all its phases."""

    test: str
    outcome: str = PASSED
    seconds: float = 0.0
    processor_seconds: float = 0.0
    is_live: bool = False
    has_ended: bool = False
    text: str = ""
    """The failures as pytest prints them, or the output of a passed test if that was requested."""
    seeds: list[str] = field(default_factory=list)

    def add(self, line: dict[str, Any]) -> None:
        """Add a phase."""
        self.seconds += line["seconds"]
        self.processor_seconds += line.get("processor_seconds", 0.0)
        self.is_live = self.is_live or line["live"]
        self.has_ended = self.has_ended or line["phase"] in LAST_PHASES
        if line["outcome"] == FAILED:
            self.outcome = FAILED
        elif line["outcome"] == SKIPPED and self.outcome == PASSED:
            self.outcome = SKIPPED
        self.text += line.get("text", "")
        self.seeds += line.get("seeds", [])


def read_outcomes(file: Path) -> dict[str, Outcome]:
    """The outcomes of the finished tests, by test."""
    return {name: outcome for name, outcome in _read(file).items() if outcome.has_ended}


def read_unfinished(file: Path) -> list[str]:
    """The tests that began and did not end, at which a run broke off."""
    return [name for name, outcome in _read(file).items() if not outcome.has_ended]


def _read(file: Path) -> dict[str, Outcome]:
    found: dict[str, Outcome] = {}
    for line in _lines(file):
        if "started" in line:
            found[line["started"]] = Outcome(line["started"])
        else:
            found.setdefault(line["test"], Outcome(line["test"])).add(line)
    return found


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    """The recorded lines. A run that was killed may leave half a line at the end."""
    if not file.exists():
        return
    for line in file.read_text().splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue
