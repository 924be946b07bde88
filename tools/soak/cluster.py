"""Load on a cluster of several brokers, and faults of whole brokers: `python -m tools.soak.cluster --kills 100`.

A real ZooKeeper and `barnabas serve` in a process for each broker; topics with a replica on every broker and
`min.insync.replicas` 2. Between stretches of load one broker is killed and started again, or the broker that leads a
partition is stopped beyond its session and goes on afterwards, or all are killed at once, or ZooKeeper ends the session
of one; with `--zookeeper-stops`, ZooKeeper itself stands still, or is killed and started again. Then, as with one
broker, everything is read back, and the responses to clients are checked.
"""

import argparse
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from os import kill as send_signal
from typing import Final, Self, TypeVar

from confluent_kafka.admin import AdminClient, PartitionMetadata  # type: ignore[attr-defined]
from kazoo.client import KazooClient
from tqdm import tqdm

from barnabas.broker.cli.supervisor import RESTARTS_MAX, RESTARTS_PERIOD_S
from barnabas.broker.cluster.former_session import SESSION_FILE
from barnabas.storage.checkpoints import decode_checkpoint
from tools.foreign.zookeeper import ZooKeeperServer
from tools.processes.barnabas import BarnabasBrokers, BarnabasProcess
from tools.processes.server import ServerProcess, free_ports
from tools.processes.settled import wait_settled
from tools.soak.__main__ import describe
from tools.soak.run import ACKNOWLEDGED_BETWEEN_CRASHES, NOTHING, OVERRIDES, Result, Round
from tools.soak.workload import (
    TOPIC_PREFIX,
    Amount,
    Committer,
    Member,
    PlainProducer,
    Reader,
    Recorder,
    TransactionalProducer,
    Workers,
)
from tools.waiting import PATIENCE_S

BROKERS: Final = 3
SESSION_TIMEOUT_MS: Final = 6_000
STOPPED_S: Final = SESSION_TIMEOUT_MS / 1000 + 3
"""The time for which a broker is paused to be considered dead."""

CLUSTER_OVERRIDES: Final = {
    **OVERRIDES,
    "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "replica.lag.time.max.ms": "5000",
}
TOPIC_CONFIG: Final = {"min.insync.replicas": "2"}
# No Copier: kafka-python's producer may wait forever for a coordinator to which it could not connect, as happens while
# one of several brokers is down.
WORKERS: Final[Workers] = (
    (PlainProducer, 2),
    (TransactionalProducer, 4),
    (Reader, 1),
    (Member, 2),
    (Committer, 1),
)


MakeBroker = Callable[[Mapping[str, str], int], ServerProcess]


def barnabas(overrides: Mapping[str, str], port: int) -> ServerProcess:
    """`barnabas serve` on a port."""
    return BarnabasProcess(overrides, listen=f"127.0.0.1:{port}")


