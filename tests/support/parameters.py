"""Many values for one test: a few of them in the gate, all with `make test-full`."""

import random
from collections.abc import Iterable
from typing import Any, Final

import pytest

SEEDED: Final = pytest.mark.parametrize("seed", [20261129, pytest.param(None, marks=pytest.mark.full, id="at random")])
"""For a test that draws from `chance(seed)`: the same each time in the gate, something else with `make test-full`."""


def chance(seed: int | None) -> random.Random:
    """The source of a test's random choices. The seed is printed."""
    seed = random.randrange(2**32) if seed is None else seed
    print(f"seed {seed}")
    return random.Random(seed)


def gate_takes_each(number: int, values: Iterable[Any]) -> list[Any]:
    """The values as parameters. The gate runs the first and each `number`th after it; the others are marked `full`.

    For values that are tried for the same reason, ordered so that neighbours are alike. A tuple contains one value for
    each of several arguments.
    """
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.full if index % number else ()
        )
        for index, value in enumerate(values)
    ]
