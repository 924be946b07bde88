"""What the offline checker found: findings for people and programs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

FINDINGS_PER_FILE_MAX: Final = 100
"""A file that is wrong everywhere should not fill the memory with saying so."""


class Level(Enum):
    """How bad a finding is."""

    ERROR = "error"
    """The files contradict each other or their format: data is lost, unreadable, or found at the wrong place."""
    WARNING = "warning"
    """The next start repairs it, or readers cope with it."""
    NOTE = "note"
    """Worth knowing, nothing wrong."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One observation about one file.

    `file` is relative to the checked directory, `position` the byte in it, `offset` the log offset, if there is one.
    """

    level: Level
    file: str
    message: str
    position: int | None = None
    offset: int | None = None

    def as_dict(self) -> dict[str, str | int | None]:
        """The finding as JSON knows it."""
        return {
            "level": self.level.value,
            "file": self.file,
            "position": self.position,
            "offset": self.offset,
            "message": self.message,
        }

    def __str__(self) -> str:
        place = "" if self.position is None else f" at byte {self.position}"
        offset = "" if self.offset is None else f" (offset {self.offset})"
        return f"{self.level.value}: {self.file}{place}{offset}: {self.message}"


@dataclass(slots=True)
class Report:
    """All that was found, and how much was looked at. `records` counts what the batch headers say."""

    directory: str
    findings: list[Finding] = field(default_factory=list)
    partitions: int = 0
    segments: int = 0
    batches: int = 0
    records: int = 0
    bytes_checked: int = 0
    _seen: Counter[tuple[str, Level]] = field(default_factory=Counter, repr=False)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong that the next start does not repair by itself."""
        return not self.count(Level.ERROR)

    @property
    def exit_code(self) -> int:
        """0 if `ok`, else 1."""
        return 0 if self.ok else 1

    def count(self, level: Level) -> int:
        """How many findings of this level there are."""
        return sum(finding.level is level for finding in self.findings)

    def add(
        self, level: Level, file: str, message: str, *, position: int | None = None, offset: int | None = None
    ) -> None:
        """Note a finding; when one file has too many of a level, the rest is left out."""
        self._seen[file, level] += 1
        seen = self._seen[file, level]
        if seen < FINDINGS_PER_FILE_MAX:
            self.findings.append(Finding(level, file, message, position, offset))
        elif seen == FINDINGS_PER_FILE_MAX:
            self.findings.append(Finding(level, file, "there are more findings like these"))

    def error(self, file: str, message: str, *, position: int | None = None, offset: int | None = None) -> None:
        self.add(Level.ERROR, file, message, position=position, offset=offset)

    def warning(self, file: str, message: str, *, position: int | None = None, offset: int | None = None) -> None:
        self.add(Level.WARNING, file, message, position=position, offset=offset)

    def note(self, file: str, message: str, *, position: int | None = None, offset: int | None = None) -> None:
        self.add(Level.NOTE, file, message, position=position, offset=offset)

    def as_dict(self) -> dict[str, object]:
        """The report as JSON knows it."""
        return {
            "directory": self.directory,
            "ok": self.ok,
            "partitions": self.partitions,
            "segments": self.segments,
            "batches": self.batches,
            "records": self.records,
            "bytes": self.bytes_checked,
            "errors": self.count(Level.ERROR),
            "warnings": self.count(Level.WARNING),
            "findings": [finding.as_dict() for finding in self.findings],
        }
