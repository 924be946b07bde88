"""The command of the simulated cluster: `python -m tools.simulation --seed 7 --seconds 3600 --log FILE`."""

from __future__ import annotations

import os
import random
import resource
import sys
import time
from argparse import ArgumentParser

from tools.simulation.outcome import Outcome
from tools.simulation.run import simulate


def main() -> None:
    """Run the command line."""
    parser = ArgumentParser(description="Simulate a cluster with faults, in virtual time.")
    parser.add_argument("--seed", type=int, default=None, help="what decides everything; by default a new one")
    parser.add_argument("--seconds", type=float, default=60, help="simulated seconds with faults")
    parser.add_argument("--brokers", type=int, default=3, help="how many there are (3); with more, partitions move")
    parser.add_argument("--log", help="write the log of the run to this file")
    arguments = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets influences the run
        command = [sys.executable, "-m", "tools.simulation", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": "0"})
    seed = random.randrange(1 << 32) if arguments.seed is None else arguments.seed
    began_s = time.process_time()

    def progress(outcome: Outcome) -> None:
        took_s = time.process_time() - began_s
        peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(
            f"seed {seed}: {outcome.simulated_s:.0f} of {arguments.seconds:.0f} s,"
            f" {outcome.simulated_s / took_s:.0f} per second of CPU, {peak_mib} MiB,"
            f" {outcome.counts['acknowledged']} records acknowledged",
            file=sys.stderr,
            flush=True,
        )

    with open(arguments.log or os.devnull, "w") as log:
        outcome = simulate(
            seed,
            arguments.seconds,
            brokers=arguments.brokers,
            write=lambda line: log.write(f"{line}\n"),
            progress=progress,
        )
    took_s = time.process_time() - began_s
    print(", ".join(f"{count} {what}" for what, count in sorted(outcome.counts.items())))
    print(
        f"seed {seed}: {outcome.simulated_s:.0f} simulated seconds in {took_s:.1f} s of CPU,"
        f" {outcome.simulated_s / took_s:.0f} per second; log {outcome.digest[:16]}"
    )
    for wrong in outcome.wrong:
        print(f"WRONG {wrong}")
    sys.exit(1 if outcome.wrong else 0)


if __name__ == "__main__":
    main()
