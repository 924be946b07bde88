"""Many values for one test: a few of them in the gate, all with `make test-full`."""

from collections.abc import Iterable
from typing import Any

import pytest


def gate_takes_each(number: int, values: Iterable[Any]) -> list[Any]:
    """The values as parameters, of which the gate has the first and each `number`th after it; the others are `full`.

    For values that are tried for the same reason, in an order in which neighbours are alike.
    """
    return [
        value if index % number == 0 else pytest.param(value, marks=pytest.mark.full)
        for index, value in enumerate(values)
    ]
