"""One run: load from stock clients, crashes, and the check of the responses that the clients got."""

import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]
from tqdm import tqdm

from tools.processes.barnabas import BarnabasProcess
from tools.processes.server import free_ports
from tools.soak.checker import Findings, check
from tools.soak.commits import moved_back
from tools.soak.compacted import DELETE_RETENTION_S, check_keyed
from tools.soak.compactions import passes, stage_of_crash
from tools.soak.copier import Copier
from tools.soak.delayed_commits import DelayedCommitter
from tools.soak.history import Status
from tools.soak.java_producer import JavaTransactionalProducer
from tools.soak.keyed_workers import (
    PARTITIONS as COMPACTED_PARTITIONS,
)
from tools.soak.keyed_workers import (
    KeyedProducer,
    KeyedReader,
    KeyedTransactionalProducer,
    KeyedWorker,
    compacted_topic,
    read_compacted,
)
from tools.soak.proxy import LossyProxy
from tools.soak.workload import (
    TOPIC_PREFIX,
    TRANSACTION_TIMEOUT_S,
    Amount,
    Committer,
    Deserter,
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
from tools.waiting import PATIENCE_S, wait_until

PARTITIONS = 4
REPLY_LOSS = 0.002
ACKNOWLEDGED_BETWEEN_CRASHES = 300
STOP_S = 200.0
STOP_AFTER_FAILURE_S = 10.0
ROUND_RECORDS = 250_000
"""A round's history stays in memory until its check: about 2 KB per record."""

REPLIES_HELD_BACK_MAX_S = 0.3
LAG_MAX_S = 30.0
STALL_MAX_S = 10.0
"""The maximum time for which the last stable offset may stay unchanged after a transaction's time-out."""

OVERRIDES = {
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "log.segment.bytes": "1048576",  # many rolls
    # Constant compaction, also of the coordinators' topics.
    "offsets.topic.segment.bytes": "16384",
    "transaction.state.log.segment.bytes": "16384",
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.segment.delete.delay.ms": "2000",
    "group.initial.rebalance.delay.ms": "0",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "4096",
    "delete.retention.ms": str(round(DELETE_RETENTION_S * 1000)),
}
WORKERS: Workers = (
    (PlainProducer, 2),
    (TransactionalProducer, 6),
    (JavaTransactionalProducer, 1),
    (Reader, 2),
    (Member, 2),
    (Copier, 2),
    (Committer, 1),
    (DelayedCommitter, 1),
    (Deserter, 1),
    (KeyedProducer, 1),
    (KeyedTransactionalProducer, 2),
    (KeyedReader, 1),
)
"""The concurrent workers, and the number of each."""

LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]

NOTHING = Amount()

Crash = Callable[[BarnabasProcess, random.Random], None]
"""Ends the broker in a way that it must survive, and leaves its data ready for the next start."""


@dataclass(slots=True)
class Result:
    """The result of one run.

    `lost` counts acknowledged records that are missing at the end. `problems` are noticed by the clients themselves
    (offsets that moved back, fatal errors, a log whose end is not reached). `done` counts the successful operations of
    each kind of worker, `compactions` the passes by topic, and `crash_stages` the stages of compaction at crashes.
    """

    rounds: int = 0
    crashes: int = 0
    cuts: int = 0
    commits: int = 0
    stall_s: float = 0.0
    done: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)
    compactions: Counter[str] = field(default_factory=Counter)
    crash_stages: Counter[str] = field(default_factory=Counter)

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
    round_records: int = ROUND_RECORDS,
    round_crashes: int = sys.maxsize,
    least: Amount = NOTHING,
    enough: Callable[[Result], bool] = lambda _: True,
    is_timed: bool = True,
    evidence: Path | None = None,
    quiet: bool = False,
) -> Result:
    """Run load for `seconds` and at least `crashes` crashes, one about every `crash_every_s`, in rounds of
    `round_records` acknowledged records or `round_crashes` crashes. Each round ends with one more crash without load,
    and the check. The first round with a finding is the last.

    Each round continues until `least` has happened in it, and the last one until the result is `enough`: only then is a
    run without findings significant. With `is_timed`, late readers and transactions that end late are findings, too.

    `plant` names a bug of tools/soak/planted.py. `data_dir` is the broker's data directory, by default a temporary
    folder. After a finding, data and log are copied to `evidence`, which must not exist.
    """
    result, chance = Result(), random.Random(seed)
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
        tqdm(total=round(seconds), unit="s", disable=quiet, file=sys.stderr, mininterval=5) as bar,
    ):
        started = time.monotonic()

        def crash_now() -> None:
            """Crash the broker, in half of the cases with responses under way."""
            if chance.random() < 0.5:
                proxy.loses_all = True
                time.sleep(chance.uniform(0, REPLIES_HELD_BACK_MAX_S))
            crash(process, chance)
            proxy.loses_all = False
            result.crashes += 1
            if stage := stage_of_crash(process.log_dir):
                result.crash_stages[stage] += 1
            result.compactions = passes(process.log_text())
            process.start()
            _show(bar, round(time.monotonic() - started), result)

        def is_over() -> bool:
            late_s = time.monotonic() - started - seconds
            return late_s >= 0 and result.crashes >= crashes and (enough(result) or late_s >= PATIENCE_S)

        while result.is_clean and (not result.rounds or not is_over()):
            result.rounds += 1
            topic = f"{TOPIC_PREFIX}{result.rounds}"
            current = Round(process.bootstrap_servers, topic, workers, seed, result, least=least, is_timed=is_timed)
            crashes_before = result.crashes

            def is_round_over(recorder: Recorder, crashes_before: int = crashes_before) -> bool:
                crashes = result.crashes - crashes_before
                return is_over() or recorder.acknowledged >= round_records or crashes >= round_crashes

            current.run(
                lambda recorder: _load(recorder, chance.uniform(0.5, 1.5) * crash_every_s), crash_now, is_round_over
            )
        result.cuts = proxy.cuts
        result.compactions = passes(process.log_text())
        if evidence is not None and not result.is_clean:
            process.kill()
            shutil.copytree(process.log_dir, evidence)
            (evidence / "server.log").write_text(process.log_text())
    return result


