"""The longest time without acknowledgements when a leader goes: `python -m tools.soak.write_gap --rounds 20`.

Three brokers on a real ZooKeeper, a topic with three replicas and `min.insync.replicas` 2, and an idempotent producer
with acks=all that sends a record every few milliseconds. The leader is stopped (SIGTERM), killed (SIGKILL), or killed
and started again at once; the gap is the longest time between two acknowledgements. The same is done to Apache Kafka
3.9 in ZooKeeper mode, in turn: each fault comes to both before the next one, and nothing is sent to the one that waits.
With `--partitions 1500` the topic has so many, of which some are written to, spread over all of them; the gap is the
longest of any of these.

With `--one-command` it is `barnabas serve --brokers 3`, and the killed broker is the leader and the controller.
"""

import argparse
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import cycle, pairwise
from pathlib import Path
from typing import Final, Self

from confluent_kafka import ElectionType, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, TopicMetadata  # type: ignore[attr-defined]
from tqdm import tqdm

from tools.foreign.kafka import SMALL_BROKER_JVM, ZOOKEEPER_ERA_VERSION, KafkaServer
from tools.processes.server import ServerProcess
from tools.soak.cluster import (
    SESSION_TIMEOUT_MS,
    TOPIC_CONFIG,
    ClusterOfOneCommand,
    ClusterOfProcesses,
    MakeBroker,
    barnabas,
)

TOPIC: Final = "gaps"
WRITTEN_MAX: Final = 10
"""The number of partitions that are written to, in turn."""
INTERVAL_S: Final = 0.005
QUIET_S: Final = 1.0
"""The maximum time until acknowledgements resume after a gap."""
PATIENCE_S: Final = 90.0


class Kafka3(KafkaServer):
    """A broker of Apache Kafka 3.9 in ZooKeeper mode on a given port.

    It ends at its start while ZooKeeper keeps the session of the killed one. Then it is started again, as a service
    manager would do.
    """

    def __init__(self, settings: Mapping[str, str], port: int, jvm_options: Sequence[str] = SMALL_BROKER_JVM) -> None:
        super().__init__(version=ZOOKEEPER_ERA_VERSION, jvm_options=jvm_options)
        self._port = port
        self._settings = settings

    def _write_properties(self) -> Path:
        address = f"PLAINTEXT://127.0.0.1:{self._port}"
        settings = {**self._settings, "listeners": address, "log.dirs": str(self.log_dir)}
        path = self._folder / "server.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return path

    def _format(self, properties: Path) -> None:
        """Do nothing: only KRaft formats."""

    def _is_ready(self, printed: list[str], logged: list[str]) -> bool:
        return any("started (kafka.server.KafkaServer)" in line for line in logged)

    def start(self) -> None:
        """Start, and retry while the broker reports that its id is in use. Raises RuntimeError if it does not become
        ready.
        """
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return super().start()
            except RuntimeError as error:
                if "NodeExists" not in str(error) or time.monotonic() > deadline:
                    raise


class Acknowledgements:
    """Sends records continuously to these partitions, and notes the time of each acknowledgement; a context manager."""

    def __init__(self, bootstrap_servers: str, partitions: Sequence[int]) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 0,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        self._times: dict[int, list[float]] = {partition: [] for partition in partitions}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self.errors: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        for partition in cycle(self._times):
            if self._is_over.wait(INTERVAL_S):
                break
            self._producer.produce(TOPIC, b"x" * 100, partition=partition, on_delivery=self._delivered)
            self._producer.poll(0)
        self._producer.flush(PATIENCE_S)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self._times[message.partition() or 0].append(time.monotonic())
        else:
            self.errors.append(str(error))

    def gap(self, since: float) -> float:
        """The longest time since `since` without an acknowledgement of one partition, once all get them again; in
        seconds.

        Raises: TimeoutError.
        """
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            gaps = [self._gap_of_one(list(times), since) for times in self._times.values()]
            ended = [gap for gap in gaps if gap is not None]
            if len(ended) == len(gaps):
                return max(ended)
            time.sleep(QUIET_S / 10)
        raise TimeoutError("nothing is acknowledged any more")

    @staticmethod
    def _gap_of_one(acknowledged: Sequence[float], since: float) -> float | None:
        """The longest pause; None while it may continue."""
        now = time.monotonic()
        times = [since, *(each for each in acknowledged if each > since)]
        longest = max((after - before for before, after in pairwise(times)), default=PATIENCE_S)
        is_over = now - since > QUIET_S and now - times[-1] < QUIET_S / 5 and times[-1] - since > longest
        return longest if is_over else None


