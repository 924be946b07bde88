"""A pytest plugin: a file all of whose tests the marker expression leaves out is not even read.

`make check` leaves out nearly one file in three. To import them, with the clients and frameworks that only they use,
would take seconds of each worker.
"""

import ast
import re
from pathlib import Path
from typing import Final

import pytest

NONE_OF: Final = re.compile(r"not \w+(?: and not \w+)*")
"""An expression that is false for each test of a module that has one of the marks, whatever marks the test has."""
MARKS_OF_MODULE: Final = re.compile(r"^pytestmark = (\[\n.*?^\]|[^\n]+)", re.MULTILINE | re.DOTALL)
"""On a line, or as a list on several, as ruff formats them."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if not NONE_OF.fullmatch(config.option.markexpr) or collection_path.suffix != ".py":
        return None  # as pytest would have it
    named = set(re.findall(r"not (\w+)", config.option.markexpr))
    return True if named & module_marks(collection_path.read_text()) else None


def module_marks(source: str) -> set[str]:
    """The names of the marks that a test file's `pytestmark` spells out; those of a variable are not looked for."""
    found = MARKS_OF_MODULE.search(source)
    if found is None:
        return set()
    match ast.parse(found[1], mode="eval").body:
        case ast.List(elements):
            marks = elements
        case mark:
            marks = [mark]
    return {name for mark in marks for name in re.findall(r"^pytest\.mark\.(\w+)", ast.unparse(mark))}
