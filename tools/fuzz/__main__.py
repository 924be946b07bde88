"""Feeds broken bytes to every reader of foreign bytes (tools/fuzz/targets.py) and keeps what breaks a reader.

    make fuzz SECONDS=600                               all targets, 600 seconds in total
    python -m tools.fuzz --seed 7 records frames        these targets, reproducibly (the seed is printed)
    python -m tools.fuzz --engine atheris records       guided by coverage (Linux on x86-64)

A finding (tools/fuzz/session.py) is written to tests/fuzz/corpus/TARGET/, from where `make test` replays it for ever.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.fuzz.engines import fuzz, fuzz_with_atheris
from tools.fuzz.session import CORPUS
from tools.fuzz.targets import TARGETS, targets


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
    logging.getLogger("barnabas").setLevel(logging.CRITICAL)  # each refused login has a line
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
