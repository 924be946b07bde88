"""The runner of the tiers: what failed tells at the end, and only live tests are run again."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tools.gate import outcomes, tiers
from tools.gate.report import report
from tools.gate.run import AGAIN_MAX, FLAKY_MAX, NO_TESTS, ROOT, Run, record_folder, tree_hash
from tools.gate.tiers import Part

pytestmark = pytest.mark.slow

TESTS = """
import pathlib
import pytest

HERE = pathlib.Path(__file__).parent

def fails_once(name):
    mark = HERE / name
    if not mark.exists():
        mark.touch()
        raise AssertionError("seed 4711: the first time")
    print("the second time")

def test_passes():
    pass

def test_deterministic():
    fails_once("deterministic")

@pytest.mark.live
def test_live():
    fails_once("live")

@pytest.mark.live
def test_live_that_fails():
    assert False, "each time"

@pytest.mark.alone
def test_alone():
    fails_once("alone")

@pytest.mark.full
def test_full():
    pass
"""


@pytest.fixture
def said() -> list[str]:
    return []


def run_of(folder: Path, tests: str, said: list[str], parts: tuple[Part, ...] = ()) -> Run:
    (folder / "test_these.py").write_text(tests)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\nmarkers =\n live\n alone\n full\n")
    paths = (str(folder),)
    parts = parts or (Part("all", "", paths),)
    finds_tools = {"PYTHONPATH": str(ROOT)}
    run = Run(parts, folder / "records", ["-p", "no:cacheprovider"], finds_tools, folder, said.append)
    run.run()
    return run


def short(names: list[str]) -> list[str]:
    return [name.partition("::")[2] for name in names]


def test_all_parts_run_and_only_live_tests_are_run_again(tmp_path: Path, said: list[str]) -> None:
    paths = (str(tmp_path),)
    parts = (Part("beside", "not full and not alone", paths, 2), Part("alone", "alone", paths))
    run = run_of(tmp_path, TESTS, said, parts)
    beside, alone = run.parts
    assert sorted(short(beside.failed)) == ["test_deterministic", "test_live_that_fails"]
    assert short(beside.flaky) == ["test_live"]
    assert short(alone.failed) == ["test_alone"]
    assert "test_these.py::test_full" not in beside.outcomes
    assert run.status == 1

    told = "\n".join(report(run, tmp_path))
    assert "FLAKY  test_these.py::test_live" in told
    assert "FAILED test_these.py::test_live_that_fails (again)" in told
    assert "FAILED test_these.py::test_deterministic seeds 4711" in told
    first, _, second = told.partition("===== test_these.py::test_live: the second time, passed")
    assert "seed 4711: the first time" in first
    assert "load " in first
    assert "the second time" in second
    assert list((tmp_path / "records").glob("*.xml"))


def flaky_tests(count: int) -> str:
    return f"""
import pathlib
import pytest

@pytest.mark.live
@pytest.mark.parametrize("number", range({count}))
def test_that_fails_once(number):
    mark = pathlib.Path(__file__).parent / str(number)
    seen = mark.exists()
    mark.touch()
    assert seen
