"""Load, kill -9, and a check that nothing acknowledged was lost: `python -m tools.soak --seconds 300`.

Producers, transactions, readers and groups that commit work on a real broker. It is killed and started again every few
seconds, sometimes with a torn write in its log, over a network that loses responses. After every 250,000 records, and
in the end, everything is read back, and the history of the responses to clients is checked (tools/soak/checker.py). The
next round has a new topic, so a run may take any time. `--plant BUG` breaks the broker on purpose: then a check must
fail, or the soak proves nothing.
"""

import argparse
import random
import sys
from pathlib import Path

from tools.soak.crashes import kill
from tools.soak.planted import BUGS
from tools.soak.run import Result, soak


def describe(result: Result) -> str:
    """Numbers and findings, as readable text."""
    findings = result.findings
    lines = [
        f"{result.rounds} rounds, {result.crashes} crashes, {result.cuts} lost replies",
        f"{findings.acknowledged} acknowledged records, {findings.transactions} transactions, "
        f"{result.commits} offset commits, {findings.operations} operations",
        "done: " + ", ".join(f"{name} {count}" for name, count in result.done.items()),
        "compacted: " + ", ".join(f"{topic} {count} times" for topic, count in sorted(result.compactions.items())),
        "crashes: " + ", ".join(f"{count} {stage}" for stage, count in sorted(result.crash_stages.items())),
        f"worst realtime lag {findings.realtime_lag_s:.1f} s, after the last crash of a round "
        f"{findings.realtime_lag_after_faults_s:.1f} s; last stable offsets at the end {result.stall_s:.1f} s "
        "after the longest time-out",
        *(f"{name}: {len(witnesses)}, for example: {witnesses[0]}" for name, witnesses in findings.anomalies.items()),
        *result.problems,
        "nothing found" if result.is_clean else "something was found",
    ]
    return "\n".join(lines)


def main() -> int:
    """Run once and print the result; exit status 0 when nothing was found (with --plant: when something was)."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--kills", type=int, default=0, help="go on until there were so many")
    parser.add_argument("--kill-every", type=float, default=3, metavar="SECONDS", help="on average (default 3)")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--plant", choices=sorted(BUGS), help="break the broker on purpose")
    parser.add_argument("--evidence", type=Path, metavar="DIR", help="copy data and log there if something is found")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    result = soak(
        options.seconds,
        crash=kill,
        crashes=options.kills,
        crash_every_s=options.kill_every,
        seed=options.seed,
        plant=options.plant,
        evidence=options.evidence,
    )
    print(describe(result))
    return int(result.is_clean == (options.plant is not None))


if __name__ == "__main__":
    sys.exit(main())
