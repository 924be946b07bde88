"""Runs the cases against a client, and tells what it did."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import IO, Any, Self

from confluent_kafka import Consumer, KafkaException, TopicPartition

from barnabas.testing import ApiError, Broker, Cluster, RecordedRequest
from compat_tests.client_behaviour.case import WAIT_S, Case
from compat_tests.client_behaviour.drivers.driver import CLIENT_ID, GROUP, TOPIC
from tools.foreign.kafka import ORACLE_VERSION
from tools.foreign.languages import find_node, go_program, node_modules
from tools.waiting import PATIENCE_S

DRIVERS = Path(__file__).parent / "drivers"
FRANZ_GO = DRIVERS / "franz_go"
KAFKAJS = Path(__file__).parents[1] / "kafkajs_client"
ROOT = Path(__file__).resolve().parents[2]
GRACE_S = 8
"""How long after its deadline a driver may take to close its client."""

SETTLED_S = 10
"""How long the end of a transaction may take to reach a group."""

DOUBTFUL = ("still waits", "does not ask", "**hangs**")
ATTEMPTS_MAX = 3
"""The maximum number of attempts: a busy machine may cause such an outcome, so that the case is repeated."""

TOLD = {
    "Metadata": "metadata",
    "FindCoordinator": "the coordinator",
    "JoinGroup": "joining again",
    "InitProducerId": "a new producer id",
    "ListOffsets": "offsets",
    "OffsetForLeaderEpoch": "the end of the epoch",
}
"""The client's requests before its retry that the page mentions."""

READING = frozenset({"consume", "stay", "commit", "static_stay", "static_commit", "process"})
STATIC = frozenset({"static_stay", "static_commit"})
ALL_WORKLOADS = READING | {"produce", "idempotent", "transaction"}
NOT_ASKED = "does not ask that"


@dataclass(frozen=True)
class Client:
    """A client, and what says how its driver is started: with which command and what in its environment. That installs
    or builds what it needs."""

    title: str
    version: str
    start: Callable[[], tuple[Sequence[str | Path], Mapping[str, str]]]
    workloads: frozenset[str] = ALL_WORKLOADS


class Driver:
    """A driver's process, started when it is first needed, and again when it hung."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._process: subprocess.Popen[str] | None = None
        self._complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed where this ends

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()
        self._complaints.close()

    @property
    def is_running(self) -> bool:
        """Whether there is a process, which so has done something already."""
        return self._process is not None

    def ask(self, workload: str, servers: str, wait_s: float = WAIT_S) -> dict[str, Any] | None:
        """The outcome of a workload within `wait_s`; None when the client hangs."""
        grace_s = GRACE_S if self.is_running else PATIENCE_S
        process = self._running()
        asked, answers = process.stdin, process.stdout
        assert asked is not None
        assert answers is not None
        asked.write(json.dumps({"workload": workload, "servers": servers, "deadline_s": wait_s}) + "\n")
        asked.flush()
        answer = _line(answers, wait_s + grace_s)
        if answer is None:
            self._end()
            return None
        if not answer:
            self._complaints.seek(0)
            said = self._complaints.read()[-5000:]
            raise RuntimeError(f"the driver of {self._client.title} has ended at the workload {workload}:\n{said}")
        outcome: dict[str, Any] = json.loads(answer)
        if not outcome["is_done"] and not outcome["errors"]:
            self._end()  # a client that still tries would do so beside the next one
        return outcome

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            command, environment = self._client.start()
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._complaints,
                text=True, env={**os.environ, **environment},
            )  # fmt: skip
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _line(stream: IO[str], timeout_s: float) -> str | None:
    ready, _, _ = select.select([stream], [], [], timeout_s)
    return stream.readline() if ready else None


def play(client: Client, cases: Iterable[Case]) -> Iterator[tuple[Case, str]]:
    """The client's behaviour in each case, one after the other."""
    wanted = list(cases)
    with Driver(client) as driver:
        for brokers in sorted({case.brokers for case in wanted}):
            with _stage(brokers) as stage:
                yield from play_on(stage, driver, client, [case for case in wanted if case.brokers == brokers])


def _stage(brokers: int) -> Broker | Cluster:
    if brokers == 1:
        return Broker(auto_create_topics_enable=False)
    return Cluster(brokers, auto_create_topics_enable=False)


def play_on(
    stage: Any, driver: Driver, client: Client, cases: Iterable[Case], *, wait_s: float = WAIT_S,
    attempts: int = ATTEMPTS_MAX,
) -> Iterator[tuple[Case, str]]:  # fmt: skip
    """The same on a broker that runs: one of `barnabas.testing`, or Apache Kafka (`on_kafka.Kafka`)."""
    for case in cases:
        if case.workload not in client.workloads:
            yield case, NOT_ASKED
            continue
        for _ in range(attempts):
            if not driver.is_running:  # what it is slow to do for the first time
                stage.create_topic(TOPIC, configs={})
                driver.ask("idempotent", stage.bootstrap_servers, PATIENCE_S)
                stage.reset()
            text = _play(stage, driver, case, max(wait_s, case.wait_s))
            stage.reset()
            if not text.startswith(DOUBTFUL):
                break
        yield case, text


