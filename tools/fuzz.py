"""Feeds broken bytes to every reader of foreign bytes (tools/fuzz_targets.py) and keeps what breaks a reader.

    make fuzz SECONDS=600                               all targets, 600 seconds in total
    python -m tools.fuzz --seed 7 records frames        these targets, reproducibly (the seed is printed)
    python -m tools.fuzz --engine atheris records       guided by coverage; needs `pip install atheris` (Linux)

A finding is written to tests/fuzz/corpus/TARGET/, from where `make test` replays it for ever. Findings are: an
exception that the reader does not document, and an input that takes longer than 100 ms + 10 ms per KiB of CPU time.
Memory is compared between the end of the first tenth of the time and its end: it may grow by 5 %.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import hashlib
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from tools.fuzz_targets import ROOT, TARGETS, Target, targets
from tools.mutation import Mutator

CORPUS = ROOT / "tests/fuzz/corpus"
GROWTH_MAX = 1.05
CPU_SECONDS_MAX = 0.1
CPU_SECONDS_PER_KIB_MAX = 0.01
_PAGE_KIB = 4
_BATCH = 200


class TooSlow(Exception):
    """An input took more time than its size allows."""


def corpus(target: Target, folder: Path = CORPUS) -> list[Path]:
    """What once broke the target."""
    return sorted((folder / target.name).glob("*.bin"))


def run_one(target: Target, data: bytes) -> None:
    """Feed one input. Raises what the target raises, and TooSlow when three runs are."""
    allowed = CPU_SECONDS_MAX + CPU_SECONDS_PER_KIB_MAX * len(data) / 1024
    for _ in range(3):
        started = time.thread_time()
        target.run(data)
        taken = time.thread_time() - started
        if taken <= allowed:
            return
    raise TooSlow(f"{taken:.3f} s of CPU for {len(data)} bytes")


def held_kib() -> int:
    """Resident memory of this process, without what the C library keeps of freed memory where it can be told to let go
    of it: how much of its own heap it has touched once grows for minutes and says nothing about leaks."""
    gc.collect()
    with contextlib.suppress(AttributeError):  # glibc's
        ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_KIB


class Session:
    """Fuzzing of one target; counts inputs and remembers where it failed, so that each bug is kept once."""

    def __init__(self, target: Target, rng: random.Random, folder: Path) -> None:
        self.target = target
        self.inputs = 0
        self.found: dict[str, Path] = {}
        self._folder = folder / target.name
        self._mutator = Mutator([*target.seeds(), *(path.read_bytes() for path in corpus(target, folder))], rng)

    def run_batch(self, count: int = _BATCH) -> None:
        for _ in range(count):
            data = self._mutator.next()
            self.inputs += 1
            try:
                run_one(self.target, data)
            except Exception as error:  # noqa: BLE001 - any exception is a finding
                self._keep(data, error)

    def _keep(self, data: bytes, error: Exception) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{type(error).__name__} at {Path(frames[-1].filename).name}:{frames[-1].lineno}"
        if place in self.found:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self.found[place] = self._folder / f"{hashlib.sha1(data, usedforsecurity=False).hexdigest()[:16]}.bin"
        path.write_bytes(data)
        print(f"FOUND {self.target.name}: {place}: {error}\n  kept as {path}", flush=True)


def fuzz(target: Target, seconds: float, rng: random.Random, folder: Path) -> tuple[int, int, float]:
    """Fuzz one target for that long: (inputs, findings, growth of memory since the first tenth)."""
    session = Session(target, rng, folder)
    started = time.monotonic()
    early_kib = 0
    while (elapsed := time.monotonic() - started) < seconds:
        session.run_batch()
        if not early_kib and elapsed >= seconds / 10:
            early_kib = held_kib()
    late_kib = held_kib()
    growth = late_kib / (early_kib or late_kib)
    print(
        f"{target.name:20} {session.inputs:>10} inputs in {elapsed:6.1f} s, {len(session.found)} findings, "
        f"memory {early_kib / 1024:.1f} -> {late_kib / 1024:.1f} MiB (x {growth:.3f})",
        flush=True,
    )
    return session.inputs, len(session.found), growth


def fuzz_with_atheris(target: Target, seconds: float, seed: int, folder: Path) -> None:
    """Hand one target to libFuzzer; does not return."""
    import atheris

    grown = Path(tempfile.gettempdir()) / "barnabas-fuzz" / target.name
    grown.mkdir(parents=True, exist_ok=True)
    for index, data in enumerate(target.seeds()):
        (grown / f"seed-{index}").write_bytes(data)
    (folder / target.name).mkdir(parents=True, exist_ok=True)
    atheris.instrument_all()
    atheris.Setup(
        [
            sys.argv[0],
            f"-max_total_time={int(seconds)}",
            f"-seed={seed}",
            f"-artifact_prefix={folder / target.name}/",
            "-rss_limit_mb=2048",
            str(grown),
        ],
        target.run,
    )
    atheris.Fuzz()


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the number of findings, and of targets that grew."""
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
    print(f"seed {seed}, {options.seconds:.0f} s for {len(chosen)} targets", flush=True)
    if options.engine == "atheris":
        if len(chosen) != 1:
            parser.error("atheris takes one target")
        fuzz_with_atheris(chosen[0], options.seconds, seed, options.corpus)
    results = [
        fuzz(target, options.seconds / len(chosen), random.Random(f"{seed} {target.name}"), options.corpus)
        for target in chosen
    ]
    inputs, findings = sum(result[0] for result in results), sum(result[1] for result in results)
    grown = [target.name for target, result in zip(chosen, results, strict=True) if result[2] > GROWTH_MAX]
    print(f"{inputs} inputs, {findings} findings, memory grew in: {', '.join(grown) or 'none'}")
    return min(findings + len(grown), 1)


if __name__ == "__main__":
    sys.exit(main())
