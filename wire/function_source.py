"""The source text of a function that reads or writes one version of a message, and the one place that compiles it.

The text depends on the message's field table alone, and what it calls has the same name wherever the same text is made:
so a build could write it to a module. That would not make a broker start sooner. `barnabas serve` compiles no message
before its first request, and then spends 1 to 2 ms of processor time on each function that a client's requests need,
of which loading would still take up to 0.1 ms (measured in November 2026).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from barnabas.wire.schema import Message


class FunctionSource(ABC):
    """The source of one function as it grows; `names` has the values that it refers to.

    Runs of fixed-width fields wait in `run` as (struct format, target or expression), so that one `struct` call serves
    all of them; `flush` emits that call.
    """

    def __init__(self, message: type[Message], version: int) -> None:
        self.message = message
        self.version = version
        self.title = f"{message.__name__} version {version}"
        self.flexible = message.FLEXIBLE_FROM is not None and version >= message.FLEXIBLE_FROM
        self.names: dict[str, Any] = {}
        self.run: list[tuple[str, str]] = []
        self.lines: list[str] = []
        self._indent = 2
        self._name_count = 0

    @abstractmethod
    def text(self) -> str:
        """The function's source, complete."""

    @abstractmethod
    def flush(self) -> None:
        """Emit the pending run as one `struct` call."""

    def emit(self, line: str) -> None:
        self.lines.append("    " * self._indent + line)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.flush()
        with self.line(head):
            yield
            self.flush()

    @contextmanager
    def line(self, head: str) -> Iterator[None]:
        """A block whose head does not flush the run: its branches do."""
        self.emit(head)
        self._indent += 1
        yield
        self._indent -= 1

    def name(self, prefix: str) -> str:
        """A new name of the function."""
        self._name_count += 1
        return f"{prefix}{self._name_count}"


def compiled(source: FunctionSource, function: str) -> Callable[..., Any]:
    """The function of that name in `source`; its attribute `source` is the text."""
    text = source.text()
    exec(compile(text, f"<{function} {source.title}>", "exec"), source.names)
    found: Callable[..., Any] = source.names.pop(function)
    found.source = text  # type: ignore[attr-defined]
    return found
