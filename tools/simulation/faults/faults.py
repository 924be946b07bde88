"""All faults of a run: when each of them may happen, and what they hear of the metadata store."""

from __future__ import annotations

from collections.abc import Sequence

from barnabas.controller.coordination.interface import Stat
from barnabas.controller.znodes import CONTROLLER_EPOCH
from tools.simulation.checks.guarantee import Guarantee
from tools.simulation.checks.invariants import Invariants
from tools.simulation.cluster import Cluster
from tools.simulation.faults.ambushes import Ambushes
from tools.simulation.faults.crashes import Crashes, CrashesOfAll
from tools.simulation.faults.power import Power
from tools.simulation.faults.random_faults import RandomFaults
from tools.simulation.faults.replacement import Replacement
from tools.simulation.load.settings import Settings
from tools.simulation.surroundings import TICK_S


class Faults:
    """All faults of a run."""

    def __init__(self, cluster: Cluster, guarantee: Guarantee) -> None:
        around = self._around = cluster.around
        self._cluster = cluster
        self._is_on = False
        self.settings = Settings(cluster, around.draw_for("settings"))
        self.ambushes = Ambushes(cluster, around.draw_for("ambushes"))
        self.replacement = Replacement(cluster, self.settings, guarantee, around.draw_for("replacement"))
        self._power = Power(cluster, self.settings, self.replacement, guarantee)
        crashes = Crashes(cluster, self._power, self.replacement)
        self._crashes_of_all = CrashesOfAll(cluster, crashes, self._power, around.draw_for("power"))
        self._random = RandomFaults(cluster, crashes)

    def begin(self) -> None:
        self._is_on = True

    def look(self, clients: Sequence[str]) -> None:
        """Called every TICK_S, with the hosts of the clients."""
        self._cluster.links.look()
        self._random.look()
        self.ambushes.look()
        self.settings.look(TICK_S)
        self.replacement.look()
        self._crashes_of_all.look()
        self._random.look_between(clients)

    def end(self) -> None:
        self._around.tell("faults end")
        self._is_on = False
        self._cluster.put_fuses_out()
        self._random.end()
        self._cluster.links.restore_all()

    def written(self, path: str, data: bytes, stat: Stat, invariants: Invariants) -> None:
        """The metadata store has written a znode: a possible moment for an ambush."""
        self.settings.written(path, data)
        found = invariants.written(path, data, stat)
        if found is not None:
            partition, _, state = found
            self.settings.state_written(partition, state)
            self._power.written(partition, state)
        self.replacement.written()
        if not self._is_on or self._cluster.lacking:
            return
        if path == CONTROLLER_EPOCH:
            self.ambushes.controller_elected()
        elif found is not None:
            _, before, state = found
            self.ambushes.changed(before, state)
