"""The broker with limits that a short attack reaches: `python -m tests.support.smaller_limits LIMIT=NUMBER,... serve
...`.

A LIMIT is MODULE.NAME, a number used by a module of the broker, or MODULE.CLASS.FIELD, a default of a dataclass's
field. It must exist.
"""

import importlib
import sys
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from barnabas.__main__ import main as barnabas


def module(limits: Mapping[str, int]) -> str:
    """The argument for `BarnabasProcess` that runs the broker with these limits."""
    return f"{__spec__.name}:" + ",".join(f"{name}={number}" for name, number in limits.items())


def lower(limits: str) -> None:
    """Set the limits. Errors: AttributeError, ImportError for a limit that does not exist."""
    for limit in limits.split(","):
        path, _, number = limit.partition("=")
        place, _, name = path.rpartition(".")
        try:
            owner = importlib.import_module(place)
        except ModuleNotFoundError:
            module_name, _, class_name = place.rpartition(".")
            _set_default(getattr(importlib.import_module(module_name), class_name), name, int(number))
            continue
        assert isinstance(getattr(owner, name), int), path
        setattr(owner, name, int(number))


def _set_default(settings: type, name: str, number: int) -> None:
    """Change a field's default. `settings` is a dataclass whose fields all have defaults: those of its constructor, in
    the same order.
    """
    names = [each.name for each in fields(settings)]
    constructor: Any = settings.__init__  # type: ignore[misc]  # of exactly this class
    defaults = list(constructor.__defaults__)
    assert len(defaults) == len(names), settings
    assert isinstance(defaults[names.index(name)], int), name
    defaults[names.index(name)] = number
    constructor.__defaults__ = tuple(defaults)


if __name__ == "__main__":
    lower(sys.argv[1])
    barnabas(sys.argv[2:])
