"""Bugs that a test puts into the broker: errors that no code foresees.

There is no seam for bugs, so this reaches into classes and modules (tests/test_patches.py allows it here); raising is
all that it can have them do.
"""

from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any

import pytest

REASON = "nobody foresaw this"


class Bug:
    """While `is_there`, `owner`'s function `name` raises ValueError(REASON) when it is called with what is bad by
    `is_bad`, by default with anything; `afterwards` means once it has done its work. `tries` counts those calls.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        owner: Any,
        name: str,
        is_bad: Callable[..., bool] = lambda *_: True,
        *,
        afterwards: bool = False,
    ) -> None:
        self.is_there = True
        self.tries = 0
        self._is_bad = is_bad
        real = getattr(owner, name)

        def called(*arguments: Any, **settings: Any) -> Any:
            if not afterwards:
                self._raise(arguments)
            result = real(*arguments, **settings)
            if afterwards:
                self._raise(arguments)
            return result

        async def awaited(*arguments: Any, **settings: Any) -> Any:
            if not afterwards:
                self._raise(arguments)
            result = await real(*arguments, **settings)
            if afterwards:
                self._raise(arguments)
            return result

        monkeypatch.setattr(owner, name, awaited if iscoroutinefunction(real) else called)

    def _raise(self, arguments: tuple[Any, ...]) -> None:
        if self._is_bad(*arguments):
            self.tries += 1
            if self.is_there:
                raise ValueError(REASON)