class Round:
    """Workers on a separate topic, and the check of their responses.

    The topic has `replication_factor` replicas and the configs `config`. The workers continue until `least` has
    happened. `standing` returns a report of the brokers for idle workers.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        kinds: Workers,
        seed: int,
        result: Result,
        *,
        replication_factor: int = 1,
        config: Mapping[str, str] | None = None,
        least: Amount = NOTHING,
        is_timed: bool = True,
        standing: Callable[[], str] = lambda: "",
    ) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._standing = standing
        self._least = least
        self._is_timed = is_timed
        self._topic = topic
        self._result = result
        self._recorder = Recorder()
        self._admin = self._new_admin()
        self._topics = [
            NewTopic(topic, num_partitions=PARTITIONS, replication_factor=replication_factor, config=dict(config or {}))
        ]
        if any(issubclass(kind, KeyedWorker) for kind, _ in kinds):
            self._topics.append(
                NewTopic(
                    compacted_topic(topic),
                    num_partitions=COMPACTED_PARTITIONS,
                    replication_factor=replication_factor,
                    config={**COMPACTED, **(config or {})},
                )
            )
        for each in self._topics:
            _insist(
                lambda each=each: self._admin.create_topics([each])[each.topic],  # type: ignore[misc]
                KafkaError.TOPIC_ALREADY_EXISTS,
            )
        self._workers: list[Worker] = []
        for kind, count in kinds:
            for _ in range(count):
                number = len(self._workers) + 1
                self._workers.append(kind(number, bootstrap_servers, topic, PARTITIONS, self._recorder, seed))

    def run(
        self, load: Callable[[Recorder], None], crash: Callable[[], None], is_over: Callable[[Recorder], bool]
    ) -> None:
        """Run load and crashes in turn until it is over, then check; findings are added to the result."""
        recorder, result = self._recorder, self._result
        patience_s = STOP_AFTER_FAILURE_S
        for worker in self._workers:
            worker.start()
        try:
            try:
                while True:
                    load(recorder)
                    crash()
                    recorder.history.healed = time.monotonic()
                    if is_over(recorder):
                        break
                self._wait_for_everybody()
                wait_until(lambda: self._amount().reaches(self._least), lambda: f"{self._least} after {self._amount()}")
                patience_s = STOP_S
            finally:
                self._stop(patience_s)
            stopped = time.monotonic()
            # Once more without writers: later writes would hide a loss by this crash.
            crash()
            self._wait_for_the_end_of_transactions(stopped)
            committed = recorder.commits()
            result.problems += moved_back(committed, read_commits(self._bootstrap_servers, self._topic, committed))
            recorder.history.final = read_everything(self._bootstrap_servers, self._topic, PARTITIONS)
            self._read_compacted()
        except (RuntimeError, TimeoutError, KafkaException) as error:  # the broker does not start, or makes no progress
            result.problems.append(str(error))
        findings = check(recorder.history)
        findings += check_keyed(recorder.keyed)
        if self._is_timed and findings.realtime_lag_after_faults_s > LAG_MAX_S:
            result.problems.append(f"a reader was {findings.realtime_lag_after_faults_s:.1f} s behind after the faults")
        result.findings += findings
        if result.is_clean:
            self._delete_topics()

    def _delete_topics(self) -> None:
        for each in self._topics:
            try:
                _insist(
                    lambda name=each.topic: self._admin.delete_topics([name])[name],  # type: ignore[misc]
                    KafkaError.UNKNOWN_TOPIC_OR_PART,
                )
            except KafkaException as error:
                self._result.problems.append(str(error))

    def _read_compacted(self) -> None:
        """The last reading of the compacted topic, if there is one."""
        for each in self._topics[1:]:
            reading = read_compacted(self._bootstrap_servers, each.topic, is_last=True)
            if reading is not None:
                self._recorder.add_reading(reading)

    def _wait_for_everybody(self) -> None:
        """Wait until some worker of each kind was successful since the last crash. Raises TimeoutError."""
        before = self._done()
        deadline = time.monotonic() + PATIENCE_S
        while idle := [kind for kind, count in self._done().items() if count == before[kind]]:
            if not any(worker.is_alive() for worker in self._workers if type(worker).__name__ in idle):
                return  # `_stop` reports those that died
            if time.monotonic() > deadline:
                found = f"{', '.join(idle)} got nothing done in {PATIENCE_S:.0f} s after the last crash"
                asked = [worker.standing for worker in self._workers if type(worker).__name__ in idle]
                raise TimeoutError("\n".join([found, *map(_told, [*asked, self._standing])]).strip())
            time.sleep(0.05)

    def _amount(self) -> Amount:
        """The amount of work done until now."""
        transactions = self._recorder.transactions
        commits = sum(worker.commits for worker in self._workers)
        return Amount(self._recorder.acknowledged, transactions[Status.OK], transactions[Status.FAIL], commits)

    def _done(self) -> Counter[str]:
        done: Counter[str] = Counter()
        for worker in self._workers:
            done[type(worker).__name__] += worker.done
        return done

    def _stop(self, patience_s: float) -> None:
        """Stop all workers, and collect the problems that they noticed. They cannot end without a broker."""
        result = self._result
        deadline = time.monotonic() + patience_s
        for worker in self._workers:
            worker.stop()
        for worker in self._workers:
            worker.join(max(0.0, deadline - time.monotonic()))
            if worker.is_alive() or worker.error is not None:
                result.problems.append(f"{worker.name}: {worker.error!r}" if worker.error else f"{worker.name} hangs")
            result.problems += [f"{worker.name}: {problem}" for problem in worker.problems]
            result.commits += worker.commits
        result.done += self._done()

    def _wait_for_the_end_of_transactions(self, stopped: float) -> None:
        """Wait until all open transactions are aborted: they were begun before the workers `stopped`.

        Raises TimeoutError.
        """
        stall_max_s = STALL_MAX_S if self._is_timed else PATIENCE_S
        stalled_from = max(time.monotonic(), stopped + TRANSACTION_TIMEOUT_S)
        while self._has_open_transactions():
            if time.monotonic() > stalled_from + stall_max_s:
                raise TimeoutError(f"transactions are open {stall_max_s:.0f} s after their time-out")
            time.sleep(0.1)
        self._result.stall_s = max(self._result.stall_s, time.monotonic() - stalled_from)

    def _has_open_transactions(self) -> bool:
        """Whether a partition's last stable offset differs from its high watermark, or the broker returns an error."""
        partitions = {
            TopicPartition(topic.topic, each): LATEST for topic in self._topics for each in range(topic.num_partitions)
        }
        try:
            committed, all_of_it = (
                [each.result().offset for each in self._admin.list_offsets(partitions, isolation_level=level).values()]
                for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
            )
        except KafkaException:
            # librdkafka's client asks for offsets with the leader's epoch that it knew, and does not refresh it after
            # FENCED_LEADER_EPOCH: with a leader that died and returned at once it would retry in vain.
            self._admin = self._new_admin()
            return True
        return committed != all_of_it

    def _new_admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self._bootstrap_servers, "log_level": 0})


