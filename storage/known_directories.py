"""Which log directories a broker has, so that one whose disk is not mounted is missed instead of taken for a new one.

Each directory of a broker that has several holds a note, `barnabas-log-directories`: an id of its own, and the ids of
all of them with the paths that they had in `log.dirs`. Kafka, which does not look at the file, takes an empty directory
for a new one. Reordered, renamed and new directories are told apart by id and path; the decision is pure.
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
    """What one directory says: its id, and the path of each directory that it knows of, by id, itself among them."""

    directory_id: str
    paths: dict[str, str]

    def encode(self) -> bytes:
        """The content of the file: `ID PATH` per line, its own first."""
        ids = sorted(self.paths, key=lambda directory_id: (directory_id != self.directory_id, directory_id))
        return encode_checkpoint(f"{directory_id} {quote(self.paths[directory_id])}" for directory_id in ids)

    @classmethod
    def decode(cls, data: bytes) -> DirectoryNote:
        """Read the file. Raises CorruptFile."""
        # The number of lines is not compared: an operator may delete that of a directory given up.
        lines = data.splitlines(keepends=True)
        counted = [*lines[:1], b"%d\n" % max(0, len(lines) - 2), *lines[2:]]
        try:
            paths = {directory_id: unquote(path) for directory_id, path in decode_checkpoint(b"".join(counted))}
            return cls(next(iter(paths)), paths)
        except (ValueError, StopIteration):
            raise CorruptFile("a note of log directories with a malformed line, or with none") from None


class SeenDirectory(NamedTuple):
    """One of `log.dirs`, as a start finds it. `is_owned`: it says whose it is; `problem`: why it cannot be read."""

    path: str
    note: DirectoryNote | None
    is_owned: bool
    problem: str = ""


class MissingDirectory(NamedTuple):
    """One that the others know of: the path that it had, which another one may have now, and why it is missed."""

    path: str
    problem: str


class KnownDirectories(NamedTuple):
    """Which directories there are, their ids by path, and which are missed, by id. No id is in both."""

    present: dict[str, str]
    missing: dict[str, MissingDirectory]

    def without(self, path: str, problem: str) -> KnownDirectories:
        """As these, but with one of them, which is there and turned out to be of no use, among the missing ones."""
        present = dict(self.present)
        directory_id = present.pop(path)
        return KnownDirectories(present, self.missing | {directory_id: MissingDirectory(path, problem)})

    def notes(self) -> dict[str, DirectoryNote]:
        """What each directory that is there is to say, by path; nothing where there is but one."""
        paths = {directory_id: path for path, directory_id in self.present.items()}
        paths |= {directory_id: missed.path for directory_id, missed in self.missing.items()}
        if len(paths) < 2:
            return {}
        return {path: DirectoryNote(directory_id, paths) for path, directory_id in self.present.items()}


def identify(seen: Sequence[SeenDirectory], new_id: Callable[[], str]) -> KnownDirectories:
    """Tell the directories that are there from those that are missed.

    A directory without a note is new, unless another one knows its path: then it is the same one if it says at all
    whose it is, and what stands in its place if not. One that nobody knows of and that cannot be read is for the caller
    to refuse: it is among neither. A known directory at the path of another one does not make that one known again: it
    may lie below a disk that is mounted over it.
    """
    present: dict[str, str] = {}
    for directory in seen:
        if directory.note is not None and directory.note.directory_id not in present.values():  # no copy of another one
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
    """The paths of directories that others know of, by id."""
    known: dict[str, str] = {}
    for directory in seen:
        if directory.note is not None:
            known |= directory.note.paths
    there = set(present_ids)
    return {directory_id: path for directory_id, path in known.items() if directory_id not in there}
