"""How long something takes, as tests say it: a timedelta, or ms."""

from __future__ import annotations

import math
from datetime import timedelta

Duration = timedelta | float
"""A time, or so many ms."""


def signed_ms(duration: Duration) -> float:
    """A duration in ms, of which there may be fractions, and less than none."""
    return duration / timedelta(milliseconds=1) if isinstance(duration, timedelta) else duration


def ms(duration: Duration) -> float:
    """A duration in ms, of which there may be fractions. Errors: ValueError."""
    milliseconds = signed_ms(duration)
    if not 0 <= milliseconds < math.inf:
        raise ValueError(f"a duration of {milliseconds} ms")
    return milliseconds


def whole_ms(duration: Duration) -> int:
    """A duration in whole ms, rounded up. Errors: ValueError."""
    return math.ceil(ms(duration))