def _told(standing: Callable[[], str]) -> str:
    """The report, or the reason why there is none."""
    try:
        return standing()
    except Exception as error:  # noqa: BLE001 - the findings are reported anyway
        return repr(error)


def _insist(ask: Callable[[], Future[None]], done_before: int) -> None:
    """Repeat a request until it is done: a response may get lost, and then the next one may be the error `done_before`.
    Raises KafkaException.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return ask().result()
        except KafkaException as error:
            if error.args[0].code() == done_before:
                return None
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def _load(recorder: Recorder, seconds: float) -> None:
    """Let the clients work for `seconds`, and until enough records to lose were acknowledged. Raises TimeoutError."""
    wanted = recorder.acknowledged + ACKNOWLEDGED_BETWEEN_CRASHES
    time.sleep(seconds)
    deadline = time.monotonic() + PATIENCE_S
    while recorder.acknowledged < wanted:
        if time.monotonic() > deadline:
            raise TimeoutError(f"fewer than {ACKNOWLEDGED_BETWEEN_CRASHES} records acknowledged in {PATIENCE_S:.0f} s")
        time.sleep(0.05)


def _show(bar: "tqdm[Any]", seconds: int, result: Result) -> None:
    bar.set_postfix(round=result.rounds, crashes=result.crashes, refresh=False)
    bar.update(min(bar.total, seconds) - bar.n)
