"""The speed of `barnabas consume` beside kcat: `python -m benchmarks.consume_speed [--records N] [--rounds N]`.

Both read the same topic of one partition from a broker in a process of its own, in turn, into a file. Printed are the
medians of the seconds that passed, and of those that the client itself computed.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tools.processes.barnabas import BarnabasProcess

TOPIC = "speed"


def measure(command: Sequence[str], output: Path) -> tuple[float, float]:
    """Run a command that writes to `output`. Returns the elapsed and the CPU seconds. Errors: CalledProcessError."""
    before, started_s = os.times(), time.monotonic()
    with output.open("wb") as file:
        subprocess.run(command, stdout=file, check=True)
    passed_s, after = time.monotonic() - started_s, os.times()
    return passed_s, sum(after[2:4]) - sum(before[2:4])


def compare(commands: dict[str, Sequence[str]], lines: Path, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """The times of each command in each round. Errors: AssertionError if a command does not write exactly `lines`."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    output = lines.with_suffix(".out")
    for _ in range(rounds):
        for name, command in commands.items():
            taken[name].append(measure(command, output))
            assert output.read_bytes() == lines.read_bytes(), f"{name} wrote something else"
    return taken


def main() -> None:
    """Print a line per client."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=800_000, help="of 99 bytes each (default 800,000)")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    kcat = shutil.which("kcat") or sys.exit("kcat is not installed (Debian: apt-get install kcat)")
    with tempfile.TemporaryDirectory() as folder, BarnabasProcess() as broker:
        lines = Path(folder, "lines")
        lines.write_text("".join(f"{number:099d}\n" for number in range(options.records)))
        barnabas = [sys.executable, "-m", "barnabas"]
        there = ["-b", broker.bootstrap_servers]
        subprocess.run([*barnabas, "produce", TOPIC, str(lines), "--quiet", *there], check=True)
        commands: dict[str, Sequence[str]] = {
            "barnabas": [*barnabas, "consume", TOPIC, "--from-beginning", "--exit-at-end", *there],
            "kcat": [kcat, "-C", "-t", TOPIC, "-e", "-q", *there],
        }
        for name, taken in compare(commands, lines, options.rounds).items():
            passed_s, computed_s = (statistics.median(column) for column in zip(*taken, strict=True))
            print(f"{name}: {passed_s:.2f} s passed, {computed_s:.2f} s computed, {options.records} records")


if __name__ == "__main__":
    main()
