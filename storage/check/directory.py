"""Check a log directory offline: each file against its format, and the files against each other.

The check only reads. The directory should not be in use: a log that a broker is writing looks torn. Files may be
damaged or malicious: memory stays bounded in either case.

    report = check_directory(OsFiles(), Path("/var/lib/kafka/data"), deep=True)

`deep` also decodes the records; without it batches are checked by header and CRC.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from barnabas.storage import checkpoints
from barnabas.storage.check.report import Finding, Level, Report
from barnabas.storage.check.segment import DEFAULT_LIMITS, CheckLimits, FileWindow, SegmentCheck
from barnabas.storage.errors import CorruptFile
from barnabas.storage.files import TEMPORARY_SUFFIX, DirectoryEntry, Files
from barnabas.storage.leader_epochs import LeaderEpochs
from barnabas.storage.partition_metadata import is_somebody_elses
from barnabas.storage.producer_snapshot import decode_snapshot
from barnabas.wire.names import topic_id_to_text

__all__ = ["Finding", "Level", "Report", "check_directory", "is_log_directory"]

T = TypeVar("T")

SMALL_FILE_MAX: Final = 64 * 1024 * 1024
"""Checkpoints and snapshots are read as a whole; a larger one is a finding."""

_PARTITION_FOLDER: Final = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>[0-9]+)")
_DELETED_FOLDER: Final = re.compile(r".+\.[0-9a-f]{32}-delete")
_UNFINISHED_FOLDER: Final = re.compile(r".+\.[0-9a-f]{32}-(future|stray)")
_SEGMENT_FILE: Final = re.compile(r"(?P<offset>[0-9]{20})(?P<suffix>\.[a-z]+)")
_SEGMENT_SUFFIXES: Final = frozenset({".log", ".index", ".timeindex", ".txnindex", ".snapshot"})
_LEFT_OVER_SUFFIXES: Final = (".deleted", ".cleaned", ".swap", TEMPORARY_SUFFIX)
_OF_BROKERS: Final = (checkpoints.META_PROPERTIES_FILE, checkpoints.RECOVERY_POINT_FILE)
_OTHER_OFFSETS: Final = (checkpoints.HIGH_WATERMARK_FILE, checkpoints.LOG_START_FILE)


def check_directory(files: Files, path: Path, *, deep: bool = False, limits: CheckLimits = DEFAULT_LIMITS) -> Report:
    """Check a log directory (or the directory of a single partition) and everything in it; `deep` also decodes the
    records. Blocking; nothing is written.

    Raises:
        OSError: the directory itself cannot be listed. Files that cannot be read are findings.
    """
    report = Report(str(path))
    check = _DirectoryCheck(files, str(path), report, deep, limits)
    check.run()
    return report


def is_log_directory(files: Files, path: str) -> bool:
    """Whether a directory contains a file that identifies a log directory or a partition. Blocking.

    Raises:
        OSError: it cannot be listed.
    """
    entries = files.list(path)
    names = {entry.name for entry in entries}
    if not names.isdisjoint(_OF_BROKERS) or any(map(_is_log_file, names)):
        return True
    return any(
        entry.is_directory
        and _PARTITION_FOLDER.fullmatch(entry.name)
        and not is_somebody_elses(files, f"{path}/{entry.name}")
        and any(_is_log_file(found.name) for found in files.list(f"{path}/{entry.name}"))
        for entry in entries
    )


def _is_log_file(name: str) -> bool:
    return name.endswith(".log") and _SEGMENT_FILE.fullmatch(name) is not None


class _DirectoryCheck:
    """Checks one log directory."""

    def __init__(self, files: Files, path: str, report: Report, deep: bool, limits: CheckLimits) -> None:
        self._files = files
        self._path = path
        self._report = report
        self._deep = deep
        self._limits = limits
        self._end_offsets: dict[tuple[str, int], int] = {}
        self._recovery_points: dict[tuple[str, int], int] = {}
        self._topic_ids: dict[str, bytes] = {}

    def run(self) -> None:
        entries = sorted(self._files.list(self._path), key=lambda entry: entry.name)
        if any(_is_log_file(entry.name) for entry in entries):
            folder = _PARTITION_FOLDER.fullmatch(self._path.rstrip("/").rpartition("/")[2])
            names = [entry.name for entry in entries if not entry.is_directory]
            self._check_partition(self._path, "", names, folder, was_clean=False)
            return
        was_clean = any(entry.name == checkpoints.CLEAN_SHUTDOWN_FILE for entry in entries)
        if any(entry.name == checkpoints.RECOVERY_POINT_FILE for entry in entries):
            self._recovery_points = self._decoded("", checkpoints.RECOVERY_POINT_FILE, checkpoints.decode_offsets) or {}
        for entry in entries:
            if entry.is_directory:
                self._check_folder(entry, was_clean)
        names = [entry.name for entry in entries if not entry.is_directory]
        if checkpoints.META_PROPERTIES_FILE in names:
            self._decoded("", checkpoints.META_PROPERTIES_FILE, checkpoints.MetaProperties.decode)
        else:
            self._report.note(checkpoints.META_PROPERTIES_FILE, "is missing: no broker has finished starting here")
        self._check_offsets(checkpoints.RECOVERY_POINT_FILE, self._recovery_points)
        for name in _OTHER_OFFSETS:
            if name in names:
                self._check_offsets(name, self._decoded("", name, checkpoints.decode_offsets) or {})

    def _check_folder(self, entry: DirectoryEntry, was_clean: bool) -> None:
        """Check one subdirectory of the log directory, by the kind that its name indicates."""
        name = entry.name
        if _DELETED_FOLDER.fullmatch(name):
            self._report.note(name, "is a deleted partition; the next start removes it")
            return
        if _UNFINISHED_FOLDER.fullmatch(name):
            self._report.note(name, "is not a partition in use and was not checked")
            return
        folder = _PARTITION_FOLDER.fullmatch(name)
        path = f"{self._path}/{name}"
        if folder is None or (self._is_unnamed(folder) and is_somebody_elses(self._files, path)):
            self._report.note(name, "is no partition and was not checked")
            return
        try:
            names = [found.name for found in self._files.list(path) if not found.is_directory]
        except OSError as error:
            self._report.error(name, f"cannot be listed: {error}")
            return
        self._check_partition(path, name + "/", names, folder, was_clean)

    def _is_unnamed(self, folder: re.Match[str]) -> bool:
        return (folder["topic"], int(folder["partition"])) not in self._recovery_points

    def _check_partition(
        self, path: str, folder: str, names: list[str], match: re.Match[str] | None, was_clean: bool
    ) -> None:
        """Check all files of one partition."""
        self._report.partitions += 1
        present = frozenset(names)
        bases = self._segment_bases(folder, names)
        epochs: list[tuple[int, int]] = []
        end_offset = 0
        last_epoch = -1
        ongoing: dict[int, int] = {}
        for number, base_offset in enumerate(bases):
            if number and base_offset < end_offset:
                self._report.error(
                    f"{folder}{base_offset:020d}.log", f"begins before the end of the segment before it, {end_offset}"
                )
            file = f"{folder}{base_offset:020d}.log"
            try:
                segment = SegmentCheck(
                    self._files,
                    path,
                    folder,
                    present,
                    base_offset,
                    self._report,
                    may_be_torn=not was_clean and number == len(bases) - 1,
                    deep=self._deep,
                    limits=self._limits,
                    last_epoch=last_epoch,
                    ongoing=ongoing,
                )
                segment.run()
            except OSError as error:
                self._report.error(file, f"cannot be read: {error}")
                continue
            epochs += segment.epochs
            last_epoch = segment.last_epoch
            end_offset = max(end_offset, segment.next_offset)
        if match is not None:
            self._end_offsets[match["topic"], int(match["partition"])] = end_offset
            self._check_partition_metadata(folder, present, match["topic"])
        flushed_to = end_offset
        if not was_clean:
            flushed_to = 0 if match is None else self._recovery_points.get((match["topic"], int(match["partition"])), 0)
        self._check_leader_epochs(folder, present, epochs, end_offset, flushed_to)
        for name in sorted(names):
            if name.endswith(".snapshot"):
                self._check_snapshot(folder, name)

    def _segment_bases(self, folder: str, names: list[str]) -> list[int]:
        """The base offsets of the segments; reports files that belong to no segment."""
        bases = {int(name[:20]) for name in names if name.endswith(".log") and _SEGMENT_FILE.fullmatch(name)}
        for name in sorted(names):
            match = _SEGMENT_FILE.fullmatch(name)
            if name.endswith(_LEFT_OVER_SUFFIXES):
                self._report.note(folder + name, "is left over; the next start removes it")
            elif match is None or match["suffix"] not in _SEGMENT_SUFFIXES:
                if name not in (checkpoints.LEADER_EPOCH_FILE, checkpoints.PARTITION_METADATA_FILE):
                    self._report.note(folder + name, "is no file of a partition and was not checked")
            elif match["suffix"] != ".snapshot" and int(match["offset"]) not in bases:
                self._report.warning(folder + name, "belongs to no segment")
            elif int(match["offset"]) >= 1 << 63:
                self._report.error(folder + name, "has a name that is no offset")
        if not bases:
            self._report.note(folder or ".", "has no segments")
        return sorted(base for base in bases if base < 1 << 63)

    def _check_leader_epochs(
        self, folder: str, present: frozenset[str], epochs: list[tuple[int, int]], end_offset: int, flushed_to: int
    ) -> None:
        """The leader epochs of the batches must be those of the checkpoint, except epochs that began after the last
        flush: the checkpoint is written with a flush, and recovery after a crash adds the epochs of later batches.
        """
        name = checkpoints.LEADER_EPOCH_FILE
        if name not in present:
            if epochs:
                self._report.note(folder + name, "is missing; the next start builds it")
            return
        entries = self._decoded(folder, name, checkpoints.decode_leader_epochs)
        if entries is None:
            return
        known = LeaderEpochs(entries)
        if known.entries != entries:
            self._report.error(folder + name, "epochs and offsets are not ascending")
            return
        # Epochs from before the log start offset are dropped, while their batches stay until the whole segment is
        # deleted.
        first = known.earliest_entry
        for epoch, offset in epochs:
            if first is not None and offset < first[1] and epoch <= first[0]:
                continue
            if offset >= flushed_to and epoch > known.latest_epoch:
                self._report.note(folder + name, f"does not have epoch {epoch} yet; the next start adds it")
            elif known.epoch_for(offset) != epoch:
                self._report.error(
                    folder + name,
                    f"says epoch {known.epoch_for(offset)} where the log has {epoch}",
                    offset=offset,
                )
        if known.latest_start_offset > end_offset:
            self._report.warning(
                folder + name, f"epoch {known.latest_epoch} starts behind the end of the log", offset=end_offset
            )

    def _check_partition_metadata(self, folder: str, present: frozenset[str], topic: str) -> None:
        """Check that all partitions of a topic have the same topic id."""
        name = checkpoints.PARTITION_METADATA_FILE
        if name not in present:
            self._report.note(folder + name, "is missing: the partition has no topic id")
            return
        topic_id = self._decoded(folder, name, checkpoints.decode_partition_metadata)
        if topic_id is None:
            return
        known = self._topic_ids.setdefault(topic, topic_id)
        if known != topic_id:
            self._report.error(
                folder + name,
                f"topic id {topic_id_to_text(topic_id)}, other partitions have {topic_id_to_text(known)}",
            )

    def _check_snapshot(self, folder: str, name: str) -> None:
        """A producer snapshot must not refer to offsets at or beyond the offset in its name."""
        match = _SEGMENT_FILE.fullmatch(name)
        producers = self._decoded(folder, name, decode_snapshot)
        if producers is None or match is None:
            return
        end_offset = int(match["offset"])
        for producer in producers:
            last_offset = producer.batches[-1].last_offset if producer.batches else -1
            if max(last_offset, producer.transaction_first_offset) >= end_offset:
                self._report.error(
                    folder + name,
                    f"producer {producer.producer_id} has offset {last_offset}, behind the snapshot's {end_offset}",
                )

    def _check_offsets(self, name: str, offsets: dict[tuple[str, int], int]) -> None:
        """Check that the offsets of a checkpoint lie within their logs."""
        for (topic, partition), offset in offsets.items():
            end_offset = self._end_offsets.get((topic, partition))
            if end_offset is None:
                self._report.note(name, f"names {topic}-{partition}, which is not here")
            elif not 0 <= offset <= end_offset:
                self._report.warning(name, f"{topic}-{partition} ends at {end_offset}, not {offset}", offset=offset)

    def _decoded(self, folder: str, name: str, decode: Callable[[bytes], T]) -> T | None:
        """Read and decode a small file; reports a failure and returns None."""
        try:
            window = FileWindow(self._files, f"{self._path}/{folder}{name}", self._limits.window_bytes)
            try:
                if window.size > SMALL_FILE_MAX:
                    self._report.error(folder + name, f"has {window.size} bytes, more than such a file can have")
                    return None
                return decode(bytes(window.read(0, window.size)))
            finally:
                window.close()
        except OSError as error:
            self._report.error(folder + name, f"cannot be read: {error}")
        except CorruptFile as error:
            self._report.error(folder + name, str(error))
        return None
