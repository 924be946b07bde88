"""Feeds broken bytes to every reader of foreign bytes (tools/fuzz_targets.py) and keeps what breaks a reader.

    make fuzz SECONDS=600                               all targets, 600 seconds in total
    python -m tools.fuzz --seed 7 records frames        these targets, reproducibly (the seed is printed)
    python -m tools.fuzz --engine atheris records       guided by coverage (Linux on x86-64)

A finding is written to tests/fuzz/corpus/TARGET/, from where `make test` replays it for ever. Findings are: an
exception that the reader does not document, and an input that takes longer than 100 ms + 10 ms per KiB of CPU time.
Memory after the last tenth of a target's inputs is compared with that after the first: it may grow by 5 %, and so may
the number of Python's blocks. libFuzzer's memory, which holds every input that reached something new, is not counted:
it has a process of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import hashlib
import multiprocessing
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import FunctionType
from typing import NamedTuple

import barnabas
from tools.fuzz_targets import ROOT, TARGETS, Target, targets
from tools.mutation import Mutator

CORPUS = ROOT / "tests/fuzz/corpus"
GROWTH_MAX = 1.05
CPU_SECONDS_MAX = 0.1
CPU_SECONDS_PER_KIB_MAX = 0.01
_PAGE_KIB = 4
_BATCH = 200
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


def fuzz(target: Target, seconds: float, rng: random.Random, folder: Path) -> bool:
    """Fuzz one target for `seconds` with mutations; returns whether nothing was found."""
    session = Session(target, folder)
    mutator = Mutator([*target.seeds(), *(path.read_bytes() for path in corpus(target, folder))], rng)
    gc.collect()
    gc.freeze()  # existing objects need not be searched at every sample
    started = time.monotonic()
    while (elapsed := time.monotonic() - started) < seconds:
        for _ in range(_BATCH):
            session.feed(mutator.next())
        session.sample_memory()
    growth = session.growth
    _tell(target, elapsed, len(session.found), growth)
    return not session.found and not growth.is_too_much


def _tell(target: Target, seconds: float, findings: int, growth: Growth) -> None:
    inputs = growth.late.inputs
    print(f"{target.name:20} {inputs:>10} inputs in {seconds:6.1f} s, {findings} findings, {growth}", flush=True)


def fuzz_with_atheris(target: Target, seconds: float, seed: int, folder: Path) -> bool:
    """Fuzz one target with libFuzzer's inputs. libFuzzer runs in a separate process to measure the coverage of each
    input; here the input is read again, where only the reader holds memory.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run_atheris, args=(target, seconds, seed, folder, sender))
    session = Session(target, folder)
    started = time.monotonic()
    process.start()
    sender.close()
    gc.collect()
    gc.freeze()
    with contextlib.suppress(EOFError):
        while True:
            for data in receiver.recv():
                session.feed(data)
            session.sample_memory()
    process.join()
    if process.exitcode or not session.inputs:
        print(f"{target.name:20} libFuzzer ended with {process.exitcode}, see its lines above", flush=True)
        return False
    growth = session.growth
    _tell(target, time.monotonic() - started, len(session.found), growth)
    return not session.found and not growth.is_too_much


def _run_atheris(target: Target, seconds: float, seed: int, folder: Path, inputs: Connection) -> None:
    """Send lists of the inputs that libFuzzer chose. The last list is cut off by libFuzzer's exit, and lost unless it
    contains a finding.
    """
    import atheris

    grown = Path(tempfile.gettempdir()) / "barnabas-fuzz" / target.name
    grown.mkdir(parents=True, exist_ok=True)
    (folder / target.name).mkdir(parents=True, exist_ok=True)
    for index, data in enumerate([*target.seeds(), *(path.read_bytes() for path in corpus(target, folder))]):
        (grown / f"seed-{index}").write_bytes(data)
        run_one(target, data)  # compiles the required decoders, to be instrumented with the rest
    for function in (target.run, *_own_functions()):
        atheris.instrument_func(function)
    batch: list[bytes] = []

    def feed(data: bytes) -> None:
        batch.append(data)
        is_well = False
        with contextlib.suppress(BaseException):  # it is reported when the input is read again
            target.run(data)
            is_well = True
        if len(batch) >= _BATCH or not is_well:
            inputs.send(batch)
            batch.clear()

    arguments = [
        f"-max_total_time={int(seconds)}",
        f"-seed={seed}",
        f"-artifact_prefix={folder / target.name}/",
        f"-max_len={1 << 16}",
        "-timeout=20",
        "-rss_limit_mb=2048",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *arguments, str(grown)], feed)
    atheris.Fuzz()


def _own_functions() -> list[FunctionType]:
    """The functions of Barnabas, also the generated ones, whose coverage is measured. Instrumenting everything takes a
    minute.
    """
    places = (*barnabas.__path__, "<reader of ", "<writer of ")
    found = [each for each in gc.get_objects() if isinstance(each, FunctionType)]
    return [each for each in found if each.__code__.co_filename.startswith(places)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if nothing was found and nothing grew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "targets", nargs="*", metavar="TARGET", help=f"default: all ({' '.join(t.name for t in TARGETS)})"
    )
    parser.add_argument("--seconds", type=float, default=60, help="in total")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--engine", choices=("mutation", "atheris"), default="mutation")
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="where findings are kept")
    options = parser.parse_args(arguments)
    chosen = list(targets(options.targets))
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 31)
    seconds = options.seconds / len(chosen)
    print(f"seed {seed}, {options.seconds:.0f} s for {len(chosen)} targets", flush=True)
    if options.engine == "atheris":
        well = [fuzz_with_atheris(target, seconds, seed, options.corpus) for target in chosen]
    else:
        well = [fuzz(target, seconds, random.Random(f"{seed} {target.name}"), options.corpus) for target in chosen]
    bad = [target.name for target, is_well in zip(chosen, well, strict=True) if not is_well]
    print(f"findings or growth in: {', '.join(bad) or 'none'}")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
