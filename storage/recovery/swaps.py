"""Cleans up a log's directory before it is opened: finishes or undoes interrupted compactions and deletions.

Source: the first three passes of org.apache.kafka.storage.internals.log.LogLoader. Everything here blocks.
"""

from __future__ import annotations

import re
from typing import Final

from barnabas.storage.descriptors import LogFile
from barnabas.storage.files import TEMPORARY_SUFFIX, Files, unlink_if_exists
from barnabas.storage.scan import OpenSegment
from barnabas.storage.segment import (
    CLEANED_SUFFIX,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    Segment,
)
from barnabas.storage.segment_reader import file_headers

FILE_NAME: Final = re.compile(
    r"(\d{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)((?:\.\d+)?\.deleted|\.cleaned|\.swap)?"
)
"""Base offset, kind and suffix of the files of a log."""


def finish_interrupted_swaps(files: Files, directory: str) -> list[str]:
    """Finish or undo an interrupted compaction, and remove files that were being deleted or written; returns the
    remaining names.

    A `.swap` file replaces the segments it spans, unless a `.cleaned` file at or before it shows that the replacement
    was incomplete.
    """
    names = [entry.name for entry in files.list(directory) if not entry.is_directory]
    for name in [name for name in names if name.endswith(TEMPORARY_SUFFIX)]:
        unlink_if_exists(files, f"{directory}/{name}")
        names.remove(name)
    matches = [match for match in map(FILE_NAME.fullmatch, names) if match and match[3]]
    matches.sort(key=_turn)
    if not matches:
        return names
    cleaned = [int(match[1]) for match in matches if match[3] == CLEANED_SUFFIX]
    first_cleaned = min(cleaned, default=1 << 63)
    swaps = []
    for match in matches:
        if match[3] == SWAP_SUFFIX and int(match[1]) < first_cleaned:
            swaps.append(match)
        else:
            unlink_if_exists(files, f"{directory}/{match[0]}")
    spans = [_span(files, directory, match) for match in swaps if match[2] == LOG_SUFFIX]
    if spans:
        start, end = min(span[0] for span in spans), max(span[1] for span in spans)
        for match in filter(None, map(FILE_NAME.fullmatch, names)):
            if match[3] is None and match[2] != SNAPSHOT_SUFFIX and start <= int(match[1]) < end:
                unlink_if_exists(files, f"{directory}/{match[0]}")
    for match in swaps:
        files.rename(f"{directory}/{match[0]}", f"{directory}/{match[1]}{match[2]}")
    files.sync_directory(directory)
    return [entry.name for entry in files.list(directory) if not entry.is_directory]


def _turn(match: re.Match[str]) -> tuple[bool, bool]:
    """The sort key of the files: in this order the machine may stop after each of them.

    `.cleaned` files come last, so that a removal that they demand is repeated after a crash. A `.log` is renamed before
    its indexes, because before that, indexes of the name count as those of the segment that it replaces.
    """
    return match[3] == CLEANED_SUFFIX, match[2] != LOG_SUFFIX


def _span(files: Files, directory: str, match: re.Match[str]) -> tuple[int, int]:
    """The offsets of a swapped-in segment."""
    path = f"{directory}/{match[0]}"
    end_offset = int(match[1])
    with OpenSegment(files, path) as read:
        for header in file_headers(read, LogFile(path), 0, files.stat(path).size):
            end_offset = header.next_offset
    return int(match[1]), end_offset


def remove_segment_files(files: Files, segment: Segment) -> None:
    """Unlink a segment and its indexes."""
    for suffix in (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
        unlink_if_exists(files, segment.path(suffix))
