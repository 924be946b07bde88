"""One target that is fuzzed: what counts as a finding, where it is kept, and the memory that the reader holds.

Findings are: an exception that the reader does not document, and an input that takes longer than 100 ms + 10 ms per KiB
of CPU time. Memory after the last tenth of a target's inputs is compared with that after the first: it may grow by 5 %,
and so may the number of Python's blocks.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import hashlib
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tools.fuzz.target import ROOT, Target

CORPUS = ROOT / "tests/fuzz/corpus"
GROWTH_MAX = 1.05
CPU_SECONDS_MAX = 0.1
CPU_SECONDS_PER_KIB_MAX = 0.01
_PAGE_KIB = 4
_SAMPLE_RATIO = 1.05


class TooSlow(Exception):
    """An input took more time than its size allows."""


def corpus(target: Target, folder: Path = CORPUS) -> list[Path]:
    """The inputs that once failed on the target."""
    return sorted((folder / target.name).glob("*"))


def run_one(target: Target, data: bytes) -> None:
    """Feed one input. Raises the target's errors, and TooSlow when three runs are too slow."""
    allowed = CPU_SECONDS_MAX + CPU_SECONDS_PER_KIB_MAX * len(data) / 1024
    for _ in range(3):
        started = time.thread_time()
        target.run(data)
        taken = time.thread_time() - started
        if taken <= allowed:
            return
    raise TooSlow(f"{taken:.3f} s of CPU for {len(data)} bytes")


def held_kib() -> int:
    """The resident memory of this process. Freed memory is returned by the C library first, where that is possible:
    otherwise its unused heap grows for minutes, which looks like a leak.
    """
    gc.collect()
    with contextlib.suppress(AttributeError):  # glibc's
        ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_KIB


class Sample(NamedTuple):
    """The memory held after a number of inputs: of the process, and in Python's blocks."""

    inputs: int
    kib: int
    blocks: int

    @classmethod
    def take(cls, inputs: int) -> Sample:
        return cls(inputs, held_kib(), sys.getallocatedblocks())


class Growth(NamedTuple):
    """Memory held after the first tenth of the inputs and after the last input."""

    early: Sample
    late: Sample

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> Growth:
        last = samples[-1]
        return cls(next(each for each in samples if each.inputs >= last.inputs / 10), last)

    @property
    def is_too_much(self) -> bool:
        return self.late.kib > GROWTH_MAX * self.early.kib or self.late.blocks > GROWTH_MAX * self.early.blocks

    def __str__(self) -> str:
        ratio, blocks_ratio = self.late.kib / self.early.kib, self.late.blocks / self.early.blocks
        kib = f"memory {self.early.kib / 1024:.1f} -> {self.late.kib / 1024:.1f} MiB (x {ratio:.3f})"
        return f"{kib}, Python's blocks {self.early.blocks} -> {self.late.blocks} (x {blocks_ratio:.3f})"


class Session:
    """Fuzzing of one target: counts inputs, remembers the places of failures so that each bug is kept once, and samples
    the memory held.
    """

    def __init__(self, target: Target, folder: Path) -> None:
        self.target = target
        self.inputs = 0
        self.found: dict[str, Path] = {}
        self.samples: list[Sample] = []
        self._folder = folder / target.name

    def feed(self, data: bytes) -> None:
        """Feed one input. A failure is kept, not raised."""
        self.inputs += 1
        try:
            run_one(self.target, data)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - any exception is a finding, and a codec's in Rust is no Exception
            self._keep(data, error)

    def sample_memory(self) -> bool:
        """To be called regularly. Takes a sample when the number of inputs has grown by a twentieth, and returns
        whether it did. The total is not known before, so the first tenth is looked up among the samples at the end.
        """
        due = not self.samples or self.inputs >= self.samples[-1].inputs * _SAMPLE_RATIO
        if due:
            self.samples.append(Sample.take(self.inputs))
        return due

    @property
    def growth(self) -> Growth:
        """The growth between the first tenth of the inputs and now."""
        self.samples.append(Sample.take(self.inputs))
        return Growth.of(self.samples)

    def _keep(self, data: bytes, error: BaseException) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{type(error).__name__} at {Path(frames[-1].filename).name}:{frames[-1].lineno}"
        if place in self.found:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self.found[place] = self._folder / f"{hashlib.sha1(data, usedforsecurity=False).hexdigest()[:16]}.bin"
        path.write_bytes(data)
        print(f"FOUND {self.target.name}: {place}: {error}\n  kept as {path}", flush=True)
