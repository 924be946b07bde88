"""A compaction pass in a process of its own, so that opening millions of records does not delay the event loop.

The parent writes the job as one JSON line to standard input and keeps the pipe open; the results come back as JSON
lines on standard output: `["segment", ...]` for each cleaned segment, then `["end", ...]`, or an error: `["missing",
text]`, `["corrupt", path, position, reason]`, `["refused", errno, text]`, `["error", text]`. The process ends at once
when the pipe closes, so that none outlives its broker.
"""

from __future__ import annotations

import json
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from barnabas.storage.compaction.cleaner import (
    CleanedSegment,
    CleaningJob,
    LastRecord,
    PassEnd,
    SourceSegment,
    run_pass,
)
from barnabas.storage.errors import CorruptFile, CorruptLog, StorageError
from barnabas.storage.files import Files
from barnabas.storage.os_files import OsFiles, UnsyncedFiles, lower_priority

_LONGEST_SLEEP_S: Final = 0.1

_STATEMENT: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from barnabas.broker.upkeep.cleaner_process import main; main()"
)


def command(interpreter: str) -> list[str]:
    """The command that starts the process with a Python; it has the same module path as this one."""
    return [interpreter, "-P", "-c", _STATEMENT, json.dumps([path for path in sys.path if path])]


def encode_job(job: CleaningJob, *, is_durable: bool, max_bytes_per_second: float) -> bytes:
    """The line that starts a pass."""
    fields = {name: getattr(job, name) for name in CleaningJob.__dataclass_fields__}
    fields["producers"] = [[producer_id, *last] for producer_id, last in job.producers.items()]
    return (
        json.dumps({"job": fields, "is_durable": is_durable, "max_bytes_per_second": max_bytes_per_second}) + "\n"
    ).encode()


def decode_job(fields: Mapping[str, Any]) -> CleaningJob:
    """Decode the "job" of a line from `encode_job`."""
    segments = [SourceSegment(*segment) for segment in fields["segments"]]
    producers = {producer_id: LastRecord(offset, epoch) for producer_id, offset, epoch in fields["producers"]}
    return CleaningJob(**{**fields, "segments": segments, "producers": producers})


def decode_result(line: bytes) -> CleanedSegment | PassEnd:
    """Decode one line of the process's output.

    Raises:
        CorruptLog: a batch is damaged.
        StorageError: the pass failed, or the line is invalid or incomplete.
        OSError: an error of the disk.
    """
    if not line.endswith(b"\n"):
        raise StorageError("the cleaning process ended without a result")
    try:
        kind, *fields = json.loads(line)
        if kind == "segment":
            return CleanedSegment(*fields)
        if kind == "end":
            return PassEnd(*fields)
    except (ValueError, TypeError) as error:
        raise StorageError(f"the cleaning process said {line[:100]!r}") from error
    if kind == "missing":
        raise FileNotFoundError(fields[0])
    if kind == "refused":
        raise OSError(*fields)
    if kind == "corrupt":
        raise CorruptLog(*fields)
    raise StorageError(fields[0])


class Throttle:
    """Limits a pass to a number of bytes per second, read and written; zero or less is no limit.

    A wait ends early once `is_over` returns that the pass is no longer needed.
    """

    def __init__(self, max_bytes_per_second: float, is_over: Callable[[], bool] = lambda: False) -> None:
        self._rate = max_bytes_per_second if max_bytes_per_second > 0 else math.inf
        self._is_over = is_over
        self._started_s = time.monotonic()
        self._bytes = 0

    def pause(self, count: int) -> None:
        """Wait until `count` more bytes are within the rate."""
        self._bytes += count
        due_s = self._started_s + self._bytes / self._rate
        while (early_s := due_s - time.monotonic()) > 0.01 and not self._is_over():
            time.sleep(min(early_s, _LONGEST_SLEEP_S))


def main() -> None:
    """Run one pass, with the job from standard input."""
    lower_priority()
    order = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    files: Files = OsFiles() if order["is_durable"] else UnsyncedFiles()
    try:
        for result in run_pass(files, decode_job(order["job"]), Throttle(order["max_bytes_per_second"]).pause):
            _say("segment" if isinstance(result, CleanedSegment) else "end", *result)
    except FileNotFoundError as error:
        _say("missing", str(error))
    except CorruptLog as error:
        _say("corrupt", error.path, error.position, error.reason)
    except StorageError as error:
        _say("error", error.message)
    except CorruptFile as error:
        _say("error", str(error))
    except OSError as error:
        _say("refused", error.errno, error.strerror)
    except Exception as error:  # noqa: BLE001 - the parent logs it
        _say("error", f"{type(error).__name__}: {error}")


def _say(*fields: object) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    signal.raise_signal(signal.SIGKILL)
