"""The set of a broker's log directories: a directory whose disk is not mounted counts as missing, not as new.

Each directory of a broker with several directories contains a note, `barnabas-log-directories`: its id, and the ids and
`log.dirs` paths of all directories. Kafka ignores the file and takes an empty directory for a new one. Ids and paths
distinguish reordered, renamed and new directories; the decision is pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from barnabas.storage.checkpoints import decode_checkpoint, encode_checkpoint
from barnabas.storage.errors import CorruptFile

NOT_CONFIGURED: Final = "it is not in log.dirs any more"
NOT_THERE: Final = "it is not there, or empty: is its disk mounted?"
COVERED: Final = "another one is at its path: is a disk mounted over it?"


class DirectoryNote(NamedTuple):
    """The note of one directory: its id, and the path of each known directory by id, including its own."""

    directory_id: str
    paths: dict[str, str]

    def encode(self) -> bytes:
        """The content of the file: `ID PATH` per line, its own first."""
        ids = sorted(self.paths, key=lambda directory_id: (directory_id != self.directory_id, directory_id))
        return encode_checkpoint(f"{directory_id} {quote(self.paths[directory_id])}" for directory_id in ids)

    @classmethod
    def decode(cls, data: bytes) -> DirectoryNote:
        """Read the file. Raises CorruptFile."""
        # The number of lines is not checked: an operator may delete the line of an abandoned directory.
        lines = data.splitlines(keepends=True)
        counted = [*lines[:1], b"%d\n" % max(0, len(lines) - 2), *lines[2:]]
        try:
            paths = {directory_id: unquote(path) for directory_id, path in decode_checkpoint(b"".join(counted))}
            return cls(next(iter(paths)), paths)
        except (ValueError, StopIteration):
            raise CorruptFile("a note of log directories with a malformed line, or with none") from None


class SeenDirectory(NamedTuple):
    """A directory of `log.dirs`, as found at a start. `is_owned`: it has a `meta.properties`; `problem`: the reason why
    it cannot be read.
    """

    path: str
    note: DirectoryNote | None
    is_owned: bool
    problem: str = ""


class MissingDirectory(NamedTuple):
    """A directory that the other directories' notes name: its path, which another directory may have now, and the
    reason why it is missing.
    """

    path: str
    problem: str


class KnownDirectories(NamedTuple):
    """The ids of the present directories by path, and the missing directories by id. No id is in both."""

    present: dict[str, str]
    missing: dict[str, MissingDirectory]

    def without(self, path: str, problem: str) -> KnownDirectories:
        """A copy in which a present directory that turned out to be unusable is among the missing ones."""
        present = dict(self.present)
        directory_id = present.pop(path)
        return KnownDirectories(present, self.missing | {directory_id: MissingDirectory(path, problem)})

    def notes(self) -> dict[str, DirectoryNote]:
        """The note for each present directory, by path; empty if there is only one directory."""
        paths = {directory_id: path for path, directory_id in self.present.items()}
        paths |= {directory_id: missed.path for directory_id, missed in self.missing.items()}
        if len(paths) < 2:
            return {}
        return {path: DirectoryNote(directory_id, paths) for path, directory_id in self.present.items()}


def identify(seen: Sequence[SeenDirectory], new_id: Callable[[], str]) -> KnownDirectories:
    """Distinguish present directories from missing ones.

    A directory without a note is new, unless another directory knows its path: then it is the known directory if it
    names an owner, and a replacement of it if not. An unreadable directory that no note names is in neither set: the
    caller refuses it. A known directory at the path of another one does not make that one present: it may be covered by
    a mount.
    """
    present: dict[str, str] = {}
    for directory in seen:
        if directory.note is not None and directory.note.directory_id not in present.values():  # not a copy
            present[directory.path] = directory.note.directory_id
    missed = _missed(seen, present.values())
    for directory in seen:
        if directory.path in present or directory.problem:
            continue
        ids = [directory_id for directory_id, path in missed.items() if path == directory.path]
        if not ids:
            present[directory.path] = new_id()
        elif directory.is_owned:
            present[directory.path] = ids[0]
            del missed[ids[0]]
    problems = {directory.path: directory.problem or NOT_THERE for directory in seen} | dict.fromkeys(present, COVERED)
    missing = {
        directory_id: MissingDirectory(path, problems.get(path, NOT_CONFIGURED))
        for directory_id, path in missed.items()
    }
    return KnownDirectories(present, missing)


def _missed(seen: Sequence[SeenDirectory], present_ids: Iterable[str]) -> dict[str, str]:
    """The paths of absent directories that notes name, by id."""
    known: dict[str, str] = {}
    for directory in seen:
        if directory.note is not None:
            known |= directory.note.paths
    there = set(present_ids)
    return {directory_id: path for directory_id, path in known.items() if directory_id not in there}
