"""The model of benchmarks: workloads, the figures that they yield, and the goals of figures."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from benchmarks.system import KAFKA, System

MIB = 1024 * 1024
GIB = 1024 * MIB

T = TypeVar("T")


class Scale(Enum):
    """The size of a workload: enough for figures, or just enough to show that it runs."""

    FULL = "full"
    QUICK = "quick"

    def of(self, full: T, quick: T) -> T:
        """The size for this scale."""
        return full if self is Scale.FULL else quick


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound of a figure's ratio to another system's, or of the figure itself where `of` is None."""

    bound: float
    is_minimum: bool
    of: str | None = KAFKA

    def is_met_by(self, value: float) -> bool:
        """Whether a ratio (or a figure) keeps to the bound."""
        return value >= self.bound if self.is_minimum else value <= self.bound

    def __str__(self) -> str:
        sign = "≥" if self.is_minimum else "≤"
        unit = {None: "", KAFKA: " x"}.get(self.of, f" x {self.of}")
        return f"{sign} {self.bound:g}{unit}"


def at_least(ratio: float, of: str = KAFKA) -> Goal:
    """The figure is at least so many times the other system's."""
    return Goal(ratio, is_minimum=True, of=of)


def at_most(ratio: float, of: str = KAFKA) -> Goal:
    """The figure is at most so many times the other system's."""
    return Goal(ratio, is_minimum=False, of=of)


def no_more_than(value: float) -> Goal:
    """The figure itself is no larger, whatever the others'."""
    return Goal(value, is_minimum=False, of=None)


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number. Its name is the same for all systems and unique in its workload."""

    name: str
    value: float
    unit: str
    goals: tuple[Goal, ...] = ()


Figures = Iterator[Figure]


@dataclass(frozen=True, slots=True)
class Workload:
    """A row of the plan: what is done to a broker, and what comes out.

    `measure` starts a broker of its own. `floor` does the same work without a protocol, where that is possible; `peers`
    are the brokers of fewer abilities that can run it, too.
    """

    row: str
    title: str
    measure: Callable[[System, Scale], Figures]
    floor: Callable[[Scale], Figures] | None = None
    peers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run of a workload on one system; runs of the same `pair` are neighbours. `error` says why it failed."""

    row: str
    title: str
    system: str
    pair: int
    elapsed_s: float
    figures: tuple[Figure, ...]
    error: str = ""
