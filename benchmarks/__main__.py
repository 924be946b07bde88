"""`make bench`: runs workloads on Barnabas and Apache Kafka in turn, and prints one table of the results."""

import argparse
import contextlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.environment import environment
from benchmarks.model import Scale, Workload
from benchmarks.processes import has_inodes_to_keep
from benchmarks.report import Run, rich_table
from benchmarks.runner import in_turn, of_whole_pairs
from benchmarks.system import BARNABAS, KAFKA, System
from benchmarks.systems import systems
from benchmarks.workloads import WORKLOADS
from tools.foreign.languages import BuildFailed

T = TypeVar("T")

console = Console(width=max(150, Console().width))


def main() -> int:
    """Measure, print, and write; 1 if a workload failed on some system, 130 if somebody ended it early."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # brokers are stopped and their files removed
    available = systems()
    options = _options(list(available))
    workloads = _named({workload.row: workload for workload in WORKLOADS}, options.only)
    needed = {BARNABAS, KAFKA}.union(*(workload.peers for workload in workloads))
    chosen = [each for each in _named(available, options.systems) if each.name in needed and _is_ready(each)]
    if not chosen:
        sys.exit("none of these systems can run any of these rows here")
    titles = {**{system.name: system.title for system in chosen}, "floor": "floor"}
    run = Run(environment(" ".join(sys.argv[1:])), titles, options.quick, [])
    if options.resume:
        run = _resumed(run, options.json)
    if run.environment["disk"] == "tmpfs":
        console.print("Files lie in memory here: name a folder on a disk in TMPDIR.", style="red")
    makes_many_files = {"W6", "W7"} & {workload.row for workload in workloads}
    if makes_many_files and run.environment["disk"] == "ext4" and not has_inodes_to_keep(Path(tempfile.gettempdir())):
        console.print("Few inodes are free here: W6 and W7 may slow down what comes after them.", style="red")
    is_complete = False
    with contextlib.suppress(KeyboardInterrupt):  # what there is by then is told
        _measure_all(run, workloads, chosen, options)
        is_complete = True
    console.print(rich_table(run))
    for name, value in run.environment.items():
        console.print(f"{name}: {value}", markup=False)
    failed = [each for each in run.measurements if each.error]
    for each in failed:
        console.print(f"{each.row} failed on {each.system}: {each.error}", style="red", markup=False)
    return 1 if failed else 0 if is_complete else 130


def _is_ready(system: System) -> bool:
    """Whether a system can run on this machine; prints a line if it cannot."""
    try:
        system.prepare()
    except (BuildFailed, OSError, subprocess.TimeoutExpired) as failure:
        console.print(f"{system.title} is left out: {failure}", style="red", markup=False)
        return False
    return True


def _resumed(run: Run, file: Path) -> Run:
    """The run that the file has, to go on with. Raises SystemExit if it was made on or with something else."""
    before = Run.from_json(file.read_text())
    for name, value in run.environment.items():
        if name not in ("command", "date") and before.environment.get(name) != value:
            sys.exit(f"{file} was made with {name} {before.environment.get(name)}, now it is {value}")
    if before.is_quick != run.is_quick:
        sys.exit(f"{file} has other sizes: --quick or not, as before")
    commands = [*before.environment["command"].split("; "), run.environment["command"]]
    rows_with_floor = {workload.row for workload in WORKLOADS if workload.floor is not None}
    return replace(
        before,
        systems={**before.systems, **run.systems},
        environment={**before.environment, "command": "; ".join(dict.fromkeys(commands))},
        measurements=of_whole_pairs(before.measurements, [*run.systems], rows_with_floor),
    )


def _measure_all(run: Run, workloads: list[Workload], chosen: list[System], options: argparse.Namespace) -> None:
    """Fill `run`; the file is written after each measurement, so that an end before the end loses nothing."""
    scale = Scale.QUICK if options.quick else Scale.FULL
    pairs_min = options.pairs or (1 if options.quick else 3)
    pairs_max = pairs_min if options.quick or options.pairs else options.pairs_max
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(workloads) * pairs_min)
        for number, workload in enumerate(workloads):
            progress.update(task, description=f"{workload.row} {workload.title}", completed=number * pairs_min)
            before = [each for each in run.measurements if each.row == workload.row]
            for measurement in in_turn(workload, chosen, scale, pairs_min, pairs_max, before):
                run.measurements.append(measurement)
                progress.update(task, completed=number * pairs_min + min(measurement.pair, pairs_min - 1))
                told = f"{measurement.row} {measurement.system}, pair {measurement.pair + 1}"
                progress.console.print(
                    f"{told}: {measurement.elapsed_s:.0f} s {measurement.error.partition(chr(10))[0]}", markup=False
                )
                if options.json:
                    options.json.write_text(run.to_json())
        progress.update(task, completed=len(workloads) * pairs_min)


def _named(known: Mapping[str, T], names: str) -> list[T]:
    """The objects with these names, in the order of the names. Raises SystemExit for an unknown name."""
    unknown = [name for name in names.split(",") if name not in known]
    if unknown:
        sys.exit(f"there is no {', '.join(unknown)}, but {', '.join(known)}")
    return [known[name] for name in names.split(",")]


def _options(available: list[str]) -> argparse.Namespace:
    rows = "\n".join(f"  {workload.row:4} {workload.title}" for workload in WORKLOADS)
    parser = argparse.ArgumentParser(
        prog="make bench", description=f"{__doc__}\n\n{rows}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    everything = ",".join(workload.row for workload in WORKLOADS)
    parser.add_argument("--only", metavar="W1,W3", default=everything, help="these rows")
    parser.add_argument("--systems", metavar="A,B", default=",".join(available), help=f"of {','.join(available)}")
    parser.add_argument("--quick", action="store_true", help="small sizes and one pair: shows that everything runs")
    parser.add_argument("--pairs", type=int, metavar="N", help="exactly so many (default 3, more where they disagree)")
    parser.add_argument("--pairs-max", type=int, metavar="N", default=5, help="and so many at most (default 5)")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write every measurement there, as soon as it is made"
    )
    parser.add_argument("--resume", action="store_true", help="go on with the run that FILE has, ended before its end")
    options = parser.parse_args()
    if options.resume and not (options.json and options.json.exists()):
        parser.error("--resume needs --json and the file of a run")
    return options


if __name__ == "__main__":
    sys.exit(main())
