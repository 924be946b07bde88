"""Statistics of repeated measurements. Pure."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of the values do not exceed. Raises ValueError for none."""
    if not values:
        raise ValueError("no values")
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


class Spread(NamedTuple):
    """Repeated measurements of one thing."""

    median: float
    low: float
    high: float

    @property
    def relative(self) -> float:
        """The distance of the extremes, as a share of the median."""
        return (self.high - self.low) / self.median if self.median else math.inf

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Raises ValueError for none."""
        if not values:
            raise ValueError("no values")
        return cls(statistics.median(values), min(values), max(values))
