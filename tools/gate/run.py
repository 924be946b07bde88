"""Runs all parts of a tier, also after a failure, and runs failed live tests once more."""

import contextlib
import hashlib
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tools.gate.outcomes import FAILED, PASSED, Outcome, read_outcomes, read_unfinished
from tools.gate.tiers import Part

ROOT: Final = Path(__file__).resolve().parent.parent.parent
TESTS_FAILED: Final = 1
NO_TESTS: Final = 5
ORDINARY: Final = (0, TESTS_FAILED, NO_TESTS)
"""pytest's exit statuses for a complete run."""
FLAKY_MAX: Final = 2
"""The run fails if more tests than this pass only in the second attempt."""
AGAIN_MAX: Final = 10
"""If more live tests than this fail, none is run again: so many failures are not chance."""


@dataclass
class PartRun:
    """The results of a part."""

    part: Part
    status: int = 0
    seconds: float = 0.0
    processor_seconds: float = 0.0
    resumed: int = 0
    """The number of tests whose outcome is taken from an earlier, interrupted run."""
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    unfinished: list[str] = field(default_factory=list)
    again: dict[str, Outcome] = field(default_factory=dict)
    """The outcomes of the second attempt of failed live tests."""

    @property
    def broke_off(self) -> bool:
        """Whether pytest stopped before the end of its tests."""
        return self.status not in ORDINARY

    @property
    def flaky(self) -> list[str]:
        """The tests that passed in the second attempt."""
        return [name for name, outcome in self.again.items() if outcome.outcome == PASSED]

    @property
    def failed(self) -> list[str]:
        """The tests that failed for good."""
        flaky = set(self.flaky)
        return [name for name, each in self.outcomes.items() if each.outcome == FAILED and name not in flaky]

    def count(self, outcome: str) -> int:
        return sum(each.outcome == outcome for each in self.outcomes.values())


class Run:
    """The parts of a tier, run in `root`; `folder` gets a record and JUnit XML for each."""

    def __init__(
        self,
        parts: Sequence[Part],
        folder: Path,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        root: Path = ROOT,
        say: Callable[[str], None] = lambda line: print(line, flush=True),
    ) -> None:
        self.parts = [PartRun(part) for part in parts]
        self._folder = folder
        self._arguments = arguments
        self._environment = environment or {}
        self._root = root
        self._say = say

    def run(self) -> None:
        """Run every part, then the live tests that failed."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for each in self.parts:
            self._run_part(each)
        live = {(each.part.name, name) for each in self.parts for name in each.failed if each.outcomes[name].is_live}
        if len(live) > AGAIN_MAX:
            self._say(f"{len(live)} live tests failed: too many for luck, and none is run again")
            return
        for each in self.parts:
            self._run_again(each, [name for name in each.failed if (each.part.name, name) in live])

    def _run_part(self, each: PartRun) -> None:
        record, known = self._file(each.part, "jsonl"), self._file(each.part, "known")
        # A copy: the worker that replaces a crashed one has to collect the same tests as the others.
        known.write_bytes(record.read_bytes() if record.exists() else b"")
        each.resumed = len(read_outcomes(record))
        beside = ["-p", "tools.gate.workers", "-n", str(each.part.workers), "--max-worker-restart", "4",
                  "--no-loadscope-reorder"] if each.part.workers else []  # fmt: skip
        began, busy = time.monotonic(), _children_s()
        each.status = self._pytest(
            each.part,
            [*beside, "-m", each.part.markers, "--record", str(record), "--recorded", str(known),
             "--junitxml", str(self._junit_file(each.part)), *self._arguments, *each.part.paths],
        )  # fmt: skip
        each.seconds, each.processor_seconds = time.monotonic() - began, _children_s() - busy
        each.outcomes = read_outcomes(record)
        each.unfinished = read_unfinished(record) if each.broke_off else []

    def _run_again(self, each: PartRun, names: Sequence[str]) -> None:
        if not names:
            return
        self._say(f"\n{each.part.name}: {len(names)} live tests run once more, alone")
        record = self._file(each.part, "again.jsonl")
        record.unlink(missing_ok=True)
        self._pytest(each.part, ["--record", str(record), "--record-passed", *names])
        each.again = read_outcomes(record)

    def _pytest(self, part: Part, arguments: Sequence[str]) -> int:
        # A test is interrupted after ten minutes (pyproject.toml). If even that has no effect, as inside a client's
        # native library, its process ends after `test_s_max`. So every run ends.
        ends = ["-o", f"faulthandler_timeout={part.test_s_max}", "-o", "faulthandler_exit_on_timeout=true"]
        command = [sys.executable, "-m", "pytest", "-p", "tools.gate.recorder", *ends, *arguments]
        variables = {**os.environ, **self._environment, **part.environment}
        # Tests start hundreds of processes: compiled bytecode is kept for the next.
        variables.pop("PYTHONDONTWRITEBYTECODE", None)
        self._say(f"\n{part.name}: pytest -m '{part.markers}' {' '.join(part.paths)}")
        return subprocess.run(command, cwd=self._root, env=variables, check=False).returncode

    def _file(self, part: Part, ending: str) -> Path:
        return self._folder / f"{part.name.replace(' ', '-')}.{ending}"

    def _junit_file(self, part: Part) -> Path:
        """A file that does not exist yet: a continued run does not overwrite the file of the interrupted one."""
        number, file = 1, self._file(part, "xml")
        while file.exists():
            number += 1
            file = self._file(part, f"{number}.xml")
        return file

    @property
    def flaky(self) -> list[str]:
        return [name for each in self.parts for name in each.flaky]

    @property
    def status(self) -> int:
        """0 for success, 5 (pytest's) if there was no test at all."""
        if any(each.failed or each.broke_off for each in self.parts) or len(self.flaky) > FLAKY_MAX:
            return TESTS_FAILED
        return 0 if any(each.outcomes for each in self.parts) else NO_TESTS


def record_folder(root: Path, tier: str, is_resumable: bool, arguments: Sequence[str]) -> Path:
    """The folder for a run's records: empty, unless it continues an interrupted run of the same tree."""
    folder = root / "artifacts" / "tests" / tier
    mark = folder / "tree"
    tree = tree_hash(root, arguments)
    if not (is_resumable and mark.exists() and mark.read_text() == tree):
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    mark.write_text(tree)
    return folder


def tree_hash(root: Path, arguments: Sequence[str]) -> str:
    """A hash of the files of a checkout, including uncommitted ones, and of pytest's arguments."""

    def git(*words: str) -> bytes:
        with contextlib.suppress(FileNotFoundError):  # a machine without git: all trees count as the same
            return subprocess.run(["git", *words], cwd=root, capture_output=True, check=False).stdout
        return b""

    found = hashlib.sha256(git("rev-parse", "HEAD") + git("diff", "HEAD", "--binary") + repr(arguments).encode())
    for name in git("ls-files", "--others", "--exclude-standard", "-z").split(b"\0"):
        path = root / os.fsdecode(name)
        if name and path.is_file():
            found.update(name + path.read_bytes())
    return found.hexdigest()


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