class ClusterOfProcesses:
    """ZooKeeper and its brokers, each a process; a context manager.

    `make_broker` creates a broker from its configuration and port.
    """

    def __init__(
        self,
        count: int = BROKERS,
        overrides: Mapping[str, str] | None = None,
        make_broker: MakeBroker = barnabas,
    ) -> None:
        self.zookeeper = ZooKeeperServer()
        self._overrides = {**CLUSTER_OVERRIDES, **(overrides or {})}
        self._make_broker = make_broker
        self._ports = free_ports(count)
        self.brokers: list[ServerProcess] = []
        self._stack = ExitStack()

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT of every broker."""
        return ",".join(f"127.0.0.1:{port}" for port in self._ports)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.zookeeper)
            for node_id, port in enumerate(self._ports):
                overrides = {
                    **self._overrides,
                    "broker.id": str(node_id),
                    "zookeeper.connect": self.zookeeper.address,
                }
                self.brokers.append(stack.enter_context(self._make_broker(overrides, port)))
            self.wait_settled()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        for broker in self.brokers:
            broker.kill()
        self._stack.close()

    def wait_settled(self, *topics: str) -> None:
        """Wait until the running brokers have applied the controller's decisions, and know these topics."""
        running = [
            f"127.0.0.1:{port}" for port, broker in zip(self._ports, self.brokers, strict=True) if broker.is_running
        ]
        wait_settled(running, topics)

    def partition(self, topic: str, partition: int) -> PartitionMetadata:
        """The leader of a partition and its in-sync replicas, according to Kafka's metadata, once the broker knows the
        partition. Raises TimeoutError.
        """
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            partitions = admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
            if partition in partitions:
                return partitions[partition]
            time.sleep(0.05)
        raise TimeoutError(f"nobody knows of {topic}-{partition}")

    def leader(self, topic: str, partition: int) -> ServerProcess:
        """The broker that leads a partition; any broker if there is no leader."""
        return self.brokers[max(self.partition(topic, partition).leader, 0)]

    def log_text(self) -> str:
        """The logs of all brokers."""
        return "\n".join(broker.log_text() for broker in self.brokers)


