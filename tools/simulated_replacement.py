"""A disk of a simulated cluster that is replaced: a broker comes back to an empty log directory, and fetches all it had
from the others.

Once in a run, in which `min.insync.replicas` is 2: whoever else is in the ISR, or was the last to leave it, has all
that is committed, so nothing is lost. What the broker may not do is lead on with nothing, as the others would cut their
logs to that (`ReplicaManager._check_is_not_lost`). A partition whose only in-sync replica it is has no leader until an
administrator elects another one: here in the end, when all are back, so that the last who left the ISR is chosen.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

from barnabas.broker.client.client import ClientError, KafkaClient
from barnabas.broker.client.reassignments import UNCLEAN, elect
from barnabas.controller.state import NO_LEADER

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

PATIENCE_S: Final = 10.0
"""How long a partition is stuck before the administrator sees to it: sessions are over by then, and retries done."""

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
        return bool(states) and all(len(state.isr) > 1 or state.left_isr for state in states)

    def tells(self, name: str, message: str) -> bool:
        """Whether what a broker logs is what this has to bring about."""
        if self.broker is None:
            return False
        return (name == self.broker.name and LOST in message) or (
            f"broker {self.broker.node_id} refused its role in" in message and "KAFKA_STORAGE_ERROR" in message
        )

    def _stuck(self) -> list[tuple[str, int]]:
        """Partitions whose only in-sync replica is the one that is lost, while all brokers are up."""
        broker = self.broker
        if broker is None or broker.server is None or not all(each.is_up for each in self._simulation.brokers):
            return []
        log_manager = broker.server.replicas._log_manager
        return [
            key
            for key, state in sorted(self._simulation.invariants.states.items())
            if state.leader == NO_LEADER and state.isr == (broker.node_id,) and log_manager.is_lost(*key)
        ]

    async def see_to_stuck(self) -> None:
        """What the administrator does, until he is told to stop: partitions that stay stuck get another leader."""
        loop, since_s = asyncio.get_running_loop(), dict[tuple[str, int], float]()
        while True:
            await asyncio.sleep(1.0)
            now_s = loop.time()
            since_s = {key: since_s.get(key, now_s) for key in self._stuck()}
            due = [key for key, at_s in since_s.items() if now_s - at_s >= PATIENCE_S]
            if due:
                await self._elect(due)

    async def _elect(self, partitions: list[tuple[str, int]]) -> None:
        try:
            async with KafkaClient(self._simulation.bootstrap_servers, client_id="admin") as client:
                refusals = await elect(client, partitions, UNCLEAN)
        except ClientError as error:
            self._simulation.tell(f"admin: no election, {error}")
            return
        self._simulation.tell(f"admin: unclean election of {partitions}: {refusals}")
        self._simulation.count("unclean elections", len(partitions))