"""


@pytest.mark.parametrize(("count", "status"), [(FLAKY_MAX, 0), (FLAKY_MAX + 1, 1)])
def test_few_flaky_tests_do_not_fail_the_run(count: int, status: int, tmp_path: Path, said: list[str]) -> None:
    run = run_of(tmp_path, flaky_tests(count), said)
    assert (run.status, len(run.flaky)) == (status, count)
    assert any("the run has failed" in line for line in report(run, tmp_path)) is (status == 1)


def test_many_live_tests_that_fail_are_no_luck(tmp_path: Path, said: list[str]) -> None:
    run = run_of(tmp_path, flaky_tests(AGAIN_MAX + 1), said)
    assert (run.status, len(run.parts[0].failed)) == (1, AGAIN_MAX + 1)
    assert not run.parts[0].again


def test_a_part_that_breaks_off_fails_and_names_what_it_ran(tmp_path: Path, said: list[str]) -> None:
    tests = "import os\ndef test_before(): pass\ndef test_that_ends_pytest(): os._exit(7)"
    paths = (str(tmp_path),)
    run = run_of(tmp_path, tests, said, (Part("one", "", paths), Part("two", "", paths)))
    assert [each.broke_off for each in run.parts] == [True, True]
    assert short(run.parts[0].unfinished) == ["test_that_ends_pytest"]
    assert run.status == 1
    assert any("BROKE OFF one: pytest ended with status 7" in line for line in report(run, tmp_path))


def test_another_worker_runs_the_tests_of_a_crashed_one(tmp_path: Path, said: list[str]) -> None:
    """The replacement collects the same tests, also those that are recorded by then."""
    tests = "import os\ndef test_before(): pass\ndef test_ends_its_worker(): os._exit(7)\ndef test_after(): pass\n"
    (tmp_path / "test_others.py").write_text("def test_beside(): pass\n")
    run = run_of(tmp_path, tests, said, (Part("beside", "", (str(tmp_path),), 2),))
    (part,) = run.parts
    assert short(part.failed) == ["test_ends_its_worker"]
    assert sorted(short(list(part.outcomes))) == ["test_after", "test_before", "test_beside", "test_ends_its_worker"]


def test_an_interrupted_run_resumes_and_keeps_failures(tmp_path: Path, said: list[str]) -> None:
    paths = (str(tmp_path),)
    part = Part("one", "", paths)
    tests = "import os, pathlib\ndef test_fails(): assert False\ndef test_ends(): os._exit(7)\n"
    run_of(tmp_path, tests, said, (part,))
    resumed = run_of(tmp_path, tests.replace("os._exit(7)", "pass"), said, (part,))
    assert resumed.parts[0].resumed == 1
    assert short(resumed.parts[0].failed) == ["test_fails"]
    assert {name.partition("::")[2] for name in resumed.parts[0].outcomes} == {"test_fails", "test_ends"}


def test_only_the_same_tree_goes_on(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=e@x", *words], cwd=tmp_path, check=True)

    git("init", "-q")
    (tmp_path / ".gitignore").write_text("artifacts/\n")
    (tmp_path / "file").write_text("1")
    git("add", ".")
    git("commit", "-qm", "m")
    folder = record_folder(tmp_path, "full", True, [])
    (folder / "record").write_text("outcomes")
    assert (record_folder(tmp_path, "full", True, []) / "record").exists()
    (tmp_path / "file").write_text("2")
    assert not (record_folder(tmp_path, "full", True, []) / "record").exists()
    changed = tree_hash(tmp_path, [])
    (tmp_path / "new").write_text("")
    assert tree_hash(tmp_path, []) != changed != tree_hash(tmp_path, ["-k", "x"])


def test_half_a_line_of_a_killed_run_is_passed_over(tmp_path: Path) -> None:
    record = tmp_path / "record"
    line = {"test": "a", "phase": "teardown", "outcome": "passed", "seconds": 1, "live": False}
    record.write_text(json.dumps({"started": "a"}) + "\n" + json.dumps(line) + '\n{"test": "b", "ph')
    assert list(outcomes.read_outcomes(record)) == ["a"]


SPINNING = """
import subprocess, sys, time

SPIN = "import time\\nwhile time.process_time() < 0.2: pass"

def test_in_itself():
    exec(SPIN.replace("0.2", str(time.process_time() + 0.2)))

def test_in_a_child():
    subprocess.run([sys.executable, "-c", SPIN], check=True)

def test_nothing():
    pass
"""


def test_the_processor_time_of_each_test_is_recorded(tmp_path: Path, said: list[str]) -> None:
    [part] = run_of(tmp_path, SPINNING, said).parts
    used = {name.partition("::")[2]: each.processor_seconds for name, each in part.outcomes.items()}
    assert min(used["test_in_itself"], used["test_in_a_child"]) >= 0.15
    assert used["test_nothing"] < min(used["test_in_itself"], used["test_in_a_child"])


@pytest.mark.parametrize(
    ("has", "gate", "full"),
    [
        ((), ["beside others"], []),
        (("hypothesis",), ["beside others"], ["at length"]),
        (("full",), [], ["at length"]),
        (("full", "hypothesis"), [], ["at length"]),
        (("alone",), [], ["alone"]),
        (("alone", "full"), [], ["alone"]),
        (("alone", "hypothesis"), [], ["alone"]),
    ],
)
def test_markers_choose_the_part(has: tuple[str, ...], gate: list[str], full: list[str]) -> None:
    """The parts on ZooKeeper and without uvloop run tests a second time."""

    def parts(tier: Sequence[Part]) -> list[str]:
        given = {name: name in has for name in ("alone", "full", "hypothesis")}
        return [part.name for part in tier if not part.environment and eval(part.markers, {}, given)]

    assert parts(tiers.GATE) == gate
    assert parts(tiers.FULL) == full


@pytest.mark.parametrize("part", tiers.FULL, ids=lambda part: part.name)
def test_each_part_knows_the_profile_of_hypothesis(part: Part) -> None:
    """pytest loads the conftest.py of the part's own folders alone before it reads options."""
    options = ["--hypothesis-profile=at-random", "--collect-only", "-q", "--ignore-glob=*/test_*.py"]
    command = [sys.executable, "-m", "pytest", *options, *part.paths]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout + done.stderr


def test_a_run_without_a_test_is_no_success(tmp_path: Path, said: list[str]) -> None:
    assert run_of(tmp_path, "", said).status == NO_TESTS