class ClusterOfOneCommand:
    """`barnabas serve --brokers N`, whose parent runs the store and restarts killed brokers; a context manager."""

    def __init__(self, count: int = BROKERS, overrides: Mapping[str, str] | None = None) -> None:
        self.processes = BarnabasBrokers(count, {**CLUSTER_OVERRIDES, **(overrides or {})})
        self.count = count
        self._killed_s: dict[int, list[float]] = {}

    def may_be_killed(self) -> list[int]:
        """The brokers whose parent would restart them: it gives up after too many recent deaths."""
        since_s = time.monotonic() - RESTARTS_PERIOD_S
        return [
            node_id
            for node_id in self.processes.node_ids
            if sum(at_s > since_s for at_s in self._killed_s.get(node_id, ())) < RESTARTS_MAX - 1
        ]

    def kill(self, node_id: int) -> None:
        """`kill -9` of a broker, once it has a process."""
        deadline = time.monotonic() + PATIENCE_S
        while not (pid := self.processes.broker_pid(node_id)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"broker {node_id} was not started again")
            time.sleep(0.05)
        send_signal(pid, signal.SIGKILL)
        self._killed_s.setdefault(node_id, []).append(time.monotonic())

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT of every broker."""
        return self.processes.bootstrap_servers

    def __enter__(self) -> Self:
        try:
            self.processes.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.processes.kill()
        self.processes.close()

    def log_text(self) -> str:
        """The logs of all brokers."""
        return self.processes.log_text()


def kill_child(cluster: ClusterOfOneCommand, chance: random.Random, _topic: str) -> None:
    """`kill -9` of one broker, which its parent restarts, but not more often within a minute than the parent allows."""
    while not (candidates := cluster.may_be_killed()):
        time.sleep(0.5)
    cluster.kill(chance.choice(candidates))


Fault = Callable[[ClusterOfProcesses, random.Random, str], None]
"""Causes a fault of a cluster and ends it; the last argument is the topic of the load."""


def kill_one(cluster: ClusterOfProcesses, chance: random.Random, _topic: str) -> None:
    """`kill -9` of one broker, and its restart, at once or after the others have noticed."""
    broker = chance.choice(cluster.brokers)
    broker.kill()
    time.sleep(chance.choice((0.0, 0.5, STOPPED_S)))
    broker.start()


@contextmanager
def _standing_still(server: ServerProcess) -> Iterator[None]:
    send_signal(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        send_signal(server.pid, signal.SIGCONT)


def stop_leader(cluster: ClusterOfProcesses, chance: random.Random, topic: str) -> None:
    """Pause the leader of a partition until the cluster considers it dead, and then resume it."""
    with _standing_still(cluster.leader(topic, chance.randrange(2))):
        time.sleep(STOPPED_S)


def kill_all(cluster: ClusterOfProcesses, chance: random.Random, _topic: str) -> None:
    """`kill -9` of all brokers at once; they return together."""
    for broker in cluster.brokers:
        send_signal(broker.pid, signal.SIGKILL)
    for broker in cluster.brokers:
        broker.kill()
    with ThreadPoolExecutor(len(cluster.brokers)) as starters:
        for started in [starters.submit(broker.start) for broker in cluster.brokers]:
            started.result()


def expire_session(cluster: ClusterOfProcesses, chance: random.Random, _topic: str) -> None:
    """Expire the ZooKeeper session of a running broker: another client closes it with its password."""
    broker = chance.choice(cluster.brokers)
    ((session_id, password, *_),) = decode_checkpoint((broker.log_dir / SESSION_FILE).read_bytes())
    client = KazooClient(cluster.zookeeper.address, client_id=(int(session_id), bytes.fromhex(password)))
    client.start(timeout=PATIENCE_S)
    client.stop()
    client.close()


def stop_zookeeper(cluster: ClusterOfProcesses, chance: random.Random, topic: str) -> None:
    """Pause ZooKeeper, for less than a session timeout or longer; sometimes pause the leader of a partition, too, and
    even longer, so that it does not know whether its session has expired.
    """
    leader = cluster.leader(topic, chance.randrange(2)) if chance.random() < 0.5 else None
    with nullcontext() if leader is None else _standing_still(leader):
        with _standing_still(cluster.zookeeper):
            time.sleep(chance.choice((SESSION_TIMEOUT_MS / 2000, STOPPED_S)))
        if leader is not None:
            time.sleep(SESSION_TIMEOUT_MS / 1000)


def kill_zookeeper(cluster: ClusterOfProcesses, chance: random.Random, _topic: str) -> None:
    """`kill -9` of ZooKeeper, sometimes of a broker, too, and their restart a moment later or after the session
    timeout; the sessions' timeouts start again with ZooKeeper.
    """
    broker = chance.choice(cluster.brokers) if chance.random() < 0.5 else None
    cluster.zookeeper.kill()
    if broker is not None:
        broker.kill()
    time.sleep(chance.choice((0.5, STOPPED_S)))
    cluster.zookeeper.start()
    if broker is not None:
        broker.start()


FAULTS: Final[Mapping[str, Fault]] = {
    "kill": kill_one,
    "stop": stop_leader,
    "all": kill_all,
    "expire": expire_session,
    "zookeeper stops": stop_zookeeper,
    "zookeeper killed": kill_zookeeper,
}


def soak_one_command(
    kills: int, *, load_s: float, seed: int, least: Amount = NOTHING, is_timed: bool = True, quiet: bool = False
) -> tuple[Result, Counter[str], str]:
    """Like `soak_cluster`, with `barnabas serve --brokers 3` and a number of its brokers killed under load."""
    cluster = ClusterOfOneCommand()
    faults = ["kill"] * (kills - 1)
    return _soak(cluster, cluster.count, {"kill": kill_child}, faults, load_s, seed, WORKERS, least, is_timed, quiet)


def soak_cluster(
    faults: Iterable[str],
    *,
    load_s: float,
    seed: int,
    workers: Workers = WORKERS,
    overrides: Mapping[str, str] | None = None,
    kinds: Mapping[str, Fault] = FAULTS,
    make_broker: MakeBroker = barnabas,
    least: Amount = NOTHING,
    is_timed: bool = True,
    quiet: bool = False,
) -> tuple[Result, Counter[str], str]:
    """Run about `load_s` of load before each of the faults, given by their names in `kinds`, and until `least` has
    happened. One more `kill` follows when the workers have stopped, and then the check, like `soak`. Also returns the
    number of each fault, and the brokers' logs.
    """
    cluster = ClusterOfProcesses(overrides=overrides, make_broker=make_broker)
    return _soak(cluster, BROKERS, kinds, faults, load_s, seed, workers, least, is_timed, quiet)


AnyCluster = TypeVar("AnyCluster", ClusterOfProcesses, ClusterOfOneCommand)


def _soak(
    unstarted: AnyCluster,
    replicas: int,
    kinds: Mapping[str, Callable[[AnyCluster, random.Random, str], None]],
    faults: Iterable[str],
    load_s: float,
    seed: int,
    workers: Workers,
    least: Amount,
    is_timed: bool,
    quiet: bool,
) -> tuple[Result, Counter[str], str]:
    result, chance, happened = Result(rounds=1), random.Random(seed), Counter[str]()
    planned = list(faults)
    topic = f"{TOPIC_PREFIX}cluster"
    with (
        unstarted as cluster,
        tqdm(total=len(planned) + 1, unit="fault", disable=quiet, file=sys.stderr) as bar,
    ):

        def next_fault() -> None:
            name = planned.pop(0) if planned else "kill"
            kinds[name](cluster, chance, topic)
            happened[name] += 1
            result.crashes += 1
            bar.update()

        def load(recorder: Recorder) -> None:
            wanted = recorder.acknowledged + ACKNOWLEDGED_BETWEEN_CRASHES
            time.sleep(chance.uniform(0.5, 1.5) * load_s)
            deadline = time.monotonic() + PATIENCE_S
            while recorder.acknowledged < wanted:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{recorder.acknowledged} records acknowledged, {wanted} waited for")
                time.sleep(0.05)

        one = Round(
            cluster.bootstrap_servers,
            topic,
            workers,
            seed,
            result,
            replication_factor=replicas,
            config=TOPIC_CONFIG,
            least=least,
            is_timed=is_timed,
        )
        one.run(load, next_fault, lambda _recorder: not planned)
        return result, happened, cluster.log_text()


def plan(
    kills: int, stops: int, alls: int, expirations: int, chance: random.Random, zookeeper_stops: int = 0
) -> Sequence[str]:
    """The given number of faults of each kind, in any order; ZooKeeper is killed every other time that it stops."""
    names = ["kill"] * kills + ["stop"] * stops + ["all"] * alls + ["expire"] * expirations
    names += [("zookeeper stops", "zookeeper killed")[number % 2] for number in range(zookeeper_stops)]
    chance.shuffle(names)
    return names


def main() -> int:
    """Run once and print the result; exit status 0 when nothing was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10, help="brokers killed and started again (default 10)")
    parser.add_argument("--stops", type=int, default=3, help="leaders that stand still for longer than their session")
    parser.add_argument("--alls", type=int, default=2, help="how often all brokers are killed at once")
    parser.add_argument("--expirations", type=int, default=1, help="sessions that ZooKeeper ends")
    parser.add_argument(
        "--zookeeper-stops",
        type=int,
        default=0,
        metavar="N",
        help="how often ZooKeeper stands still or is killed, in turns, sometimes with a broker (default 0)",
    )
    parser.add_argument(
        "--one-command", action="store_true", help="`barnabas serve --brokers 3`, where brokers are killed alone"
    )
    parser.add_argument("--load", type=float, default=2, metavar="SECONDS", help="before each (default 2)")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    if options.one_command:
        result, happened, log = soak_one_command(options.kills, load_s=options.load, seed=options.seed)
        return _tell(result, happened, log)
    chance = random.Random(options.seed)
    faults = plan(options.kills, options.stops, options.alls, options.expirations, chance, options.zookeeper_stops)
    return _tell(*soak_cluster(faults, load_s=options.load, seed=options.seed))


def _tell(result: Result, happened: Counter[str], log: str) -> int:
    print(", ".join(f"{count} {name}" for name, count in sorted(happened.items())))
    print(describe(result))
    if not result.is_clean:
        print(log, file=sys.stderr)
    return int(not result.is_clean)


if __name__ == "__main__":
    sys.exit(main())
