"""Many values for one test: a few of them in the gate, all with `make test-full`."""

from collections.abc import Iterable
from typing import Any

import pytest


def gate_takes_each(number: int, values: Iterable[Any]) -> list[Any]:
    """The values as parameters, of which the gate has the first and each `number`th after it; the others are `full`.

    For values that are tried for the same reason, in an order in which neighbours are alike. A tuple is one value of
    each of several arguments.
    """
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.full if index % number else ()
        )
        for index, value in enumerate(values)
    ]
