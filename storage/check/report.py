"""The findings of the offline checker, for people and programs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

FINDINGS_PER_FILE_MAX: Final = 100
"""Further findings of the same file and level are left out, so that a badly damaged file does not fill the memory."""


class Level(Enum):
    """How bad a finding is."""

    ERROR = "error"
    """The files contradict each other or their format: data is lost, unreadable, or found at the wrong place."""
    WARNING = "warning"
    """The next start repairs it, or readers tolerate it."""
    NOTE = "note"
    """Informational; nothing is wrong."""


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
        """The finding as a JSON object."""
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
    """All findings, and counts of the checked items. `records` is the sum of the record counts in batch headers."""

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
        """Whether there is no error: the next start repairs everything else."""
        return not self.count(Level.ERROR)

    @property
    def exit_code(self) -> int:
        """0 if `ok`, else 1."""
        return 0 if self.ok else 1

    def count(self, level: Level) -> int:
        """The number of findings of this level."""
        return sum(finding.level is level for finding in self.findings)

    def add(
        self, level: Level, file: str, message: str, *, position: int | None = None, offset: int | None = None
    ) -> None:
        """Add a finding. Findings of one file and level beyond `FINDINGS_PER_FILE_MAX` are left out."""
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
        """The report as a JSON object."""
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
