"""Runs workloads on systems in turn: A B A B, so that a slow minute of the machine affects both."""

import os
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from benchmarks.model import Figures, Measurement, Scale, Workload
from benchmarks.report import ratios
from benchmarks.spread import Spread
from benchmarks.system import BARNABAS, FLOOR, KAFKA, System

WIDE = 0.2
"""Pairs disagree when a figure's ratios lie this far apart, as a share of their median, on both sides of a goal."""


def in_turn(
    workload: Workload,
    systems: Sequence[System],
    scale: Scale,
    pairs_min: int,
    pairs_max: int,
    before: Sequence[Measurement] = (),
) -> Iterator[Measurement]:
    """Measure a workload on those of the systems that can run it, pair by pair; a peer, that no goal is about, once.
    What was measured `before` is not measured again.
    """
    if not {BARNABAS, KAFKA} & {each.name for each in systems}:  # peers alone
        workload, pairs_min, pairs_max = replace(workload, floor=None), 1, 1
    done = list(before)
    known = {(each.pair, each.system) for each in before}
    pair = 0
    while pair < pairs_min or (pair < pairs_max and disagree(done)):
        for name in (BARNABAS, KAFKA, *(workload.peers if pair == 0 else ())):
            system = next((each for each in systems if each.name == name), None)
            if system is not None and (pair, name) not in known:
                done.append(_measure(workload, name, pair, workload.measure(system, scale)))
                yield done[-1]
        if workload.floor is not None and (pair, FLOOR) not in known:
            done.append(_measure(workload, FLOOR, pair, workload.floor(scale)))
            yield done[-1]
        pair += 1


def disagree(measurements: Sequence[Measurement]) -> bool:
    """Whether the pairs are far apart and do not agree whether a goal is met."""
    goals = {(each.row, figure.name, goal) for each in measurements for figure in each.figures for goal in figure.goals}
    for row, name, goal in goals:
        found = ratios(measurements, row, name, goal.of) if goal.of is not None else []
        if 0 < sum(map(goal.is_met_by, found)) < len(found) and Spread.of(found).relative > WIDE:
            return True
    return False


def of_whole_pairs(
    measurements: Sequence[Measurement], systems: Sequence[str], rows_with_floor: Collection[str]
) -> list[Measurement]:
    """Without what an end before the end left of a pair: neighbours are compared, and one is missing."""
    sides = {BARNABAS, KAFKA} & set(systems)
    found: dict[tuple[str, int], set[str]] = {}
    for each in measurements:
        found.setdefault((each.row, each.pair), set()).add(each.system)
    floor = {FLOOR} if sides else set()  # peers alone are measured without
    needed = {each.row: sides | floor if each.row in rows_with_floor else sides for each in measurements}
    return [each for each in measurements if needed[each.row] <= found[each.row, each.pair]]


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
