"""One reader of foreign bytes that is fuzzed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
NOW_MS: Final = 1_700_000_000_000

Run = Callable[[bytes], None]


@dataclass(frozen=True)
class Target:
    """A reader, and well-formed inputs as the start of mutations."""

    name: str
    run: Run
    seeds: Callable[[], Sequence[bytes]]
