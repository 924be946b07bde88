"""A pytest plugin: does not read a file if the marker expression deselects all of its tests.

`make check` deselects nearly one file in three. Importing these, with the clients and frameworks that only they use,
would take each worker seconds.
"""

import ast
import re
from pathlib import Path
from typing import Final

import pytest

NONE_OF: Final = re.compile(r"not \w+(?: and not \w+)*")
"""An expression that is false for each test of a module with one of these marks, whatever other marks the test has."""
MARKS_OF_MODULE: Final = re.compile(r"^pytestmark = (\[\n.*?^\]|[^\n]+)", re.MULTILINE | re.DOTALL)
"""On one line, or as a list on several lines, in ruff's format."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if not NONE_OF.fullmatch(config.option.markexpr) or collection_path.suffix != ".py":
        return None  # leave the decision to pytest
    named = set(re.findall(r"not (\w+)", config.option.markexpr))
    return True if named & module_marks(collection_path.read_text()) else None


def module_marks(source: str) -> set[str]:
    """The names of the marks spelled out in a test file's `pytestmark`; marks in a variable are not resolved."""
    found = MARKS_OF_MODULE.search(source)
    if found is None:
        return set()
    match ast.parse(found[1], mode="eval").body:
        case ast.List(elements):
            marks = elements
        case mark:
            marks = [mark]
    return {name for mark in marks for name in re.findall(r"^pytest\.mark\.(\w+)", ast.unparse(mark))}
