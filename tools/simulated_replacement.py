"""A disk of a simulated cluster that is replaced: a broker comes back to an empty log directory, and fetches all it had
from the others.

Once in a run, in which `min.insync.replicas` is 2: whoever else is in the ISR, or was the last to leave it, has all
that is committed, so nothing is lost. What the broker may not do is lead on with nothing, as the others would cut their
logs to that (`ReplicaManager._check_is_not_lost`). Where it was the only one in sync, who left the ISR last leads
instead (`plan_unproven`).
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from barnabas.controller.state import NOBODY

if TYPE_CHECKING:
    from tools.cluster_simulation import ClusterSimulation, SimulatedBroker

RUNS: Final = 0.3
"""In how many runs a disk is replaced: in those no log is damaged, which the others may have to fetch from."""

AT_CRASHES: Final = 0.3
"""After how many crashes, until it has been."""

ALONE: Final = 0.1
"""How often at a look, else, the others are killed first, until it is alone in an ISR."""

OTHERS_DOWN_S: Final = (10.0, 20.0)
"""For how long: their sessions are over before."""

LOST: Final = "its log is gone"


class Replacement:
    """That of one run. `broker` is the one whose disk it was, None before."""

    def __init__(self, simulation: ClusterSimulation, draw: random.Random) -> None:
        self._simulation = simulation
        self._draw = draw
        # A partition that moves may leave those who have it for who has lost it, when somebody cancels that.
        self.is_due = not simulation.has_moves and len(simulation.brokers) > 1 and draw.random() < RUNS
        self._is_alone = draw.random() < 0.5
        self._last: SimulatedBroker | None = None
        self.broker: SimulatedBroker | None = None
        if self.is_due:
            simulation.damaged = ""
            simulation.configs["min.insync.replicas"] = "2"

    def look(self) -> None:
        """Now and then: perhaps a broker is about to lose its disk that nobody else is in sync with."""
        brokers = self._simulation.brokers
        if not self.is_due or not self._is_alone or self.broker is not None:
            return
        if self._last is None:
            if all(each.is_up for each in brokers) and self._draw.random() < ALONE:
                self._last = self._draw.choice(brokers)
                for each in brokers:
                    if each is not self._last:
                        self._simulation.tell(f"fault: {each.name} killed")
                        each.kill(restart_after_s=self._draw.uniform(*OTHERS_DOWN_S))
        elif self._last.process is None:
            self._last = None
        elif self._last.node_id in self._alone() and self._is_dispensable(self._last):
            self._last.kill(restart_after_s=0.1)
            self._simulation.count("disk of the last in sync replaced")
            self._replace(self._last)

    def crashed(self, broker: SimulatedBroker) -> None:
        """A broker has just ended: perhaps with its disk."""
        if not self.is_due or self._is_alone or self.broker is not None:
            return
        if self._draw.random() < AT_CRASHES and self._is_dispensable(broker):
            self._replace(broker)

    def _replace(self, broker: SimulatedBroker) -> None:
        self._simulation.count("disk replaced")
        self._simulation.tell(f"fault: {broker.name} disk replaced")
        self.broker = broker
        broker.replace_disk()

    def _alone(self) -> set[int]:
        """Brokers that are some ISR's only members."""
        return {state.isr[0] for state in self._simulation.invariants.states.values() if len(state.isr) == 1}

    def _is_dispensable(self, broker: SimulatedBroker) -> bool:
        """Whether it has partitions, and others have all of them."""
        states = [state for state in self._simulation.invariants.states.values() if broker.node_id in state.isr]
        return bool(states) and all(len(state.isr) > 1 or state.last_to_leave != NOBODY for state in states)

    def tells(self, name: str, message: str) -> bool:
        """Whether what a broker logs is what this has to bring about."""
        if self.broker is None:
            return False
        return (name == self.broker.name and LOST in message) or (
            f"broker {self.broker.node_id} refused its role in" in message and "KAFKA_STORAGE_ERROR" in message
        )
