"""Machines of a simulated cluster that lose their power: what was not synced may be gone with it.

Where brokers sync before they acknowledge, nothing acknowledged is lost, however many machines go down. Where they do
not, as by default, other replicas have it: a broker that comes back after another boot may lack what it had
acknowledged, says so when it registers, and leaves every ISR that has another member (`former_session.py`), or had one
where it takes two to commit. So the power is cut there of machines whose brokers are nowhere the last that have
everything. What one of them lost is lost for good where the others leave the ISR before the controller has heard of
it, as sessions end of which nobody hears: nobody promises more, and the run is over.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from barnabas.controller.state import PartitionState
    from tools.cluster_invariants import TopicPartition
    from tools.cluster_simulation import ClusterSimulation, SimulatedBroker


WITH_ALL: Final = 0.03
"""At how many looks all fail, in a run in which they do."""

SOON_S: Final = 0.1
OTHERS_DOWN_S: Final = (0.5, 10.0)
"""How long brokers are down: their sessions are over before, or not yet."""


class Power:
    """That of one run's machines."""

    def __init__(self, simulation: ClusterSimulation, draw: random.Random) -> None:
        self._simulation = simulation
        self._draw = draw
        self._fails_with_all = not simulation.is_durable and draw.random() < 0.5
        self.lacking: set[int] = set()
        """Brokers that may lack what they had acknowledged, and have not been told what they lead since."""
        self.ended_the_last_in_sync = False
        """Whether all that were in sync for a partition may lack records: nobody can tell what is wrong any more."""
        self._found_before = 0

    def may_be_cut(self, broker: SimulatedBroker) -> bool:
        """Whether nothing that was acknowledged is lost for good if a machine goes down now."""
        simulation = self._simulation
        if simulation.is_durable:
            return True
        if simulation.replacement.is_due:
            return False  # what only those have that have left the ISR
        with_all = simulation.settings.with_all
        return all(
            any(self._has_all(member) for member in with_all(partition, state) if member != broker.node_id)
            for partition, state in simulation.invariants.states.items()
            if broker.node_id in state.isr
        )

    def _has_all(self, node_id: int) -> bool:
        return node_id not in self.lacking and self._simulation.brokers[node_id].is_up

    def look(self) -> None:
        """Now and then: perhaps all brokers fail, the controller together with its machine. It is the first that is
        back, when nobody who has more can lead yet."""
        simulation = self._simulation
        if not self._fails_with_all or self._draw.random() >= WITH_ALL or simulation.damaged or simulation.is_calm:
            return
        controller = simulation.controller()
        if controller is None or not controller.is_up or not self.may_be_cut(controller):
            return
        simulation.cut_power(controller, SOON_S)
        simulation.fail_all(lambda broker: simulation.kill(broker, self._draw.uniform(*OTHERS_DOWN_S)))

    def cut(self, broker: SimulatedBroker) -> None:
        """A machine has gone down. Nobody else fails by chance until the controller has heard what it may lack."""
        if not self._simulation.is_durable:
            self.lacking.add(broker.node_id)
            self._simulation.put_fuses_out()

    def told(self, node_id: int) -> None:
        """A broker has heard from the controller, which knew what that may lack."""
        self.lacking.discard(node_id)

    def written(self, partition: TopicPartition, state: PartitionState) -> None:
        """The metadata store has taken a partition's state."""
        if self.lacking and self.lacking.issuperset(self._simulation.settings.with_all(partition, state)):
            self.end("power")

    def end(self, lost: str) -> None:
        """All that were in sync for a partition have lost that."""
        if not self.ended_the_last_in_sync:
            self._simulation.tell(f"the last in sync has lost its {lost}")
            self._simulation.count(f"last in sync without {lost}")
            self._found_before = len(self._simulation.wrong)
            self.ended_the_last_in_sync = True

    def forgive(self, wrong: list[str]) -> None:
        """Leave out what was found when nobody promised anything any more."""
        if self.ended_the_last_in_sync:
            del wrong[self._found_before :]
