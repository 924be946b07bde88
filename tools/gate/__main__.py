"""Run a tier of the tests: `python -m tools.gate [gate|full] [arguments of pytest]`."""

import argparse
import random
import sys
from collections.abc import Sequence
from typing import Final

from tools.gate.report import report
from tools.gate.run import NO_TESTS, ROOT, Run, record_folder
from tools.gate.tiers import TIERS
from tools.waiting import PATIENCE_S

INTERRUPTED: Final = 130


def main(words: Sequence[str]) -> int:
    """Return the exit status: 0 for success, 1 for a failure, 5 without any test, 130 after an interrupt."""
    parser = argparse.ArgumentParser("python -m tools.gate", description=__doc__, allow_abbrev=False)
    parser.add_argument("tier", choices=sorted(TIERS), help="gate: what each change must pass; full: all at length")
    parser.add_argument("--anew", action="store_true", help="full: begin anew where a run was interrupted")
    options, arguments = parser.parse_known_args(words)
    is_full = options.tier == "full"
    folder = record_folder(ROOT, options.tier, is_full and not options.anew, arguments)
    environment = {"PYTHONHASHSEED": hash_seed(is_full), "BARNABAS_TESTING_TIMEOUT_S": f"{PATIENCE_S:g}"}
    run = Run(TIERS[options.tier], folder, [*arguments, *chance(is_full)], environment)
    try:
        run.run()
    except KeyboardInterrupt:
        print("interrupted" + ("; the same command goes on from here" if is_full else ""), file=sys.stderr)
        return INTERRUPTED
    for line in report(run, folder.relative_to(ROOT)):
        print(line)
    if run.status == NO_TESTS:
        print("No test ran: the arguments of pytest choose none.", file=sys.stderr)
    (folder / "tree").unlink()  # it is complete: the next run starts from the beginning
    return run.status


def chance(is_full: bool) -> list[str]:
    """The options for Hypothesis: the same examples each time in the gate; in full, new ones from a seed that is
    printed.
    """
    if not is_full:
        return []
    seed = random.randrange(2**32)
    print(f"Hypothesis: --hypothesis-seed={seed}")
    return ["--hypothesis-profile=at-random", f"--hypothesis-seed={seed}"]


def hash_seed(is_full: bool) -> str:
    """The seed for the order of sets: fixed in the gate; in full, a random one that is printed."""
    seed = str(random.randrange(2**32)) if is_full else "0"
    print(f"PYTHONHASHSEED={seed}")
    return seed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
