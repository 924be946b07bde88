"""`python -m compat_tests.differential`: ask both brokers, print what differs, write docs/compatibility.md."""

import argparse
import sys

from compat_tests.differential.play import play
from compat_tests.differential.report import PAGE


def main() -> int:
    """Command line of this package."""
    parser = argparse.ArgumentParser(prog="python -m compat_tests.differential", description=__doc__)
    parser.add_argument(
        "-k", dest="only", action="append", default=[], help="only scenarios whose names start so; writes no page"
    )
    options = parser.parse_args()
    outcome = play(tuple(options.only), log=lambda line: print(line, flush=True))
    for text in outcome.failures():
        print(text)
    print(outcome.summary())
    if outcome.failures():
        return 1
    if outcome.page is not None:
        PAGE.write_text(outcome.page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
