"""Power cuts under load, with the flush before each acknowledgement and without: `python -m tools.power_cut --cuts 20`.

The broker of a soak (tools/soak) keeps its data on a file system that loses its power every few seconds. With
`barnabas.flush.before.ack=true` nothing acknowledged may be missing afterwards; without, something has to be, or the
cuts are none. Needs root, to mount an image.
"""

import argparse
import random
import sys
from contextlib import suppress
from pathlib import Path

from tools.power_cut.disk import CannotMount, CuttableDisk
from tools.processes.barnabas import BarnabasProcess
from tools.soak.__main__ import describe
from tools.soak.run import NOTHING, WORKERS, Result, soak
from tools.soak.workload import Amount, PlainProducer, Workers

PAGE_BYTES = 4096
ONLY_PRODUCERS: Workers = ((PlainProducer, 2),)
"""For a broker that loses acknowledged data: transactions would hang, because their coordinator lost them."""


def power_cuts(
    cuts: int,
    *,
    flush: bool,
    seed: int,
    plant: str | None = None,
    cut_every_s: float = 3,
    least: Amount = NOTHING,
    quiet: bool = False,
) -> Result:
    """A soak with `cuts` power cuts and one at its end; if losses are expected, with producers only. Before about half
    of the cuts the journal is committed; before the others, names and sizes are as old as the pages.

    Raises CannotMount.
    """
    committed: list[bool] = []
    with CuttableDisk() as disk:

        def cut(process: BarnabasProcess, chance: random.Random) -> None:
            write_back_some(disk, process.log_dir, chance)
            committed.append(chance.random() < 0.5)
            if committed[-1]:
                disk.commit()
            disk.cut()
            process.kill()
            disk.mount()

        result = soak(
            0,
            crash=cut,
            crashes=cuts,
            crash_every_s=cut_every_s,
            seed=seed,
            plant=plant,
            workers=WORKERS if flush and plant is None else ONLY_PRODUCERS,
            overrides={"barnabas.flush.before.ack": str(flush).lower()},
            data_dir=disk.path / "data",
            least=least,
            quiet=quiet,
        )
    print(f"journal committed before a cut: {''.join('ny'[each] for each in committed)}", flush=True)
    return result


def write_back_some(disk: CuttableDisk, directory: Path, chance: random.Random) -> None:
    """Write a part of the unsynced data to the disk: a range of pages of every other segment."""
    for segment in sorted(directory.glob("*/*.log")):
        with suppress(FileNotFoundError):  # compaction has replaced it
            size = segment.stat().st_size
            if size and chance.random() < 0.5:
                start, end = sorted(chance.randrange(0, size + PAGE_BYTES, PAGE_BYTES) for _ in range(2))
                disk.write_back(segment, start, end - start)


def main() -> int:
    """Run both soaks and print the results; exit status 0 if there was no loss with the flush and some loss without."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuts", type=int, default=20)
    parser.add_argument("--cut-every", type=float, default=3, metavar="SECONDS", help="on average (default 3)")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    try:
        safe, control = (
            power_cuts(options.cuts, flush=flush, seed=options.seed, cut_every_s=options.cut_every, quiet=True)
            for flush in (True, False)
        )
    except CannotMount as error:
        print(f"this machine does not let us mount an image: {error}")
        return 1
    print(f"with the flush:\n{describe(safe)}")
    for name, result in (("with", safe), ("without", control)):
        print(
            f"{name} the flush: {result.crashes} cuts, {result.findings.acknowledged} acknowledged records, "
            f"{result.lost} of them lost"
        )
    return int(not safe.is_clean or not control.lost)


if __name__ == "__main__":
    sys.exit(main())
