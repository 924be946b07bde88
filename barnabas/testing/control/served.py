"""The brokers that one process serves, by name, with their numbered faults and snapshots."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from barnabas.clock import ManualClock
from barnabas.testing.brokers.broker import Broker
from barnabas.testing.brokers.cluster import Cluster
from barnabas.testing.control.fields import CLUSTER_BROKERS_MAX, Refused

if TYPE_CHECKING:
    from barnabas.testing.brokers.cluster_broker import ClusterBroker
    from barnabas.testing.brokers.snapshot import Snapshot
    from barnabas.testing.faults.fault import Lasting

MAIN: Final = "main"
"""The broker of the command line."""

BROKERS_MAX: Final = 100
"""Those of clusters are counted one by one."""
FAULTS_MAX: Final = 1_000
SNAPSHOTS_MAX: Final = 100
KEPT_CHARACTERS_MAX: Final = 64 * 1024
"""The limits of what is kept until it is removed: the faults and the snapshots of all brokers, and the texts that a
fault, or the settings of a broker, may have together.
"""
_OF_EACH_BROKER: Final = frozenset({"node.id", "broker.id", "log.dir", "log.dirs", "broker.rack", "zookeeper.connect"})
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,100}")


class Served:
    """A broker, or a cluster, by name; `warnings` are those of its configuration, `seed_topics` the topics that exist
    from the start, with their numbers of partitions. Thread-safe.
    """

    seed_topics: Mapping[str, int] = MappingProxyType({})

    def __init__(self, name: str, owner: Broker | Cluster, problems: Sequence[str] = ()) -> None:
        self.name = name
        self.owner = owner
        self.warnings = problems
        self._fault_numbers = itertools.count(1)
        self._snapshot_numbers = itertools.count(1)
        self._faults: dict[int, Lasting] = {}
        self._snapshots: dict[int, Snapshot] = {}

    @property
    def broker(self) -> Broker:
        """The single broker. Raises Refused: it is a cluster, one of whose brokers has to be named."""
        if isinstance(self.owner, Broker):
            return self.owner
        last = len(self.owner.brokers) - 1
        raise Refused(400, f"{self.name} is a cluster: say which of its brokers is meant, node 0 to {last}")

    def node(self, number: int) -> ClusterBroker:
        """A broker of the cluster by number. Raises Refused: it is a single broker, or the number is unknown."""
        nodes = self.cluster.brokers
        if number >= len(nodes):
            raise Refused(404, f"{self.name} has the nodes 0 to {len(nodes) - 1}, not {number}")
        return nodes[number]

    @property
    def cluster(self) -> Cluster:
        """The cluster, if this is one. Raises Refused: a single broker."""
        if isinstance(self.owner, Cluster):
            return self.owner
        raise Refused(409, f'{self.name} is a single broker: this is for clusters, POST /brokers {{"brokers": 3}}')

    def check_running(self) -> None:
        """Raises Refused if no broker runs."""
        if not self.owner.live_servers():
            node = ' {"node": 0}' if isinstance(self.owner, Cluster) else ""
            raise Refused(409, f"no broker of {self.name} runs: POST /brokers/{self.name}/start{node} starts one")

    @property
    def faults(self) -> Mapping[int, Lasting]:
        """The faults that were added and not removed, by number."""
        return dict(self._faults)

    def add_fault(self, fault: Lasting) -> int:
        """Register a fault, and return its number."""
        number = next(self._fault_numbers)
        self._faults[number] = fault
        return number

    def fault(self, number: int) -> Lasting:
        """The fault with that number. Raises Refused."""
        if number not in self._faults:
            raise Refused(404, f"{self.name} has no fault {number}: GET /brokers/{self.name}/faults lists them")
        return self._faults[number]

    def remove_fault(self, number: int) -> None:
        """End the fault with that number. Raises Refused."""
        self.fault(number).remove()
        self._faults.pop(number, None)

    def clear_faults(self) -> None:
        """End all faults; one that cannot be ended keeps its number. Raises the errors of `Faults.clear`."""
        try:
            self.owner.faults.clear()
        finally:
            self.forget_faults()

    def forget_faults(self) -> None:
        """Drop the numbers of faults that ended in other ways, for instance with the state of their broker."""
        left = set(self.owner.faults)
        self._faults = {number: each for number, each in self._faults.items() if left.intersection(each._parts())}

    def reset(self) -> None:
        """Return it to the state after its start, with its seed topics."""
        self.owner.reset()
        self.forget_faults()
        self._create_seed_topics()

    def seed(self, topics: Mapping[str, int]) -> None:
        """Create topics that exist from the start, and after each reset. Raises ApiError."""
        self.seed_topics = topics
        self._create_seed_topics()

    def _create_seed_topics(self) -> None:
        for topic, partitions in self.seed_topics.items():
            self.owner.create_topic(topic, partitions)

    def take_snapshot(self) -> int:
        """Take a snapshot of the current state, under a number."""
        taken = self.owner.snapshot()
        number = next(self._snapshot_numbers)
        self._snapshots[number] = taken
        self.forget_faults()
        return number

    @property
    def snapshot_count(self) -> int:
        return len(self._snapshots)

    def snapshot(self, number: int) -> Snapshot:
        """The snapshot with that number. Raises Refused."""
        if number not in self._snapshots:
            raise Refused(404, f"{self.name} has no snapshot {number}: POST /brokers/{self.name}/snapshots takes one")
        return self._snapshots[number]

    def remove_snapshot(self, number: int) -> None:
        """Drop the snapshot with that number, and delete its files. Raises Refused."""
        self.snapshot(number).remove()
        self._snapshots.pop(number, None)


def check_kept(fields: Mapping[str, Any]) -> None:
    """Raises Refused if fields are too large to be kept."""
    if characters(fields) > KEPT_CHARACTERS_MAX:
        raise Refused(413, f"all fields together may have {KEPT_CHARACTERS_MAX} characters")


def characters(value: object) -> int:
    """The number of characters and bytes of a field's value; eight for everything else."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, Mapping):
        return sum(characters(name) + characters(each) for name, each in value.items())
    if isinstance(value, Sequence):
        return sum(map(characters, value))
    return 8


