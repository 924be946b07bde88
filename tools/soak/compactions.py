"""The stage of compaction at a crash, and the number of compactions: without any, a soak would prove little."""

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from barnabas.clock import SystemClock

CLEANED, SWAP, DELETED = ".cleaned", ".swap", ".deleted"
SHORTLY_S = 1.0
POLL_S = 0.0005
PASS = re.compile(r"(\S+)-\d+: compacted up to offset \d+")


def wait_for_compaction(
    log_dir: Path, stage: str, patience_s: float, sleep: Callable[[float], object] = time.sleep
) -> None:
    """Wait until a new file of a stage (`.cleaned`, `.swap` or `.deleted`) appears, at most for the given time."""
    logs = list(log_dir.glob("*[0-9]"))
    before = set(_files(logs, {stage}))
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline and before.issuperset(_files(logs, {stage})):
        sleep(POLL_S)


def stage_of_crash(log_dir: Path, now_ms: int | None = None) -> str | None:
    """The stage of compaction when the broker ended at `now_ms`, by default just now."""
    found = set(_files(log_dir.glob("*[0-9]"), {CLEANED, SWAP, DELETED}))
    suffixes = {path.suffix for path in found}
    if SWAP in suffixes:
        return "during a swap"
    if CLEANED in suffixes:
        return "during a pass"
    recent_s = (SystemClock().now_ms() if now_ms is None else now_ms) / 1000 - SHORTLY_S
    if any(path.suffix == DELETED and path.stat().st_ctime > recent_s for path in found):
        return f"less than {SHORTLY_S:g} s after a swap"
    return None


def _files(logs: Iterable[Path], suffixes: Collection[str]) -> Iterator[Path]:
    """The files that a pass has written or begins to (`.cleaned`), swaps in (`.swap`) or has replaced (`.deleted`)."""
    for log in logs:
        with suppress(FileNotFoundError):  # a deleted topic
            for name in os.listdir(log):
                if name.endswith(tuple(suffixes)):
                    yield log / name


def passes(log_text: str) -> Counter[str]:
    """The number of the broker's passes, by topic."""
    return Counter(match[1] for match in PASS.finditer(log_text))
