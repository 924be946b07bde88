"""One reader of foreign bytes that is fuzzed, and what several of them need."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

T = TypeVar("T")

ROOT: Final = Path(__file__).resolve().parents[2]
NOW_MS: Final = 1_700_000_000_000

Run = Callable[[bytes], None]


@dataclass(frozen=True)
class Target:
    """A reader, and well-formed inputs as the start of mutations."""

    name: str
    run: Run
    seeds: Callable[[], Sequence[bytes]]


def given(*seeds: bytes) -> Callable[[], Sequence[bytes]]:
    """Seeds that are at hand."""
    return lambda: seeds


_STEPS_MAX: Final = 10_000


def run_now(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that at most lets others have their turn. Raises AssertionError if it waits."""
    for _ in range(_STEPS_MAX):
        try:
            waits_for = coroutine.send(None)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        if waits_for is not None:
            break
    coroutine.close()
    raise AssertionError(f"it waits for {waits_for!r}")


def check_text(text: str) -> None:
    """Check that logs, metrics and znodes can have a text. Raises UnicodeEncodeError."""
    text.encode()
