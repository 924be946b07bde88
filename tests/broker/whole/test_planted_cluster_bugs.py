"""The control of the cluster's simulation: bugs of replication that are put in on purpose are found by its checks, and
a seed that finds one finds nothing without it (tools/simulation/bugs.py).

A seed tells another story after each change of the broker or of the simulation. So each search has a budget of seeds,
and no seed has a name.
"""

import os
import re
import subprocess
import sys

import pytest

from tools.processes import children
from tools.simulation.bugs import BUGS, SECONDS, planted

FOUND_SOON = ("high-watermark-is-own-end",)
"""The bugs of the gate: all of the seeds that were tried find them, within a second of the processor
(`python -m tools.simulation.bugs NAME --all` counts). If no more than half of them did, `SEEDS` would still miss one
less than once in a million times."""

SEEDS = 30
"""How many seeds the gate tries for a bug."""

BUDGET = 1_000
"""How many seeds the full tier tries: one in sixty finds the rarest of them."""

MISTAKE = re.compile(r"\b(Attribute|Import|Name|Type)Error\b")
"""Exceptions of planted code that does not fit the present broker."""

slow = pytest.mark.slow


def run(name: str, *options: str) -> subprocess.CompletedProcess[str]:
    """By the command, since a seed tells one story only with the hash seed that it sets."""
    command = [sys.executable, "-m", "tools.simulation.bugs", name, *options]
    # Real time: a search goes through a thousand seeds, and is bounded by the test's own limit.
    return children.run(command, capture_output=True, text=True, timeout_s=7_000)


def found_by(name: str, seeds: int) -> str:
    """The seed that finds a bug, of so many from 0 on."""
    found = run(name, "--seeds", str(seeds))
    print(found.stdout)
    assert found.returncode == 0, found.stdout + found.stderr
    assert not MISTAKE.search(found.stdout), "found is the mistake of whoever planted it"
    (seed,) = re.findall(r"^[\w-]+: seed (\d+),", found.stdout)
    return str(seed)


@slow
@pytest.mark.parametrize("name", FOUND_SOON)
def test_a_bug_that_any_seed_finds_is_found(name: str) -> None:
    """That seeds without a bug find nothing is asked in test_cluster_simulation.py."""
    found_by(name, SEEDS)


@pytest.mark.full
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_found(name: str) -> None:
    """By one of many seeds, which without the bug finds nothing."""
    seed = found_by(name, BUDGET)
    command = [sys.executable, "-m", "tools.simulation", "--seed", seed, "--seconds", str(SECONDS)]
    without = children.run(command, capture_output=True, text=True)
    assert without.returncode == 0, without.stdout + without.stderr


def test_a_bug_is_gone_afterwards() -> None:
    for name, bug in BUGS.items():
        before = [vars(change.owner)[change.name] for change in bug()]
        with planted(name):
            assert [vars(change.owner)[change.name] for change in bug()] != before, name
        assert [vars(change.owner)[change.name] for change in bug()] == before, name


def test_an_unknown_bug_is_named() -> None:
    ran = run("none-at-all")
    assert ran.returncode == 2
    assert "invalid choice: 'none-at-all'" in ran.stderr
    assert "marker-is-lost" in ran.stderr


@slow
def test_the_command() -> None:
    """`make simulate PLANT=...` as a developer starts it."""
    command = ["make", "--no-print-directory", "simulate", "PLANT=high-watermark-is-own-end"]
    root = os.path.join(os.path.dirname(__file__), "../../..")
    ran = children.run([*command, "SEED=3", "ARGS=--seeds 30"], cwd=root, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.match(r"high-watermark-is-own-end: seed \d+, \d+ tried in ", ran.stdout)
