import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.floor import fetch_floor, produce_floor
from benchmarks.model import Scale
from benchmarks.report import Run, lines
from benchmarks.workloads import WORKLOADS


def test_every_row_is_there_once_and_in_order():
    assert [workload.row for workload in WORKLOADS] == [f"W{number}" for number in (*range(1, 23), 26, 27, 28)]


@pytest.mark.full
def test_a_quick_row_from_the_command_to_the_table(tmp_path: Path):
    file = tmp_path / "run.json"
    command = [sys.executable, "-m", "benchmarks", "--only", "W3", "--systems", "barnabas", "--quick"]
    done = subprocess.run([*command, "--json", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {line.name: line.values["barnabas"].median for line in lines(Run.from_json(file.read_text()).measurements)}
    assert all(value > 0 for value in found.values())
    assert "16 connections: rate" in found
    assert "W3" in done.stdout


@pytest.mark.full
@pytest.mark.java
def test_quick_rows_of_three_brokers_run(tmp_path: Path):
    for row in ("W16", "W17"):
        found = quick_run(row, tmp_path)
        print(row, found)
        assert found["throughput"] > 0
        assert found["broker CPU"] > 0
        assert 0 < found["p50 of acknowledgements"] <= found["p99 of acknowledgements"]
        assert found["resident memory"] > 0


@pytest.mark.full
def test_quick_rows_of_three_brokers(tmp_path: Path):
    found = quick_run("W18,W19,W20,W21,W22", tmp_path)
    assert found["acks=all: p50"] > 0
    assert found["catching up: p99"] > 0
    assert found["idle: the busiest broker, of a core"] > 0
    assert 0 < found["300 partitions, controller killed: until all are led"] < 30
    assert found["longest time of a partition without a leader"] < 30


@pytest.mark.full
@pytest.mark.java
def test_quick_rows_with_tls_and_logins(tmp_path: Path):
    found = quick_run("W26,W27,W28", tmp_path)
    assert found["produce: throughput"] > 0
    assert found["fetch: throughput"] > 0
    assert 0 < found["p50"] <= found["p99"]
    assert found["time of a connection"] > 0


def quick_run(rows: str, tmp_path: Path) -> dict[str, float]:
    """The figures of some rows, with Barnabas alone."""
    file = tmp_path / "run.json"
    command = [sys.executable, "-m", "benchmarks", "--only", rows, "--systems", "barnabas", "--quick"]
    done = subprocess.run([*command, "--json", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {line.name: line.values["barnabas"].median for line in lines(Run.from_json(file.read_text()).measurements)}


@pytest.mark.full
@pytest.mark.parametrize("floor", [produce_floor, fetch_floor])
def test_the_floor_moves_every_byte(floor):
    throughput, cpu, memory = floor(Scale.QUICK)
    assert throughput.value > 0
    assert cpu.value > 0
    assert 0 < memory.value < 256