def stop(broker: ServerProcess) -> None:
    """SIGTERM."""
    broker.stop()


def kill(broker: ServerProcess) -> None:
    """SIGKILL."""
    broker.kill()


def kill_and_restart(broker: ServerProcess) -> None:
    """SIGKILL, and a start at once."""
    broker.kill()
    broker.start()


WAYS: Final[Mapping[str, Callable[[ServerProcess], None]]] = {
    "SIGTERM": stop,
    "SIGKILL": kill,
    "SIGKILL, start": kill_and_restart,
}


SYSTEMS: Final[Mapping[str, MakeBroker]] = {"barnabas": barnabas, "kafka": Kafka3}


def measure(systems: Sequence[str], rounds: int, partitions: int = 1) -> dict[str, dict[str, list[float]]]:
    """The gaps of each system (a name in SYSTEMS) and each way to end a leader, in seconds.

    Raises: TimeoutError; RuntimeError when a broker does not start or a record was refused.
    """
    gaps: dict[str, dict[str, list[float]]] = {system: {way: [] for way in WAYS} for system in systems}
    with ExitStack() as stack:
        clusters = {system: stack.enter_context(ClusterOfProcesses(make_broker=SYSTEMS[system])) for system in systems}
        for cluster in clusters.values():
            _create_topic(cluster, partitions)
        bar = stack.enter_context(tqdm(total=rounds * len(WAYS) * len(systems), unit="fault", file=sys.stderr))
        for _ in range(rounds):
            for way, go in WAYS.items():
                for system, cluster in clusters.items():
                    gaps[system][way].append(_gap(cluster, partitions, go))
                    bar.update()
    return gaps


def _create_topic(cluster: ClusterOfProcesses, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    while len(admin.list_topics(timeout=PATIENCE_S).brokers) < len(cluster.brokers):
        time.sleep(0.1)  # Kafka is ready before all brokers know each other
    topic = NewTopic(TOPIC, partitions, replication_factor=3, config=dict(TOPIC_CONFIG))
    admin.create_topics([topic], request_timeout=PATIENCE_S)[TOPIC].result()
    _wait_in_sync(cluster, partitions)


def _gap(cluster: ClusterOfProcesses, partitions: int, go: Callable[[ServerProcess], None]) -> float:
    """The gap when the leader of the first partition ends, in seconds; afterwards all brokers are back and in sync."""
    written = range(0, partitions, -(-partitions // WRITTEN_MAX))
    with Acknowledgements(cluster.bootstrap_servers, written) as acknowledgements:
        acknowledgements.gap(time.monotonic())
        broker = cluster.leader(TOPIC, 0)
        since = time.monotonic()
        go(broker)
        gap = acknowledgements.gap(since)
    if acknowledgements.errors:
        raise RuntimeError(f"the producer was told: {acknowledgements.errors[0]}")
    if not broker.is_running:
        broker.start()
    _wait_in_sync(cluster, partitions)
    return gap


def measure_one_command(rounds: int) -> list[float]:
    """The gaps when a broker of `serve --brokers 3` is killed that is the controller and leads, in seconds.

    Raises the errors of `measure`.
    """
    gaps = []
    with ClusterOfOneCommand() as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, 3, replication_factor=3, config=dict(TOPIC_CONFIG))])[TOPIC].result()
        for _ in tqdm(range(rounds), unit="kill", file=sys.stderr):
            controller, partition = _controller_that_leads(cluster, admin)
            with Acknowledgements(cluster.bootstrap_servers, [partition]) as acknowledgements:
                acknowledgements.gap(time.monotonic())
                since = time.monotonic()
                cluster.kill(controller)
                gaps.append(acknowledgements.gap(since))
            if acknowledgements.errors:
                raise RuntimeError(f"the producer was told: {acknowledgements.errors[0]}")
    return gaps