def _play(stage: Any, driver: Driver, case: Case, wait_s: float) -> str:
    topic = stage.create_topic(TOPIC, configs=case.configs)
    if case.workload in READING:
        topic.produce("1")
    with stage.recorded() as seen:
        fault = case.inject(stage)
        beside = threading.Thread(target=case.meanwhile, args=(stage, fault))
        beside.start()
        outcome = driver.ask(case.workload, stage.bootstrap_servers, wait_s)
        beside.join()
    requests = [each for each in seen if (each.client_id or "").startswith(CLIENT_ID)]
    if not fault.hits:
        return NOT_ASKED
    written = int(_is_committed(stage)) if case.workload == "process" else _count(topic)
    if outcome is None:
        return "**hangs**"
    return tell(case, outcome, requests, written, wait_s)


def _count(topic: Any) -> int:
    """How often the record is there."""
    try:
        return [record.value for record in topic.records()].count(b"1")
    except ApiError:  # the topic was deleted
        return 0


def _is_committed(stage: Any) -> bool:
    """Whether the group goes on after the record; not while the transaction that says so is open."""
    member = Consumer({"bootstrap.servers": stage.bootstrap_servers, "group.id": GROUP, "log_level": 0})
    try:
        # Real time: the transaction of a client that was given up never ends.
        [found] = member.committed([TopicPartition(TOPIC, 0)], timeout=SETTLED_S)
    except KafkaException:
        return False
    finally:
        member.close()
    return bool(found.error is None and found.offset > 0)


def tell(
    case: Case, outcome: Mapping[str, Any], requests: Sequence[RecordedRequest], written: int, wait_s: float = WAIT_S
) -> str:
    """The client's behaviour, in a few words. `requests` are all of its own, `written` is how often the record is
    there, or whether it is committed that it was read."""
    again = _again(case, requests)
    errors = ", ".join(f"`{error}`" for error in outcome["errors"])
    if not outcome["is_done"] and errors:
        text = f"raises {errors}" + ("" if again is None else f", having tried again {again}")
    elif not outcome["is_done"]:
        text = f"still waits after {wait_s:.0f} s"
    elif errors:
        text = f"tells {errors}, " + ("goes on" if again is None else f"then again {again}")
    else:
        text = "goes on" if again is None else f"again {again}"
    return text + _of_records(case, outcome, written)


def _of_records(case: Case, outcome: Mapping[str, Any], written: int) -> str:
    if case.workload == "process":
        return _of_offsets(outcome, is_committed=bool(written))
    if case.workload in READING:
        return _of_reading(outcome)
    if written > 1:
        return "; **doubled**"
    if outcome["is_done"] and not written:
        return "; **lost**"
    return "; it is written" if written and not outcome["is_done"] else ""


def _of_reading(outcome: Mapping[str, Any]) -> str:
    return "; read twice" if outcome["values"].count("1") > 1 else ""


def _of_offsets(outcome: Mapping[str, Any], *, is_committed: bool) -> str:
    if outcome["is_done"] == is_committed:
        return _of_reading(outcome)
    return "; it is committed" if is_committed else "; **not committed**"


def _again(case: Case, requests: Sequence[RecordedRequest]) -> str | None:
    """How soon a client asked again what had failed, and what it asked before that; None when it did not."""
    if not case.fails:
        return None
    of_api = [number for number, each in enumerate(requests) if each.api == case.api]
    failed = next((number for number in of_api if requests[number].outcome != "ok"), of_api[0] if of_api else None)
    if failed is None:
        return None
    following = next((number for number in of_api if number > failed), None)
    if following is None:
        return None
    answered_ms = requests[failed].answered_ms or requests[failed].time_ms
    between = dict.fromkeys(TOLD[each.api] for each in requests[failed + 1 : following] if each.api in TOLD)
    first = f", after {' and '.join(between)}" if between else ""
    return _rounded(requests[following].time_ms - answered_ms) + first


def _rounded(duration_ms: int) -> str:
    """To one digit: the rest is chance."""
    if duration_ms < 20:
        return "at once"
    scale = 10 ** (len(str(duration_ms)) - 1)
    rounded = round(duration_ms / scale) * scale
    return f"in {rounded} ms" if rounded < 1000 else f"in {rounded // 1000} s"


# --- which clients there are ----------------------------------------------------------------------


def clients() -> dict[str, Client]:
    """All that can be driven, by name."""
    python = {"confluent_kafka": "confluent-kafka", "aiokafka": "aiokafka", "kafka_python": "kafka-python"}
    found = {name: _in_python(name, title, metadata.version(title)) for name, title in python.items()}
    found["java"] = _in_python("java", "Java", ORACLE_VERSION)
    kafkajs = json.loads((KAFKAJS / "package.json").read_text())["dependencies"]["kafkajs"]
    found["kafkajs"] = Client("kafkajs", kafkajs, _node, workloads=ALL_WORKLOADS - STATIC)
    [franz_go] = re.findall(r"twmb/franz-go v(\S+)", (FRANZ_GO / "go.mod").read_text())
    found["franz_go"] = Client("franz-go", franz_go, lambda: ([go_program(FRANZ_GO)], {}))
    found["spark"] = _in_python(
        "spark", "Spark", metadata.version("pyspark"),
        workloads=frozenset({"produce", "idempotent", "consume"}),
    )  # fmt: skip
    return found


def _in_python(name: str, title: str, version: str, **more: Any) -> Client:
    command = [sys.executable, DRIVERS / f"drive_{name}.py"]
    return Client(title, version, lambda: (command, {"PYTHONPATH": str(ROOT)}), **more)


def _node() -> tuple[Sequence[str | Path], Mapping[str, str]]:
    environment = {"NODE_PATH": str(node_modules(KAFKAJS)), "KAFKAJS_NO_PARTITIONER_WARNING": "1"}
    return [find_node(), DRIVERS / "drive_kafkajs.js"], environment
