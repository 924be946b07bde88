"""Power cuts of machines of a simulated cluster, which may lose unsynced data.

If brokers sync before they acknowledge, no acknowledged record is lost, however many machines go down. If they do not,
as by default, other replicas have the records: a broker that returns after another boot may lack acknowledged records,
reports that when it registers, and leaves every ISR that has another member (`former_session.py`), or had one if it
takes two to commit. Therefore power is only cut for machines whose brokers are not the last complete replica of any
partition. Records that were lost there are lost for good if the other replicas leave the ISR before the controller
learns of the loss, because their sessions expired unnoticed: there is no guarantee for this case, and the run ends.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from barnabas.controller.state import PartitionState
    from tools.simulation.checks.invariants import TopicPartition
    from tools.simulation.cluster import ClusterSimulation, SimulatedBroker


WITH_ALL: Final = 0.03
"""The probability per look that all brokers fail, in a run that includes this."""

SOON_S: Final = 0.1
OTHERS_DOWN_S: Final = (0.5, 10.0)
"""The time for which brokers are down: some sessions expire before the end, some do not."""


class Power:
    """The power of one run's machines."""

    def __init__(self, simulation: ClusterSimulation, draw: random.Random) -> None:
        self._simulation = simulation
        self._draw = draw
        self._fails_with_all = not simulation.is_durable and draw.random() < 0.5
        self.lacking: set[int] = set()
        """Brokers that may lack acknowledged records, and have received no command since."""
        self.ended_the_last_in_sync = False
        """Whether all in-sync replicas of a partition may lack records: no check is meaningful any more."""
        self._found_before = 0

    def may_be_cut(self, broker: SimulatedBroker) -> bool:
        """Whether no acknowledged record is lost for good if a machine goes down now."""
        simulation = self._simulation
        if simulation.is_durable:
            return True
        if simulation.replacement.is_due:
            return False  # its records may only be on replicas that have left the ISR
        with_all = simulation.settings.with_all
        return all(
            any(self._has_all(member) for member in with_all(partition, state) if member != broker.node_id)
            for partition, state in simulation.invariants.states.items()
            if broker.node_id in state.isr
        )

    def _has_all(self, node_id: int) -> bool:
        return node_id not in self.lacking and self._simulation.brokers[node_id].is_up

    def look(self) -> None:
        """Called periodically: sometimes all brokers fail, and the controller's machine loses power, too. That machine
        returns first, when no broker with more records can lead yet.
        """
        simulation = self._simulation
        if not self._fails_with_all or self._draw.random() >= WITH_ALL or simulation.damaged or simulation.is_calm:
            return
        controller = simulation.controller()
        if controller is None or not controller.is_up or not self.may_be_cut(controller):
            return
        simulation.cut_power(controller, SOON_S)
        simulation.fail_all(lambda broker: simulation.kill(broker, self._draw.uniform(*OTHERS_DOWN_S)))

    def cut(self, broker: SimulatedBroker) -> None:
        """A machine has lost power. No other broker gets a random fault until the controller knows that it may lack
        records.
        """
        if not self._simulation.is_durable:
            self.lacking.add(broker.node_id)
            self._simulation.put_fuses_out()

    def told(self, node_id: int) -> None:
        """A broker has received a command from the controller, which knew that it may lack records."""
        self.lacking.discard(node_id)

    def written(self, partition: TopicPartition, state: PartitionState) -> None:
        """A partition's state was written in the metadata store."""
        if self.lacking and self.lacking.issuperset(self._simulation.settings.with_all(partition, state)):
            self.end("power")

    def end(self, lost: str) -> None:
        """All in-sync replicas of a partition have lost `lost`."""
        if not self.ended_the_last_in_sync:
            self._simulation.tell(f"the last in sync has lost its {lost}")
            self._simulation.count(f"last in sync without {lost}")
            self._found_before = len(self._simulation.wrong)
            self.ended_the_last_in_sync = True

    def forgive(self, wrong: list[str]) -> None:
        """Drop the violations found after the guarantees ended."""
        if self.ended_the_last_in_sync:
            del wrong[self._found_before :]
