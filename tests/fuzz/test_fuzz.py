"""A few thousand broken inputs for every reader of foreign bytes, the same ones each time, and everything that once
broke one. `make fuzz` goes on for longer, with other inputs."""

import importlib.util
import os
import random
import sys
from pathlib import Path

import pytest

from tests.support.required import tool_missing
from tools.fuzz.mutation import Mutator
from tools.fuzz.session import Growth, Sample, Session, corpus, run_one
from tools.fuzz.target import ROOT, Target
from tools.fuzz.targets import TARGETS
from tools.processes import children

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # libraries warn of odd keys and certificates

INPUTS = 3_000


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_broken_bytes_end_in_the_documented_errors(target: Target) -> None:
    mutator = Mutator(target.seeds(), random.Random(f"make test {target.name}"))
    for _ in range(INPUTS):
        run_one(target, mutator.next())


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_seeds_and_what_once_broke_a_reader(target: Target) -> None:
    for data in target.seeds():
        target.run(data)
    for path in corpus(target):
        run_one(target, path.read_bytes())


def test_mutation_is_reproducible() -> None:
    def some() -> list[bytes]:
        mutator = Mutator([bytes(100), b"abc"], random.Random(5))
        return [mutator.next() for _ in range(500)]

    assert some() == some()
    assert len(set(some())) > 400


def test_each_bug_is_kept_once_and_replayed(tmp_path: Path) -> None:
    def run(data: bytes) -> None:
        if len(data) > 2:
            raise ValueError
        if data == b"xx":
            raise KeyError

    target = Target("planted", run, lambda: [b""])
    session = Session(target, tmp_path)
    for data in (b"x", b"xx", b"xxx", b"xxxx", b""):
        session.feed(data)
    assert session.inputs == 5
    assert {path.read_bytes() for path in corpus(target, tmp_path)} == {b"xx", b"xxx"}


@pytest.mark.full  # memory is that of the process, in which many other tests have run
@pytest.mark.parametrize("leaks", [False, True])
def test_memory_is_compared_by_tenths_of_the_inputs(leaks: bool, tmp_path: Path) -> None:
    held: list[bytes] = []

    def run(_data: bytes) -> None:
        if leaks:
            held.append(b"x" * 100_000)

    session = Session(Target("planted", run, lambda: [b""]), tmp_path)
    for _ in range(100):
        for _ in range(10):
            session.feed(b"")
        session.sample_memory()
    growth = session.growth
    assert growth.is_too_much == leaks
    assert (growth.late.kib - growth.early.kib > 80_000) == leaks  # nine tenths of 97,656 KiB


@pytest.mark.parametrize(("blocks", "kib", "is_too_much"), [(100, 100, False), (106, 100, True), (100, 106, True)])
def test_growth_of_memory_and_of_pythons_blocks_is_bounded(blocks: int, kib: int, is_too_much: bool) -> None:
    samples = [Sample(5, 50, 50), Sample(10, 100, 100), Sample(50, 200, 200), Sample(100, kib, blocks)]
    assert Growth.of(samples).is_too_much == is_too_much


def test_many_small_blocks_are_counted() -> None:
    before = Sample.take(0)
    held: list[list[object]] = [[] for _ in range(100_000)]
    assert 90_000 < Sample.take(0).blocks - before.blocks < 110_000
    del held


PLANTED = """
import sys
from pathlib import Path
from tools.fuzz.engines import fuzz_with_atheris
from tools.fuzz.target import Target

def run(data):
    if data[:2] == b"ab" and sys.argv[1] == "bug":
        raise ValueError

print(fuzz_with_atheris(Target("planted", run, lambda: [b"a", b"b"]), 20, 1, Path(sys.argv[2])))
"""


@pytest.mark.full
@pytest.mark.parametrize("planted", ["bug", "nothing"])
def test_atheris_finds_what_is_planted(planted: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("atheris") is None:
        tool_missing("there is no atheris for this machine")
    command = [sys.executable, "-c", PLANTED, planted, str(tmp_path)]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = children.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == str(planted == "nothing"), done.stdout + done.stderr
    assert len(list((tmp_path / "planted").iterdir())) == (planted == "bug")
