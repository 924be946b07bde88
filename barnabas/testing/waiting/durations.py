"""Durations in tests: a timedelta, or ms."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

Duration = timedelta | float
"""A timedelta, or a number of ms."""


def signed_ms(duration: Duration) -> float:
    """A duration in ms, possibly fractional or negative. Errors: TypeError."""
    return duration / timedelta(milliseconds=1) if isinstance(duration, timedelta) else _number(duration)


def _number(value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise TypeError(f"a duration is a timedelta or a number of ms, not {value!r:.100}")


def ms(duration: Duration) -> float:
    """A duration in ms, possibly fractional. Errors: ValueError, TypeError."""
    milliseconds = signed_ms(duration)
    if not 0 <= milliseconds < math.inf:
        raise ValueError(f"a duration of {milliseconds} ms")
    return milliseconds


def whole_ms(duration: Duration) -> int:
    """A duration in whole ms, rounded up. Errors: ValueError, TypeError."""
    return math.ceil(ms(duration))
