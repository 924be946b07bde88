"""`python -m compat_tests.differential`: ask both brokers, print what differs, write docs/compatibility.md."""

import argparse
import sys

from compat_tests.differential.play import play


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m compat_tests.differential", description=__doc__)
    parser.add_argument(
        "-k", dest="only", default="", help="only scenarios whose names start with this; writes no page"
    )
    options = parser.parse_args()
    outcome = play(tuple(options.only), log=lambda line: print(line, flush=True))
    for text in outcome.failures():
        print(text)
    print(outcome.summary())
    return 1 if outcome.failures() else 0


if __name__ == "__main__":
    sys.exit(main())