def _controller_that_leads(cluster: ClusterOfOneCommand, admin: AdminClient) -> tuple[int, int]:
    """The controller and a partition that it leads, once all are in sync and its parent would start it again."""
    deadline = time.monotonic() + 2 * PATIENCE_S
    while time.monotonic() < deadline:
        told = admin.list_topics(TOPIC, timeout=PATIENCE_S)
        partitions = told.topics[TOPIC].partitions
        led = [index for index, each in partitions.items() if each.leader == told.controller_id]
        if len(partitions) == 3 and all(len(each.isrs) == 3 for each in partitions.values()):
            if led and told.controller_id in cluster.may_be_killed():
                return told.controller_id, led[0]
            if not led:
                preferred = [TopicPartition(TOPIC, index) for index in partitions]
                admin.elect_leaders(ElectionType.PREFERRED, preferred).result()
        time.sleep(0.2)
    raise TimeoutError("no controller that leads is to be had")


def _wait_in_sync(cluster: ClusterOfProcesses, partitions: int) -> None:
    """Wait until a broker reports that all replicas of all partitions are in sync. Raises TimeoutError."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    deadline = time.monotonic() + PATIENCE_S
    while not _is_in_sync(admin.list_topics(TOPIC, timeout=PATIENCE_S).topics[TOPIC], partitions, len(cluster.brokers)):
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"not all replicas are in sync after {PATIENCE_S:.0f} s:\n{cluster.log_text()[-20_000:]}"
            )
        time.sleep(0.05)


def _is_in_sync(topic: TopicMetadata, partitions: int, replicas: int) -> bool:
    return len(topic.partitions) == partitions and all(len(p.isrs) == replicas for p in topic.partitions.values())


def table(gaps: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """The worst and the median gap of each system and way to end a leader, and the ratio of the first system's to the
    other's.
    """
    systems = list(gaps)
    rows = [["", *(f"{system}: {which}, s" for system in systems for which in STATISTICS)]]
    if len(systems) > 1:
        rows[0] += [f"{systems[0]} / {systems[1]}: {which}" for which in STATISTICS]
    for way in WAYS:
        figures = [[statistic(gaps[system][way]) for statistic in STATISTICS.values()] for system in systems]
        row = [way, *(f"{figure:.2f}" for each in figures for figure in each)]
        if len(systems) > 1:
            row += [f"{one / other:.2f}" for one, other in zip(figures[0], figures[1], strict=True)]
        rows.append(row)
    rows.insert(1, ["---", *["---:"] * (len(rows[0]) - 1)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


STATISTICS: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {"worst": max, "median": statistics.median}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="of each way to go (default 20)")
    parser.add_argument("--system", choices=list(SYSTEMS), help="only this one (default: both, in turn)")
    parser.add_argument("--partitions", type=int, default=1, help="of the topic (default 1)")
    parser.add_argument(
        "--one-command", action="store_true", help="`barnabas serve --brokers 3`, its controller killed"
    )
    options = parser.parse_args()
    if options.one_command:
        return _tell_of_one_command(options.rounds)
    systems = [options.system] if options.system else list(SYSTEMS)
    load_before = os.getloadavg()[0]
    gaps = measure(systems, options.rounds, options.partitions)
    print(table(gaps))
    print(
        f"{options.partitions} partition(s), {options.rounds} rounds, session timeout {SESSION_TIMEOUT_MS} ms, "
        f"load of the machine before {load_before:.1f}, after {os.getloadavg()[0]:.1f}"
    )
    return 0


def _tell_of_one_command(rounds: int) -> int:
    load_before = os.getloadavg()[0]
    gaps = measure_one_command(rounds)
    print(f"controller that leads, SIGKILL: worst {max(gaps):.2f} s, median {statistics.median(gaps):.2f} s")
    print(f"{rounds} rounds, load of the machine before {load_before:.1f}, after {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
