"""The results of a run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Outcome:
    """The results of a run. `write` gets a line for each event, and by default keeps the lines in `log`; `digest` is
    that of all lines.
    """

    wrong: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    simulated_s: float = 0.0
    write: Callable[[str], object] | None = None
    _digest: Any = field(default_factory=hashlib.sha256)

    @property
    def digest(self) -> str:
        return str(self._digest.hexdigest())

    def tell(self, line: str) -> None:
        self._digest.update(f"{line}\n".encode())
        (self.write or self.log.append)(line)
