"""The test that calls this package: its name, and the line of its call, for warnings that point at a line which its
author can change.
"""

from __future__ import annotations

import os
import sys
import warnings
from types import FrameType
from typing import Any, Final, NamedTuple, Self

PACKAGE: Final = __name__.rpartition(".")[0] + "."
CURRENT_TEST: Final = "PYTEST_CURRENT_TEST"
"""pytest's environment variable with the running test."""

RUNNERS: Final = ("_pytest.", "asyncio.", "threading")


class Caller(NamedTuple):
    """A line outside of this package."""

    file: str
    line: int
    module: str
    registry: dict[Any, Any]
    """The warnings that its module has shown, as Python stores them."""

    @classmethod
    def now(cls) -> Self:
        """The line that called this package. If only an event loop, a thread or pytest did, as for a fixture, it is a
        line of the package.
        """
        frame = sys._getframe(1)
        while (outer := frame.f_back) is not None and not _module(outer).startswith(RUNNERS):
            if not _module(frame).startswith(PACKAGE):
                break
            frame = outer
        values = frame.f_globals
        registry = values.setdefault("__warningregistry__", {})
        return cls(frame.f_code.co_filename, frame.f_lineno, _module(frame), registry)

    def warn(self, told: str) -> None:
        """Issue a warning at this line."""
        warnings.warn_explicit(told, UserWarning, self.file, self.line, self.module, self.registry)


def current_test() -> str:
    """The id of the test that pytest runs; empty for none."""
    return os.environ.get(CURRENT_TEST, "").rpartition(" ")[0]


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
