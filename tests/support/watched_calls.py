"""Records the Python functions that are called in this thread, by the interpreter's profile hook: no function is
replaced.
"""

import asyncio
import inspect
import sys
from collections import Counter
from collections.abc import Callable
from types import CodeType, FrameType, TracebackType
from typing import Any

_RESUMED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class WatchedCalls:
    """While entered, `on_call` is called with each of the functions (or classes, when they are instantiated) that are
    called in this thread. Not for coroutines and generators, because the hook reports each resumption as a call.
    """

    def __init__(self, on_call: Callable[[Any], object], *functions: Any) -> None:
        self._on_call = on_call
        self._functions: dict[CodeType, Any] = {}
        for function in functions:
            self.add(function)

    def add(self, function: Any) -> None:
        """Watch one more function."""
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


class TurnsTaken:
    """The number of calls of functions in each turn of the event loop; `look` is called in each turn."""

    def __init__(self, look: Callable[[], None] = lambda: None) -> None:
        self._look = look
        self._turn = 0
        self._calls: dict[str, Counter[int]] = {}
        self._watched = WatchedCalls(lambda function: self._calls[function.__name__].update([self._turn]))
        self._watched.__enter__()
        self._next = asyncio.get_running_loop().call_soon(self._count)

    def _count(self) -> None:
        self._turn += 1
        self._look()
        self._next = asyncio.get_running_loop().call_soon(self._count)

    def watch(self, owner: Any, name: str) -> None:
        function = getattr(owner, name)
        self._calls[function.__name__] = Counter()
        self._watched.add(function)

    def calls(self, name: str) -> tuple[int, int]:
        """The number of all calls of a function, and the maximum in one turn."""
        return self._calls[name].total(), max(self._calls[name].values(), default=0)

    def end(self) -> None:
        self._next.cancel()
        self._watched.__exit__(None, None, None)


def _code(function: Any) -> CodeType:
    """The code of a function, or of a class's constructor."""
    made_by = (getattr(function, name, None) for name in ("__init__", "__new__"))
    codes = (getattr(each, "__code__", None) for each in (function, *made_by))
    return next(code for code in codes if isinstance(code, CodeType))


def calls_of(function: Callable[[], object]) -> list[str]:
    """The names of the functions that it calls, Python's and C's, in order."""
    names: list[str] = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            names.append(frame.f_code.co_qualname)
        elif event == "c_call":
            names.append(argument.__qualname__)

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return names