class ServedBrokers:
    """All brokers and clusters that a process with `--control` serves, by name. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_name: dict[str, Served | None] = {}
        """None for one that is about to start or to stop."""
        self._counts: dict[str, int] = {}
        """The number of brokers of each."""
        self._numbers = itertools.count(1)

    def all(self) -> list[Served]:
        """The brokers and clusters that were started and not stopped."""
        return [served for served in list(self._by_name.values()) if served is not None]

    def find(self, name: str) -> Served:
        """The broker or cluster of that name. Raises Refused."""
        served = self._by_name.get(name)
        if served is None:
            known = ", ".join(each.name for each in self.all())
            raise Refused(404, f"there is no broker {name[:100]!r}, but {known or 'none'}: POST /brokers starts one")
        return served

    def check_room_for_fault(self, fields: Mapping[str, Any]) -> None:
        """Raises Refused if a fault with these fields would be one too many, or too large to be kept."""
        check_kept(fields)
        if sum(len(served.faults) for served in self.all()) >= FAULTS_MAX:
            raise Refused(
                409, f"there are {FAULTS_MAX} faults already: DELETE /brokers/NAME/faults ends those of a broker"
            )

    def check_room_for_snapshot(self) -> None:
        """Raises Refused if there are too many."""
        if sum(served.snapshot_count for served in self.all()) >= SNAPSHOTS_MAX:
            raise Refused(
                409, f"there are {SNAPSHOTS_MAX} snapshots already: DELETE /brokers/NAME/snapshots/N removes one"
            )

    def start(self, owner: Broker | Cluster, name: str | None = None, problems: Sequence[str] = ()) -> Served:
        """Start a broker, or a cluster, and serve it. Raises Refused, and the errors of the start."""
        name = self._reserve(name, len(owner.brokers) if isinstance(owner, Cluster) else 1)
        served = None
        try:
            owner.start()
            served = Served(name, owner, problems)
        finally:
            self._settle(name, served)
        return served

    def stop(self, name: str) -> None:
        """Stop one and remove it. Raises Refused."""
        if name == MAIN:
            raise Refused(409, f"{MAIN} is the broker of this process, and ends with it")
        served = self.find(name)
        self._by_name[name] = None
        try:
            served.owner.stop()
        finally:
            self._settle(name, None)

    def stop_others(self) -> None:
        """Stop and remove all but the broker of the process, the last one first."""
        for served in reversed(self.all()):
            if served.name != MAIN:
                with suppress(Refused):  # stopped by another request meanwhile
                    self.stop(served.name)

    def stop_all(self) -> None:
        """Stop all running ones, the last one first."""
        for served in reversed(self.all()):
            served.owner.stop()
            self._settle(served.name, None)

    def _reserve(self, name: str | None, count: int) -> str:
        with self._lock:
            if name is None:
                name = next(name for number in self._numbers if (name := f"broker-{number}") not in self._by_name)
            if not _NAME.fullmatch(name):
                raise Refused(400, "a name has up to 100 letters of a to z, A to Z, digits, '.', '_' and '-'")
            if name in self._by_name:
                raise Refused(409, f"there is a broker {name} already: DELETE /brokers/{name} ends it")
            if sum(self._counts.values()) + count > BROKERS_MAX:
                raise Refused(409, f"there may be {BROKERS_MAX} brokers at most: DELETE /brokers/NAME ends one")
            self._by_name[name], self._counts[name] = None, count
            return name

    def _settle(self, name: str, served: Served | None) -> None:
        with self._lock:
            if served is None:
                self._by_name.pop(name, None)
                self._counts.pop(name, None)
            else:
                self._by_name[name] = served


def new_owner(
    brokers: int,
    configs: Mapping[str, Any],
    racks: str | Sequence[str] = (),
    clock_ms: int | None = None,
    security: str | None = None,
) -> Broker | Cluster:
    """A single broker, or a cluster of several in these racks, with TLS and users if it has `security`, not started
    yet; with `clock_ms` its time stands still there. Raises Refused.
    """
    clock = None if clock_ms is None else ManualClock(clock_ms)
    racks = [racks] if isinstance(racks, str) else racks
    if brokers == 1 and not racks:
        return Broker(configs=configs, clock=clock, security=security)
    if brokers == 1:
        raise Refused(400, f"racks are of a cluster: brokers is to be 2 to {CLUSTER_BROKERS_MAX}")
    own = {key for key in configs if key in _OF_EACH_BROKER or "." not in key}
    if own:
        raise Refused(400, f"a cluster sets {', '.join(sorted(own))} for each broker by itself: leave it out")
    return Cluster(brokers, racks=racks, clock=clock, security=security, configs=configs)
