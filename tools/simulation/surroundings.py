"""The shared parts of a run: its seed, its network and metadata store, the brokers' configs, and its log."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final, NamedTuple

from tools.simulation.faults.rates import Rates
from tools.simulation.outcome import Outcome
from tools.simulation.world.disk import SimulatedDisk
from tools.simulation.world.loop import LoopClock
from tools.simulation.world.network import SimulatedNetwork
from tools.simulation.world.store import SimulatedStore

MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"
OPERATIONS_MAX: Final = 4_000
"""The number of operations after which a disk forgets those that no power cut can undo."""

REPLICAS_MAX: Final = 3
SESSION_TIMEOUT_S: Final = 6.0
TICK_S: Final = 0.25
"""The interval between two looks at the cluster."""


class Plan(NamedTuple):
    """The plan of a run: the seed decides everything else."""

    seed: int
    seconds: float
    """The duration of the faults."""
    brokers: int = 3
    new_disk: Callable[[], SimulatedDisk] = SimulatedDisk


class Surroundings:
    """The surroundings of the brokers and clients of one run, drawn from the plan's seed."""

    def __init__(self, plan: Plan, outcome: Outcome) -> None:
        self.plan = plan
        self.outcome = outcome
        self.wrong = outcome.wrong
        self.draw = random.Random(plan.seed)
        self.loop = asyncio.get_running_loop()
        self.clock = LoopClock(self.loop)
        self.network = SimulatedNetwork(self.draw.getrandbits(32))
        self.store = SimulatedStore(self.network, self.clock, SESSION_TIMEOUT_S)
        self.is_durable = self.draw.random() < 0.6
        """Whether brokers flush before they acknowledge."""
        self.rates = Rates.draw(self.draw)
        self.configs = self._draw_configs()
        """The keys of the brokers' configuration files that differ between runs."""
        self.ready: list[Callable[[int], None]] = []
        """Called with the id of a broker that has received a command from its controller, and is ready."""

    def _draw_configs(self) -> dict[str, str]:
        brokers = self.plan.brokers
        return {
            "barnabas.flush.before.ack": str(self.is_durable).lower(),
            "default.replication.factor": str(min(brokers, REPLICAS_MAX)),
            "leader.imbalance.check.interval.seconds": str(self.draw.choice((1, 5, 20))),
            MIN_INSYNC_REPLICAS: str(min(brokers, self.draw.choice((1, 2)))),
            "offsets.topic.replication.factor": str(min(brokers, REPLICAS_MAX)),
            "replica.lag.time.max.ms": str(self.draw.choice((2_000, 5_000, 30_000))),
            "transaction.state.log.min.isr": str(min(brokers, 2)),
            "transaction.state.log.replication.factor": str(min(brokers, REPLICAS_MAX)),
        }

    def draw_for(self, what: str) -> random.Random:
        """A source of randomness for one part of the run, which other parts do not influence."""
        return random.Random(f"{self.plan.seed} {what}")

    def new_disk(self) -> SimulatedDisk:
        disk = self.plan.new_disk()
        disk.operations_max = OPERATIONS_MAX
        return disk

    def tell(self, what: str) -> None:
        self.outcome.tell(f"{self.loop.time():.6f} {what}")

    def count(self, what: str, many: int = 1) -> None:
        self.outcome.counts[what] = self.outcome.counts.get(what, 0) + many

    def fault(self, kind: str, where: str) -> None:
        """Count a fault, and write it to the log."""
        self.count(kind)
        self.tell(f"fault: {where} {kind}")
