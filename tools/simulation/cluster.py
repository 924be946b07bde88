"""The brokers of a run, and what faults and checks know of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from barnabas.controller.state import PartitionState
from tools.simulation.broker import PORT, Running, SimulatedBroker
from tools.simulation.links import Links
from tools.simulation.surroundings import REPLICAS_MAX, Surroundings

TopicPartition: TypeAlias = tuple[str, int]

CALM_S: Final = 15.0
"""The time without other faults of brokers after a log of one was damaged: only so many brokers may be down."""


class Cluster:
    """All brokers, and the links between them."""

    def __init__(self, around: Surroundings) -> None:
        self.around = around
        self.brokers = [SimulatedBroker(around, node_id) for node_id in range(around.plan.brokers)]
        self.links = Links(around)
        self.has_moves = len(self.brokers) > REPLICAS_MAX
        """Whether partitions are reassigned."""
        self.states: dict[TopicPartition, PartitionState] = {}
        """The partition states in the metadata store."""
        self.lacking: set[int] = set()
        """Brokers that may lack acknowledged records, and have received no command since."""
        self.damaged: str | None = None
        """The partition whose log was damaged on one broker; "" once none may be, because all brokers were down at
        once.
        """
        self._calm_until_s = 0.0

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{broker.name}:{PORT}" for broker in self.brokers)

    @property
    def are_all_up(self) -> bool:
        return all(broker.is_up for broker in self.brokers)

    def running(self) -> list[Running | None]:
        """The process and the server of each broker by its id, None for one that is down."""
        return [each.running for each in self.brokers]

    def controller(self) -> SimulatedBroker | None:
        """The controller according to the metadata store."""
        node_id = self.around.store.controller_id()
        return None if node_id is None else self.brokers[node_id]

    @property
    def is_calm(self) -> bool:
        """Whether no broker may get a random fault now, because enough of them are down or lack records."""
        return self.around.loop.time() < self._calm_until_s or bool(self.lacking)

    def keep_calm(self) -> None:
        """Cause no faults of brokers for a while, except for those of the network that have begun."""
        self._calm_until_s = self.around.loop.time() + CALM_S
        self.put_fuses_out()

    def put_fuses_out(self) -> None:
        for broker in self.brokers:
            if broker.process is not None:
                broker.process.put_fuse_out()

    def fail_all(self, fail: Callable[[SimulatedBroker], None]) -> None:
        """Let all brokers fail at once; no log is damaged in this run from now on."""
        self.damaged = ""
        for broker in self.brokers:
            if broker.process is not None:
                fail(broker)
