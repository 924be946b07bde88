"""Load, kill -9, and a check that nothing acknowledged was lost: `python -m tools.soak --seconds 300`.

Producers, transactions, readers and a committing group work on a real broker that is killed and started again every
few seconds, over a network that loses replies. In the end everything is read back and the history of what the clients
were told is checked (tools/soak/checker.py). `--plant BUG` breaks the broker on purpose: then something must be
found, or the harness is worth nothing.
"""

import argparse
import random
import sys
import time
from dataclasses import dataclass, field

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from tqdm import tqdm

from tools.barnabas_process import BarnabasProcess
from tools.kafka_runtime import free_ports
from tools.soak.checker import Findings, check
from tools.soak.planted import BUGS
from tools.soak.proxy import LossyProxy
from tools.soak.workload import TOPIC, WORKERS, Committer, Recorder, Worker, read_everything

PARTITIONS = 4
REPLY_LOSS = 0.002
OVERRIDES = {
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "log.segment.bytes": "1048576",  # many rolls
}


@dataclass(slots=True)
class Result:
    """What came of one run."""

    kills: int = 0
    cuts: int = 0
    commits: int = 0
    moved_back: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)

    @property
    def is_clean(self) -> bool:
        return self.findings.is_valid and not self.moved_back and not self.errors


def soak(
    seconds: float,
    *,
    kill_every_s: float,
    seed: int,
    plant: str | None = None,
    reply_loss: float = REPLY_LOSS,
    quiet: bool = False,
) -> Result:
    """One run: load for `seconds`, a kill about every `kill_every_s`, then the check."""
    result, recorder, chance = Result(), Recorder(), random.Random(seed)
    module = "barnabas" if plant is None else f"tools.soak.planted:{plant}"
    (port,) = free_ports(1)
    with (
        LossyProxy(port, loss=reply_loss, seed=seed) as proxy,
        BarnabasProcess(
            OVERRIDES | {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}"},
            listen=f"127.0.0.1:{port}",
            module=module,
        ) as process,
    ):
        admin = AdminClient({"bootstrap.servers": process.bootstrap_servers})
        admin.create_topics([NewTopic(TOPIC, num_partitions=PARTITIONS)])[TOPIC].result()
        workers = _start_workers(process.bootstrap_servers, recorder, seed)
        deadline = time.monotonic() + seconds
        with tqdm(total=round(seconds), unit="s", disable=quiet, file=sys.stderr) as bar:
            while time.monotonic() < deadline:
                time.sleep(chance.uniform(0.5, 1.5) * kill_every_s)
                process.kill()
                process.start()
                result.kills += 1
                bar.set_postfix(kills=result.kills, acknowledged=recorder.acknowledged, txns=recorder.transactions)
                bar.n = min(round(seconds), round(seconds - (deadline - time.monotonic())))
                bar.refresh()
        result.cuts = proxy.cuts
        for worker in workers:
            worker.stop()
        for worker in workers:
            worker.join(200)
            if worker.is_alive() or worker.error is not None:
                result.errors.append(f"{worker.name}: {worker.error or 'does not stop'}")
            if isinstance(worker, Committer):
                result.commits += worker.commits
                result.moved_back += worker.moved_back
        try:
            recorder.history.final = read_everything(process.bootstrap_servers, PARTITIONS)
        except TimeoutError as error:
            result.errors.append(str(error))
    result.findings = check(recorder.history)
    return result


def _start_workers(bootstrap_servers: str, recorder: Recorder, seed: int) -> list[Worker]:
    workers: list[Worker] = []
    for kind, count in WORKERS:
        for _ in range(count):
            workers.append(kind(len(workers) + 1, bootstrap_servers, PARTITIONS, recorder, seed))
    for worker in workers:
        worker.start()
    return workers


def main() -> int:
    """Run once and tell; exit status 0 when nothing was found (with --plant: when something was)."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--kill-every", type=float, default=3, metavar="SECONDS", help="on average (default 3)")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--plant", choices=sorted(BUGS), help="break the broker on purpose")
    options = parser.parse_args()
    print(f"seed {options.seed}")
    result = soak(options.seconds, kill_every_s=options.kill_every, seed=options.seed, plant=options.plant)
    findings = result.findings
    print(f"{result.kills} kills, {result.cuts} lost replies, {findings.acknowledged} acknowledged records")
    print(f"{findings.transactions} transactions, {result.commits} offset commits, {findings.operations} operations")
    for name, witnesses in findings.anomalies.items():
        print(f"{name}: {len(witnesses)}, for example: {witnesses[0]}")
    for problem in result.moved_back + result.errors:
        print(problem)
    print("nothing found" if result.is_clean else "something was found")
    return int(result.is_clean == (options.plant is not None))


if __name__ == "__main__":
    sys.exit(main())
