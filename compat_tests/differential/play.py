"""Start both brokers alike, play every scenario, judge the outcome."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from barnabas.broker.handlers import served_apis
from barnabas.wire.messages import API_NAMES
from compat_tests.differential.known import KNOWN, KnownDifference
from compat_tests.differential.report import check_rows, page
from compat_tests.differential.run import Finding, Run, Side, versions_of
from compat_tests.differential.scenarios import SCENARIOS
from compat_tests.differential.values import as_text
from tools.foreign.kafka import KafkaServer
from tools.processes.barnabas import BarnabasProcess

CONFIGURATION = {
    "num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "2",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "auto.create.topics.enable": "true",
    "log.retention.ms": "-1",  # batches carry old timestamps
}
BARNABAS_ONLY = {"broker.id": "1"}
LENGTH = 500
KAFKA_JVM = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a whole run."""

    run: Run
    page: str | None
    """docs/compatibility.md; only of a complete run."""

    @property
    def unused(self) -> list[KnownDifference]:
        """Known differences that no longer occur; only a complete run can tell."""
        seen = {finding.known for finding in self.run.findings}
        return [known for known in KNOWN if known not in seen] if self.page is not None else []

    @property
    def not_compared(self) -> list[tuple[int, int]]:
        """API keys and versions that are served, and of which both answered no well-formed request."""
        served = {(api_key, version) for api_key in served_apis() for version in versions_of(api_key)}
        return sorted(served - self.run.answered) if self.page is not None else []

    def failures(self) -> list[str]:
        """Everything that has to be mended or explained, one text each."""
        gone = [f"no longer differs: {known}" for known in self.unused]
        never = [f"never compared: {API_NAMES[api_key]} {version}" for api_key, version in self.not_compared]
        return [*described(self.run.unexpected), *gone, *never]

    def summary(self) -> str:
        found, unexpected = len(self.run.findings), len(self.run.unexpected)
        return f"{self.run.request_count} requests, {found} differences, {unexpected} of them unexplained"


def play(only: tuple[str, ...] = (), log: Callable[[str], None] = lambda line: None) -> Outcome:
    """Play the scenarios whose names start with one of `only`, or all."""
    check_rows()
    with (
        KafkaServer(overrides=CONFIGURATION, jvm_options=KAFKA_JVM) as kafka,
        BarnabasProcess(CONFIGURATION | BARNABAS_ONLY) as barnabas,
    ):
        run = Run(
            Side("Kafka", kafka.bootstrap_servers, str(kafka.log_dir)),
            Side("Barnabas", barnabas.bootstrap_servers, str(barnabas.log_dir)),
        )
        run.warm_up()
        for scenario in SCENARIOS:
            if not only or scenario.__name__.startswith(only):
                started, before = time.monotonic(), len(run.unexpected)
                run.play(scenario)
                seconds = time.monotonic() - started
                log(f"{scenario.__name__}: {len(run.unexpected) - before} unexplained, {seconds:.1f} s")
        outcome = Outcome(run, page=None if only else page(run))
        run.close()
        return outcome


def described(findings: list[Finding]) -> list[str]:
    """Findings in words; those that differ only in version and request are told together."""
    alike: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings:
        alike.setdefault((finding.scenario, finding.api, as_text(finding.difference)), []).append(finding)
    texts = []
    for (scenario, api, _), group in alike.items():
        path, kafka, barnabas = group[0].difference
        versions = sorted({finding.version for finding in group})
        texts.append(
            f"{scenario}: {api} {versions}, {path or 'answer'}, {len(group)} times\n"
            f"    Kafka     {as_text(kafka)[:LENGTH]}\n    Barnabas  {as_text(barnabas)[:LENGTH]}\n"
            f"    first in  v{group[0].version} {group[0].request[:LENGTH]}"
        )
    return texts
