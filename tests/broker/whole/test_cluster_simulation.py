"""A cluster in virtual time, with faults of its processes, disks, network and metadata store: nothing that clients were
told is taken back, and a seed tells one story (tools/simulation).
"""

import hashlib
import os
import random
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

from tools.processes import children
from tools.simulation.run import simulate
from tools.simulation.world.disk import SimulatedDisk

FAULTS = (
    "killed", "without power", "stopped", "paused", "session expired", "cut", "reset", "slow", "clock jumped",
    "disk full", "disk failing", "connection lost",
)  # fmt: skip
HAPPENS = (
    "former sessions ended", "refused by disks", "producers died", "topics deleted", "rebalances of members",
    "compacted", "ended by retention",
)  # fmt: skip
"""The events that faults and clients cause."""
MOVES = ("moves begun", "moves done")

BUDGET = 200
"""How many seeds are tried for what not each of them brings about."""


def simulate_all(brokers: int, seeds: range, seconds: float) -> Counter[str]:
    """Nothing is wrong with any of the seeds; what happened in all of them together."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        print(f"seed {seed}")
        outcome = simulate(seed, seconds, brokers=brokers)
        assert outcome.wrong == [], f"seed {seed}"
        counts.update(outcome.counts)
    print(counts)
    return counts


@pytest.mark.slow
@pytest.mark.parametrize(("brokers", "seconds"), [(1, 20), (3, 20), (5, 8)])
def test_whatever_fails_nothing_is_wrong(brokers: int, seconds: float) -> None:
    """One seed, which holds for any: what happens in it changes with the code."""
    assert simulate_all(brokers, range(1, 2), seconds)["acknowledged"]


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("brokers", "seeds"), [(1, range(8, 18)), (3, range(8, 43)), (5, range(8, 18))])
def test_whatever_fails_in_many_runs_nothing_is_wrong(brokers: int, seeds: range) -> None:
    """And each fault is there."""
    counts = simulate_all(brokers, seeds, 60)
    wanted = {1: ("cut",), 3: (*FAULTS, *HAPPENS), 5: (*FAULTS, *MOVES)}[brokers]
    assert [what for what in wanted if not counts[what]] == []
    assert sum(counts[fault] for fault in FAULTS) >= 3 * len(seeds)
    for what, least in (("acknowledged", 50), ("transactions", 5), ("commits", 10)):
        assert counts[what] > least * len(seeds), what


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_a_broker_whose_disk_was_replaced_costs_nothing() -> None:
    """Also one that was alone in an ISR: others are elected in its place."""
    for seed in range(BUDGET):
        outcome = simulate(seed, 20)
        assert outcome.wrong == [], f"seed {seed}"
        if outcome.counts.get("disk of the last in sync replaced"):
            return
    raise AssertionError("no disk was replaced while its broker was alone")


@pytest.mark.full  # the gate asks the command, below
def test_a_seed_tells_the_same_story_again() -> None:
    stories = [simulate(seed, 2, brokers=3).log for seed in (3, 3, 4)]
    assert len(stories[0]) > 100
    assert stories[0] == stories[1] != stories[2]


@pytest.mark.slow
def test_a_disk_forgets_only_what_no_crash_undoes() -> None:
    """Every state that a crash can leave is the same, whether the disk knows its whole story or not."""
    draw = random.Random(5)
    whole, forgetful = disks = SimulatedDisk(), SimulatedDisk()
    forgetful.operations_max = 20
    names = [f"/{folder}/{name}" for folder in "ab" for name in "1234"]
    for disk in disks:
        disk.make_directory("/a")
        disk.make_directory("/b")
    for _ in range(200):
        what, name, other, size = draw.randrange(8), draw.choice(names), draw.choice("1234"), draw.randrange(2_000)
        for disk in disks:
            _change(disk, what, name, other, size)
        assert _after_crashes(whole) == _after_crashes(forgetful)
        assert whole.tree() == forgetful.tree()
    assert len(whole.operations) > 5 * len(forgetful.operations) > 0


def _after_crashes(disk: SimulatedDisk) -> list[dict[str, bytes | None]]:
    count = len(disk.operations)
    return [disk.crash(count, outcome).tree() for outcome in disk.outcomes(count, random.Random(1), 0)]


def _change(disk: SimulatedDisk, what: int, name: str, other: str, size: int) -> None:
    folder, _, _ = name.rpartition("/")
    if what == 0:
        disk.sync_directory(folder)
    elif what == 1 and disk.exists(name):
        disk.rename(name, f"{folder}/{other}")
    elif what == 2 and disk.exists(name):
        disk.unlink(name)
    else:
        descriptor = disk.open(name, create=True)
        if what == 3:
            disk.truncate(descriptor, size)
        elif what < 6:
            disk.pwrite(descriptor, b"%d" % size * 100, size)
        else:
            disk.sync(descriptor)
        disk.close(descriptor)


class LyingDisk(SimulatedDisk):
    """Says that it has written what it only keeps in its cache."""

    def sync(self, descriptor: int) -> None:
        pass

    def sync_directory(self, path: str) -> None:
        pass


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_records_lost_by_a_disk_are_found() -> None:
    """The control: with power cuts on a disk that does not sync, records that were acknowledged must be missed."""
    for seed in range(BUDGET):
        outcome = simulate(seed, 40, brokers=1, new_disk=LyingDisk)
        print(seed, outcome.counts, outcome.wrong[:3])
        assert not outcome.wrong or outcome.counts.get("without power")
        if outcome.wrong:
            return
    raise AssertionError("nobody missed anything")


@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    """`make simulate` as a developer starts it: the same log from two processes, whatever their hash seeds."""
    logs = []
    for life in range(2):
        log = tmp_path / f"{life}.log"
        ran = children.run(
            ["make", "--no-print-directory", "simulate", "SEED=23", "SECONDS=2", f"ARGS=--log {log}"],
            cwd=Path(__file__).resolve().parents[3],
            env={**os.environ, "PYTHONHASHSEED": str(life + 7)},
            capture_output=True,
            text=True,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert re.search(
            r"^seed 23: \d+ simulated seconds in .* s of CPU, \d+ per second; log \w{16}$", ran.stdout, re.M
        )
        logs.append(log.read_bytes())
        assert hashlib.sha256(logs[-1]).hexdigest()[:16] in ran.stdout
    assert logs[0] == logs[1]


@pytest.mark.slow
def test_the_command_says_what_is_wrong_with_its_options() -> None:
    command = [sys.executable, "-m", "tools.simulation", "--seconds", "soon"]
    ran = children.run(command, capture_output=True, text=True)
    assert ran.returncode == 2
    assert "--seconds: invalid float value: 'soon'" in ran.stderr
