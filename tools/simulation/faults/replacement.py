"""The replacement of a disk in a simulated cluster: a broker returns with an empty log directory, and fetches all its
records from the others.

It happens once in a run, if `min.insync.replicas` is 2: any other member of the ISR, or the last one that left it, has
all committed records, so nothing is lost. The broker must not lead with an empty log, because the others would truncate
theirs (`ReplicaManager._check_is_not_lost`). If it was the only in-sync replica, the one that left the ISR last leads
instead (`plan_unproven`). A broker that may commit alone, or could while it was the only one (`load/settings.py`),
keeps its disk. If that becomes possible after the disk was replaced, no replica can lead in its place: there is no
guarantee for this case, and the run ends.
"""

from __future__ import annotations

import random
from typing import Final

from tools.simulation.broker import SimulatedBroker
from tools.simulation.checks.guarantee import Guarantee
from tools.simulation.cluster import Cluster
from tools.simulation.load.settings import Settings
from tools.simulation.surroundings import MIN_INSYNC_REPLICAS

RUNS: Final = 0.3
"""The share of runs with a replaced disk: in those no log is damaged, because the others may have to fetch from it."""

AT_CRASHES: Final = 0.3
"""The probability of the replacement after each crash, until it was done."""

ALONE_S: Final = 3.0
"""The maximum of the mean time for which the broker is alone before; it does various things meanwhile."""

ALONE: Final = 0.1
"""Otherwise, the probability per look that the others are killed first, so that it is alone in an ISR."""

OTHERS_DOWN_S: Final = (10.0, 20.0)
"""The time for which the others are down: their sessions expire before."""

LOST: Final = "its log is gone"


class Replacement:
    """The replacement of one run. `broker` is the broker with the replaced disk, None before."""

    def __init__(self, cluster: Cluster, settings: Settings, guarantee: Guarantee, draw: random.Random) -> None:
        self._cluster = cluster
        self._around = cluster.around
        self._settings = settings
        self._guarantee = guarantee
        self._draw = draw
        # A reassignment, when it is cancelled, may leave only the broker that has lost the partition.
        self.is_due = not cluster.has_moves and len(cluster.brokers) > 1 and draw.random() < RUNS
        self._is_alone = draw.random() < 0.5
        self._last: SimulatedBroker | None = None
        self._not_before_s = 0.0
        self._is_told = True
        """Whether the broker has received commands for the partitions it leads with its new disk."""
        self.broker: SimulatedBroker | None = None
        if self.is_due:
            cluster.damaged = ""
            if settings.mean_s is None:
                self._around.configs[MIN_INSYNC_REPLICAS] = "2"
        self._around.ready.append(self._told)

    def look(self) -> None:
        """Called periodically: sometimes starts a replacement for a broker that is alone in an ISR."""
        brokers = self._cluster.brokers
        if not self.is_due or not self._is_alone or self.broker is not None:
            return
        if self._last is None:
            if all(each.is_up for each in brokers) and self._draw.random() < ALONE:
                self._last = self._draw.choice(brokers)
                self._cluster.keep_calm()
                for each in brokers:
                    if each is not self._last:
                        self._around.tell(f"fault: {each.name} killed")
                        each.kill(restart_after_s=self._draw.uniform(*OTHERS_DOWN_S))
        elif self._last.process is None or all(each.is_up for each in brokers):
            self._last = None
        elif self._last.node_id not in self._alone():
            self._not_before_s = self._around.loop.time() + self._draw.uniform(0, 2 * ALONE_S)
        elif self._around.loop.time() >= self._not_before_s and self._is_dispensable(self._last):
            self._last.kill(restart_after_s=0.1)
            self._around.count("disk of the last in sync replaced")
            self._replace(self._last)

    def crashed(self, broker: SimulatedBroker) -> None:
        """A broker has just ended: sometimes its disk is replaced."""
        if not self.is_due or self._is_alone or self.broker is not None:
            return
        if self._draw.random() < AT_CRASHES and self._has_partitions(broker) and self._is_dispensable(broker):
            self._replace(broker)

    def _replace(self, broker: SimulatedBroker) -> None:
        self._around.count("disk replaced")
        self._around.tell(f"fault: {broker.name} disk replaced")
        self.broker = broker
        self._is_told = False
        broker.replace_disk()

    def _told(self, node_id: int) -> None:
        """A broker has received a command from the controller, which knew whether its logs are there."""
        if self.broker is not None and node_id == self.broker.node_id:
            self._is_told = True

    def written(self) -> None:
        """The metadata store was written: perhaps no broker with all records of a partition is left."""
        if self.broker is not None and not self._is_told and not self._is_dispensable(self.broker):
            self._guarantee.end("disk")

    def _alone(self) -> set[int]:
        """Brokers that are the only member of some ISR."""
        return {state.isr[0] for state in self._cluster.states.values() if len(state.isr) == 1}

    def _has_partitions(self, broker: SimulatedBroker) -> bool:
        return any(broker.node_id in state.isr for state in self._cluster.states.values())

    def _is_dispensable(self, broker: SimulatedBroker) -> bool:
        """Whether others have all of its partitions."""
        with_all = self._settings.with_all
        return all(
            any(member != broker.node_id for member in with_all(partition, state))
            for partition, state in self._cluster.states.items()
            if broker.node_id in state.isr
        )

    def tells(self, name: str, message: str) -> bool:
        """Whether a broker's log message is the intended effect of the replacement."""
        if self.broker is None:
            return False
        return (name == self.broker.name and LOST in message) or (
            f"broker {self.broker.node_id} refused its role in" in message and "KAFKA_STORAGE_ERROR" in message
        )
