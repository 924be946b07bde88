"""Which Python functions are called in this thread, seen by the interpreter's profile hook: nothing is put in their
place.
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


class TurnsTaken:
    """How often functions were called in each turn of the event loop; `look` is called in each turn."""

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
        """All of a function's calls, and the most in one turn."""
        return self._calls[name].total(), max(self._calls[name].values(), default=0)

    def end(self) -> None:
        self._next.cancel()
        self._watched.__exit__(None, None, None)


def _code(function: Any) -> CodeType:
    """Its own, or what makes an instance of it."""
    made_by = (getattr(function, name, None) for name in ("__init__", "__new__"))
    codes = (getattr(each, "__code__", None) for each in (function, *made_by))
    return next(code for code in codes if isinstance(code, CodeType))
