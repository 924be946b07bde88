"""Brokers of tests without uvloop, on the standard event loop: what the tests in this folder ask holds there, too."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools import children

pytestmark = pytest.mark.live

ROOT = Path(__file__).resolve().parents[2]

ROUND_TRIP = """
import sys
from barnabas.testing import Broker, Cluster
with Broker() as broker:
    broker.create_topic("t").produce("1")
    assert [record.value for record in broker.topic("t").records()] == [b"1"]
with Cluster() as cluster:
    cluster.create_topic("t")
    assert cluster.leader("t") in (0, 1, 2)
assert not any(name.startswith("uvloop.") for name in sys.modules)
"""


@pytest.fixture
def without_uvloop(tmp_path: Path) -> dict[str, str]:
    """An environment of processes that find no uvloop, nor do those that they start."""
    (tmp_path / "uvloop.py").write_text('raise ImportError("this process has no uvloop")\n')
    return {**os.environ, "PYTHONPATH": str(tmp_path)}


def test_a_broker_and_a_cluster(without_uvloop: dict[str, str]) -> None:
    done = children.run([sys.executable, "-c", ROUND_TRIP], env=without_uvloop, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("chosen", "timeout_s"),
    [
        pytest.param("not slow", 280, marks=pytest.mark.full, id="quick"),
        pytest.param("slow and not full", 1_800, marks=[pytest.mark.full, pytest.mark.timeout(1_900)], id="slow"),
    ],
)
def test_all_that_is(chosen: str, timeout_s: int, without_uvloop: dict[str, str]) -> None:
    tests = ["tests/testing", "--ignore=tests/testing/test_standard_loop.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", chosen, "-n", "2", *tests],
        cwd=ROOT, env=without_uvloop, capture_output=True, text=True, timeout=timeout_s, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
