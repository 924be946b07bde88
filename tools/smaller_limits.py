"""The broker with limits that a short attack reaches: `python -m tools.smaller_limits LIMIT=NUMBER,... serve ...`.

A LIMIT is MODULE.NAME, a number that a module of the broker looks at; it has to be there.
"""

import importlib
import sys
from collections.abc import Mapping

from barnabas.__main__ import main as barnabas


def module(limits: Mapping[str, int]) -> str:
    """What `BarnabasProcess` has Python run, to have these limits."""
    return f"{__spec__.name}:" + ",".join(f"{name}={number}" for name, number in limits.items())


def lower(limits: str) -> None:
    """Errors: AttributeError, ImportError where there is no such limit."""
    for limit in limits.split(","):
        path, _, number = limit.partition("=")
        place, _, name = path.rpartition(".")
        owner = importlib.import_module(place)
        assert isinstance(getattr(owner, name), int), path
        setattr(owner, name, int(number))


if __name__ == "__main__":
    lower(sys.argv[1])
    barnabas(sys.argv[2:])
