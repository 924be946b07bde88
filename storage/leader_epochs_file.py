"""Loads `leader-epoch-checkpoint`, or rebuilds its content from the log's batches. Everything here blocks."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from barnabas.storage.checkpoints import LEADER_EPOCH_FILE, decode_leader_epochs
from barnabas.storage.errors import CorruptFile
from barnabas.storage.files import Files, read_file
from barnabas.storage.leader_epochs import LeaderEpochs
from barnabas.storage.scan import OpenSegment
from barnabas.storage.segment import Segment
from barnabas.storage.segment_reader import file_headers

logger = logging.getLogger(__name__)


def read_leader_epochs(
    files: Files, directory: str, segments: Iterable[Segment], log_start_offset: int, log_end_offset: int
) -> LeaderEpochs:
    """The leader epochs of a log, from their file, or from the batches if the file is missing or unusable; without
    epochs that begin outside the log. Raises OSError.
    """
    path = f"{directory}/{LEADER_EPOCH_FILE}"
    try:
        entries = decode_leader_epochs(read_file(files, path))
    except FileNotFoundError:
        entries = []
    except CorruptFile as error:
        logger.warning("rebuilding %s: %s", path, error)
        entries = []
    epochs = LeaderEpochs(entries or _scan(files, segments))
    epochs.dirty = not entries and len(epochs) > 0
    epochs.truncate_from_start(log_start_offset)
    epochs.truncate_from_end(log_end_offset)
    return epochs


def _scan(files: Files, segments: Iterable[Segment]) -> list[tuple[int, int]]:
    """The epochs and their start offsets, from the headers of all batches. Slow."""
    found: list[tuple[int, int]] = []
    for segment in segments:
        if segment.size:
            with OpenSegment(files, segment.file.path) as read:
                for header in file_headers(read, segment.file, 0, segment.size):
                    if header.partition_leader_epoch > (found[-1][0] if found else -1):
                        found.append((header.partition_leader_epoch, header.base_offset))
    return found
