"""Measuring workloads on systems in turn: A B A B, so that a slow minute of the machine strikes both."""

import os
import time
from collections.abc import Iterator, Sequence

from benchmarks.model import BARNABAS, FLOOR, KAFKA, Figures, Measurement, Scale, Workload
from benchmarks.report import ratios
from benchmarks.spread import Spread
from benchmarks.systems import System

WIDE = 0.2
"""More pairs are measured while the ratios of a figure with a goal lie this far apart, as a share of their median."""


def in_turn(
    workload: Workload, systems: Sequence[System], scale: Scale, pairs_min: int, pairs_max: int
) -> Iterator[Measurement]:
    """Measure a workload on those of the systems that can run it, pair by pair; a peer, that no goal is about, once."""
    done: list[Measurement] = []
    pair = 0
    while pair < pairs_min or (pair < pairs_max and is_wide(done)):
        for name in (BARNABAS, KAFKA, *(workload.peers if pair == 0 else ())):
            system = next((each for each in systems if each.name == name), None)
            if system is not None:
                done.append(_measure(workload, name, pair, workload.measure(system, scale)))
                yield done[-1]
        if workload.floor is not None:
            done.append(_measure(workload, FLOOR, pair, workload.floor(scale)))
            yield done[-1]
        pair += 1


def is_wide(measurements: Sequence[Measurement]) -> bool:
    """Whether the pairs disagree about a figure that has a goal."""
    compared = {
        (each.row, figure.name, goal.of)
        for each in measurements
        for figure in each.figures
        for goal in figure.goals
        if goal.of is not None
    }
    found = (ratios(measurements, *each) for each in compared)
    return any(Spread.of(each).relative > WIDE for each in found if each)


def _measure(workload: Workload, system: str, pair: int, figures: Figures) -> Measurement:
    """Run to the end; a failure is part of the result."""
    os.sync()  # what the run before wrote is not paid for by this one
    started_s = time.monotonic()
    found, error = [], ""
    try:
        for figure in figures:
            found.append(figure)  # noqa: PERF402 - what was found before a failure is kept
    except Exception as failure:  # noqa: BLE001 - whatever it is, the other workloads are still to come
        error = f"{type(failure).__name__}: {failure}"
    elapsed_s = time.monotonic() - started_s
    return Measurement(workload.row, workload.title, system, pair, elapsed_s, tuple(found), error)
