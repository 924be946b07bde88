"""The log of an archive: small files beside the data, which say which data files belong to the archive.

    data/commit=NAME/topic=T/date=D/*.parquet   pieces, written by one Spark job each and never changed
    _log/batch-000000000042.json                a micro-batch: the pieces it added, how far it read each partition
    _log/snapshot-000000000007.json             the whole archive as of some batch; later batches come on top
    _checkpoint/                                Spark's checkpoint of the query that writes the batches

Readers go by the log and never by the folders. The archive is the newest snapshot and every batch after the one that
the snapshot names. A file of the log appears whole or not at all, after the data that it names; data that no file of
the log names is not part of the archive. So a crash at any point leaves the archive as it was before or as it is after.
The writer of batches and the one of snapshots (compaction, expiry, an audit's findings) never write the same file and
need not know of each other. Of two that write the same snapshot, the second makes its change to the first one's, if it
still can: data that another job has replaced meanwhile cannot be replaced again.

Readers take the list of pieces once, at their start. What a snapshot takes out of the archive stays on disk for a
grace that `clean` is told, so that a reader which began before still has its files.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from barnabas.spark_examples.filesystem import AlreadyThere, FileSystem
from barnabas.spark_examples.offsets import Offsets, flat, nested

VERSION = 1
LOG_FOLDER = "_log"
EXPIRED = "expired"
"""Why offsets are not there that `expire` took away."""


class ArchiveError(Exception):
    """The archive and what is asked of it do not fit; the text says why."""


@dataclass(frozen=True, slots=True)
class Contents:
    """The records of one partition in a piece."""

    partition: int
    rows: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Piece:
    """The data of one topic and date that one job wrote: a folder of Parquet files."""

    path: str
    """Below ARCHIVE/data."""
    topic: str
    date: str
    files: int
    bytes: int
    contents: tuple[Contents, ...]

    @property
    def rows(self) -> int:
        """Its records."""
        return sum(each.rows for each in self.contents)


@dataclass(frozen=True, slots=True)
class Explained:
    """Offsets that no record of the archive has, and why; `end` is exclusive."""

    topic: str
    partition: int
    start: int
    end: int
    reason: str


def together(explained: Iterable[Explained]) -> tuple[Explained, ...]:
    """The same as few ranges: neighbours of one reason, and whatever else touches an expired range, become one.

    What lay between records that are gone (a transaction's marker) is worth no line of its own for ever.
    """
    merged: list[Explained] = []
    for each in sorted(explained, key=lambda each: (each.topic, each.partition, each.start, each.end)):
        last = merged[-1] if merged else None
        if last is None or (last.topic, last.partition) != (each.topic, each.partition) or each.start > last.end:
            merged.append(each)
        elif each.reason == last.reason or EXPIRED in (each.reason, last.reason):
            reason = each.reason if each.reason == last.reason else EXPIRED
            merged[-1] = replace(last, end=max(last.end, each.end), reason=reason)
        elif each.end > last.end:
            merged.append(replace(each, start=last.end))
    return tuple(merged)


@dataclass(frozen=True, slots=True)
class Replaced:
    """A piece that is no longer part of the archive, since when (ms)."""

    path: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class State:
    """The archive at one moment."""

    snapshot: int = 0
    """The number of the newest snapshot; 0 if there is none."""
    through: int = -1
    """The newest batch that is contained."""
    snapshot_through: int = -1
    """The newest batch that the snapshot contains."""
    pieces: tuple[Piece, ...] = ()
    starts: Offsets = field(default_factory=dict)
    """The first offset of each partition that was read."""
    ends: Offsets = field(default_factory=dict)
    """The offset after the last one that was read."""
    explained: tuple[Explained, ...] = ()
    """Gaps whose reason is known: expired, transaction markers, aborted, compacted."""
    replaced: tuple[Replaced, ...] = ()
    """Pieces that are still to be deleted."""

    def with_batch(self, batch: "Batch") -> "State":
        """The archive with one more batch."""
        first_seen = {partition: batch.starts.get(partition, 0) for partition in batch.ends.keys() - self.ends.keys()}
        return replace(
            self,
            through=batch.number,
            pieces=self.pieces + batch.pieces,
            starts={**self.starts, **first_seen},
            ends={**self.ends, **batch.ends},
        )

    def has(self, batch_id: int, ends: Offsets) -> bool:
        """Whether a micro-batch is in the archive already: Spark repeats the last one after a crash.

        Raises ArchiveError when the batch is not one that this archive waits for.
        """
        if batch_id == self.through + 1:
            return False
        if batch_id == self.through and all(self.ends.get(partition) == end for partition, end in ends.items()):
            return True
        raise ArchiveError(
            f"the checkpoint is at batch {batch_id}, the archive at {self.through}: one of them is lost or another's. "
            "Archive into a new place; this one stays readable."
        )

    def with_explained(self, found: Iterable[Explained]) -> "State":
        """The archive with some more gaps explained."""
        return replace(self, explained=together((*self.explained, *found)))

    def with_other_pieces(self, removed: Collection[Piece], added: Sequence[Piece], now_ms: int) -> "State":
        """The archive with some pieces in place of others. Raises ArchiveError when those are not part of it."""
        unwanted = set(removed)
        if not unwanted <= set(self.pieces):
            raise ArchiveError("another job wrote the same data first: the archive is unchanged")
        kept = [piece for piece in self.pieces if piece not in unwanted]
        gone = [Replaced(piece.path, now_ms) for piece in removed]
        return replace(self, pieces=(*kept, *added), replaced=(*self.replaced, *gone))


@dataclass(frozen=True, slots=True)
class Batch:
    """The pieces that one micro-batch added; `starts` are those of a query's very first batch."""

    number: int
    pieces: tuple[Piece, ...]
    starts: Offsets
    ends: Offsets


class ArchiveLog:
    """The log of the archive at a URI."""

    def __init__(self, files: FileSystem, archive: str) -> None:
        self.files = files
        self.archive = archive.rstrip("/")
        self.folder = f"{self.archive}/{LOG_FOLDER}"
        self.data = f"{self.archive}/data"
        self.checkpoint = f"{self.archive}/_checkpoint"

    def state(self) -> State:
        """The archive as it is now. Raises ArchiveError for a log of a later version."""
        batches, snapshots = self._numbers()
        state = State()
        if snapshots:
            state = _state_from(json.loads(self.files.read_text(self.snapshot_path(snapshots[-1]))))
        for number in (each for each in batches if each > state.through):
            if number != state.through + 1:
                break  # a listing may see a file and not the one before it: what follows a gap is of another moment
            state = state.with_batch(self.batch(number))
        return state

    def batch(self, number: int) -> Batch:
        """One batch's file."""
        return _batch_from(json.loads(self.files.read_text(self.batch_path(number))))

    def commit_batch(self, batch: Batch) -> None:
        """Add a batch."""
        self.files.create(self.batch_path(batch.number), json.dumps(_batch_to(batch)))

    def commit_snapshot(self, change: Callable[[State], State]) -> State:
        """Make the archive what `change` makes of it (with the batches that came meanwhile).

        `change` is asked again when somebody else has committed a snapshot meanwhile; it raises ArchiveError when what
        it wants does not fit the archive any more.
        """
        while True:
            state = change(self.state())
            new = replace(state, snapshot=state.snapshot + 1, snapshot_through=state.through)
            with suppress(AlreadyThere):
                self.files.create(self.snapshot_path(new.snapshot), json.dumps(_state_to(new)))
                return new

    def planned_ends(self, batch_id: int) -> Offsets:
        """The planned end offsets of a batch, from Spark's checkpoint. Offsets without a record count, too."""
        return _offsets(self.files.read_text(f"{self.checkpoint}/offsets/{batch_id}"))

    def planned_starts(self) -> Offsets:
        """The offsets at which Spark began its very first batch, from its checkpoint."""
        return _offsets(self.files.read_text(f"{self.checkpoint}/sources/0/0"))

    def clean(self, now_ms: int, grace_ms: int) -> int:
        """Delete what left the archive, or was written for it and never became part of it, longer ago than `grace_ms`.

        Returns how many things were deleted. A grace shorter than the longest read, or the longest micro-batch, takes
        files from under it.
        """
        state = self.state()
        oldest = now_ms - grace_ms
        gone = {each for each in state.replaced if each.at_ms < oldest}
        kept = [each for each in state.replaced if each not in gone]
        unwanted = [f"{self.data}/{each.path}" for each in gone]
        paths = [*(piece.path for piece in state.pieces), *(each.path for each in kept)]
        jobs = {path.partition("/")[0] for path in paths}
        for job in self.files.entries(self.data):
            uri = f"{self.data}/{job.name}"
            if job.name not in jobs and (self.files.usage(uri).newest_ms or job.modified_ms) < oldest:
                unwanted.append(uri)
        unwanted += [f"{self.folder}/{name}" for name in self._past_files(state, oldest)]
        for uri in unwanted:
            self.files.delete(uri)
        if gone:
            self.commit_snapshot(
                lambda now: replace(now, replaced=tuple(each for each in now.replaced if each not in gone))
            )
        return len(unwanted)

    def _past_files(self, state: State, oldest: int) -> list[str]:
        """Files of the log that the newest snapshot has made superfluous."""
        past = []
        for entry in self.files.entries(self.folder):
            kind, number = _kind_of(entry.name)
            is_past = {"batch": number <= state.snapshot_through, "snapshot": number < state.snapshot, "other": True}[
                kind
            ]
            past += [entry.name] if is_past and entry.modified_ms < oldest else []
        return past

    def batch_path(self, number: int) -> str:
        """The path of a batch's file."""
        return f"{self.folder}/batch-{number:012d}.json"

    def snapshot_path(self, number: int) -> str:
        """The path of a snapshot."""
        return f"{self.folder}/snapshot-{number:012d}.json"

    def _numbers(self) -> tuple[list[int], list[int]]:
        kinds: dict[str, list[int]] = {"batch": [], "snapshot": [], "other": []}
        for entry in self.files.entries(self.folder):
            kind, number = _kind_of(entry.name)
            kinds[kind].append(number)
        return sorted(kinds["batch"]), sorted(kinds["snapshot"])


def _kind_of(name: str) -> tuple[str, int]:
    match = re.fullmatch(r"(batch|snapshot)-(\d+)\.json", name)
    return (match[1], int(match[2])) if match else ("other", -1)


# --- the form of the files ----------------------------------------------------------------------------------------


def _offsets(text: str) -> Offsets:
    """Offsets out of a file of Spark's checkpoint: the last line is JSON."""
    return flat(json.loads(text[text.index("{") :].strip().splitlines()[-1]))


def _pieces_from(listed: Iterable[Mapping[str, Any]]) -> tuple[Piece, ...]:
    return tuple(
        Piece(**{**each, "contents": tuple(Contents(**contents) for contents in each["contents"])}) for each in listed
    )


def _pieces_to(pieces: Sequence[Piece]) -> list[dict[str, Any]]:
    return [asdict(piece) for piece in pieces]


def _checked(document: dict[str, Any]) -> dict[str, Any]:
    if document["version"] != VERSION:
        raise ArchiveError(f"the archive's log has version {document['version']}, this program knows {VERSION}")
    return document


def _batch_to(batch: Batch) -> dict[str, Any]:
    return {
        "version": VERSION,
        "batch": batch.number,
        "pieces": _pieces_to(batch.pieces),
        "starts": nested(batch.starts),
        "ends": nested(batch.ends),
    }


def _batch_from(document: dict[str, Any]) -> Batch:
    found = _checked(document)
    pieces = _pieces_from(found["pieces"])
    return Batch(found["batch"], pieces, flat(found["starts"]), flat(found["ends"]))


def _explained_to(explained: Sequence[Explained]) -> dict[str, dict[str, dict[str, list[int]]]]:
    """{topic: {partition: {reason: [start, end, start, end, ...]}}}: there is one for each transaction."""
    topics: dict[str, dict[str, dict[str, list[int]]]] = {}
    for each in explained:
        reasons = topics.setdefault(each.topic, {}).setdefault(str(each.partition), {})
        reasons.setdefault(each.reason, []).extend((each.start, each.end))
    return topics


def _explained_from(document: Mapping[str, Mapping[str, Mapping[str, list[int]]]]) -> tuple[Explained, ...]:
    return together(
        Explained(topic, int(partition), start, end, reason)
        for topic, partitions in document.items()
        for partition, reasons in partitions.items()
        for reason, bounds in reasons.items()
        for start, end in zip(bounds[::2], bounds[1::2], strict=True)
    )


def _state_to(state: State) -> dict[str, Any]:
    return {
        "version": VERSION,
        "snapshot": state.snapshot,
        "through": state.through,
        "pieces": _pieces_to(state.pieces),
        "starts": nested(state.starts),
        "ends": nested(state.ends),
        "explained": _explained_to(state.explained),
        "replaced": [asdict(each) for each in state.replaced],
    }


def _state_from(document: dict[str, Any]) -> State:
    found = _checked(document)
    return State(
        snapshot=found["snapshot"],
        through=found["through"],
        snapshot_through=found["through"],
        pieces=_pieces_from(found["pieces"]),
        starts=flat(found["starts"]),
        ends=flat(found["ends"]),
        explained=_explained_from(found["explained"]),
        replaced=tuple(Replaced(**each) for each in found["replaced"]),
    )
