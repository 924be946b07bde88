"""Which Python functions are called in this thread, seen by the interpreter's profile hook: nothing is put in their
place.
"""

import inspect
import sys
from collections.abc import Callable
from types import CodeType, FrameType, TracebackType
from typing import Any

_RESUMED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class WatchedCalls:
    """While it is entered, `on_call` is called with each of the functions (or classes, when they are instantiated) that
    are called in this thread. Not for coroutines and generators, which the hook takes for called whenever they go on.
    """

    def __init__(self, on_call: Callable[[Any], object], *functions: Any) -> None:
        self._on_call = on_call
        self._functions: dict[CodeType, Any] = {}
        for function in functions:
            self.add(function)

    def add(self, function: Any) -> None:
        """Watch another one."""
        code = _code(function)
        assert not code.co_flags & _RESUMED, function
        self._functions[code] = function

    def _note(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and (function := self._functions.get(frame.f_code)) is not None:
            self._on_call(function)

    def __enter__(self) -> "WatchedCalls":
        sys.setprofile(self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.setprofile(None)


def _code(function: Any) -> CodeType:
    """Its own, or what makes an instance of it."""
    made_by = (getattr(function, name, None) for name in ("__init__", "__new__"))
    codes = (getattr(each, "__code__", None) for each in (function, *made_by))
    return next(code for code in codes if isinstance(code, CodeType))
