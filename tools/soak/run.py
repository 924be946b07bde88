"""One run: load from stock clients, crashes, and the check of what the clients were told."""

import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from tqdm import tqdm

from tools.barnabas_process import BarnabasProcess
from tools.kafka_runtime import free_ports
from tools.soak.checker import Findings, check
from tools.soak.commits import moved_back
from tools.soak.copier import Copier
from tools.soak.java_producer import JavaTransactionalProducer
from tools.soak.proxy import LossyProxy
from tools.soak.workload import (
    TOPIC,
    Committer,
    Member,
    PlainProducer,
    Reader,
    Recorder,
    TransactionalProducer,
    Worker,
    Workers,
    read_commits,
    read_everything,
)

PARTITIONS = 4
REPLY_LOSS = 0.002
ACKNOWLEDGED_BETWEEN_CRASHES = 300
PATIENCE_S = 120.0
OVERRIDES = {
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "log.segment.bytes": "1048576",  # many rolls
    "group.initial.rebalance.delay.ms": "0",
}
WORKERS: Workers = (
    (PlainProducer, 2),
    (TransactionalProducer, 6),
    (JavaTransactionalProducer, 1),
    (Reader, 2),
    (Member, 2),
    (Copier, 2),
    (Committer, 1),
)
"""What runs at once, and how many of each."""

Crash = Callable[[BarnabasProcess, random.Random], None]
"""Ends the broker in a way that it is to survive, and leaves its data ready for the next start."""


@dataclass(slots=True)
class Result:
    """What came of one run.

    `lost` counts acknowledged records that are not there in the end; `problems` is what the clients themselves noticed
    (offsets that moved back, fatal errors, a log that does not come to its end).
    """

    crashes: int = 0
    cuts: int = 0
    commits: int = 0
    problems: list[str] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)

    @property
    def is_clean(self) -> bool:
        return self.findings.is_valid and not self.problems

    @property
    def lost(self) -> int:
        return len(self.findings.anomalies.get("unseen", ()))


def soak(
    seconds: float,
    *,
    crash: Crash,
    crash_every_s: float,
    seed: int,
    crashes: int = 0,
    plant: str | None = None,
    reply_loss: float = REPLY_LOSS,
    workers: Workers = WORKERS,
    overrides: Mapping[str, str] | None = None,
    data_dir: Path | None = None,
    quiet: bool = False,
) -> Result:
    """Load for `seconds` and at least `crashes` crashes, one about every `crash_every_s`; one more without load; then
    the check.

    `plant` names a bug of tools/soak/planted.py. `data_dir` is where the broker keeps its data, if not in a temporary
    folder.
    """
    result, recorder, chance = Result(), Recorder(), random.Random(seed)
    module = "barnabas" if plant is None else f"tools.soak.planted:{plant}"
    (port,) = free_ports(1)
    with (
        LossyProxy(port, loss=reply_loss, seed=seed) as proxy,
        BarnabasProcess(
            {**OVERRIDES, "advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}", **(overrides or {})},
            listen=f"127.0.0.1:{port}",
            module=module,
            data_dir=data_dir,
        ) as process,
    ):
        _create_topic(process.bootstrap_servers)
        running = _start_workers(process.bootstrap_servers, workers, recorder, seed)
        started = time.monotonic()
        try:
            with tqdm(total=round(seconds), unit="s", disable=quiet, file=sys.stderr, mininterval=5) as bar:
                while time.monotonic() < started + seconds or result.crashes < crashes:
                    _load(recorder, chance.uniform(0.5, 1.5) * crash_every_s)
                    crash(process, chance)
                    result.crashes += 1
                    process.start()
                    _show(bar, round(time.monotonic() - started), result, recorder)
            _stop_workers(running, result)
            # Once more when nobody writes: what this one takes away, nothing that comes later hides.
            crash(process, chance)
            result.crashes += 1
            process.start()
            committed = recorder.commits()
            result.problems += moved_back(committed, read_commits(process.bootstrap_servers, committed))
            recorder.history.final = read_everything(process.bootstrap_servers, PARTITIONS)
        except (RuntimeError, TimeoutError, KafkaException) as error:  # the broker does not start, or nothing goes on
            result.problems.append(str(error))
        result.cuts = proxy.cuts
    result.findings = check(recorder.history)
    return result


def _load(recorder: Recorder, seconds: float) -> None:
    """Let the clients work so long, and until the broker has acknowledged something to lose. Raises TimeoutError."""
    wanted = recorder.acknowledged + ACKNOWLEDGED_BETWEEN_CRASHES
    time.sleep(seconds)
    deadline = time.monotonic() + PATIENCE_S
    while recorder.acknowledged < wanted:
        if time.monotonic() > deadline:
            raise TimeoutError(f"fewer than {ACKNOWLEDGED_BETWEEN_CRASHES} records acknowledged in {PATIENCE_S:.0f} s")
        time.sleep(0.05)


def _show(bar: "tqdm[Any]", seconds: int, result: Result, recorder: Recorder) -> None:
    bar.set_postfix(
        crashes=result.crashes, acknowledged=recorder.acknowledged, txns=recorder.transactions, refresh=False
    )
    bar.update(min(bar.total, seconds) - bar.n)


def _create_topic(bootstrap_servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, num_partitions=PARTITIONS)])[TOPIC].result()


def _start_workers(bootstrap_servers: str, kinds: Workers, recorder: Recorder, seed: int) -> list[Worker]:
    workers: list[Worker] = []
    for kind, count in kinds:
        for _ in range(count):
            workers.append(kind(len(workers) + 1, bootstrap_servers, PARTITIONS, recorder, seed))
    for worker in workers:
        worker.start()
    return workers


def _stop_workers(workers: Sequence[Worker], result: Result) -> None:
    for worker in workers:
        worker.stop()
    for worker in workers:
        worker.join(200)
        if worker.is_alive() or worker.error is not None:
            result.problems.append(f"{worker.name}: {worker.error!r}" if worker.error else f"{worker.name} hangs")
        result.problems += [f"{worker.name}: {problem}" for problem in worker.problems]
        result.commits += worker.commits
