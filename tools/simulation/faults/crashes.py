"""Brokers that crash: killed processes and machines that lose power, one or all at once."""

from __future__ import annotations

import random
from typing import Final

from tools.simulation.broker import SimulatedBroker
from tools.simulation.cluster import Cluster
from tools.simulation.faults.damage import damage
from tools.simulation.faults.power import Power
from tools.simulation.faults.replacement import Replacement

WITH_ALL: Final = 0.03
"""The probability per look that all brokers fail, in a run that includes this."""

SOON_S: Final = 0.1
OTHERS_DOWN_S: Final = (0.5, 10.0)
"""The time for which brokers are down: some sessions expire before the end, some do not."""


class Crashes:
    """The crashes of one run. A crash may damage a log, or be one after which the disk is replaced."""

    def __init__(self, cluster: Cluster, power: Power, replacement: Replacement) -> None:
        self._cluster = cluster
        self._around = cluster.around
        self._power = power
        self._replacement = replacement

    def kill(self, broker: SimulatedBroker, down_s: float) -> None:
        around, cluster = self._around, self._cluster
        around.fault("killed", broker.name)
        broker.kill(restart_after_s=down_s)
        # Only if the others live, and stay alive: the last replica in an ISR has to lead.
        others_live = all(other.is_up for other in cluster.brokers if other is not broker)
        is_damaged = cluster.damaged is None and others_live and around.draw.random() < around.rates.damage
        if is_damaged and damage(cluster, broker):
            cluster.keep_calm()
        else:
            self._replacement.crashed(broker)

    def cut_power(self, broker: SimulatedBroker, down_s: float) -> None:
        if not self._power.may_be_cut(broker):
            self.kill(broker, down_s)
            return
        self._around.fault("without power", broker.name)
        broker.cut_power(self._around.draw, restart_after_s=down_s)
        self._power.cut(broker)
        self._replacement.crashed(broker)


class CrashesOfAll:
    """In some runs all brokers fail from time to time, and the controller's machine loses power, too. That machine
    returns first, when no broker with more records can lead yet.
    """

    def __init__(self, cluster: Cluster, crashes: Crashes, power: Power, draw: random.Random) -> None:
        self._cluster = cluster
        self._crashes = crashes
        self._power = power
        self._draw = draw
        self._happens = not cluster.around.is_durable and draw.random() < 0.5

    def look(self) -> None:
        """Called periodically."""
        cluster = self._cluster
        if not self._happens or self._draw.random() >= WITH_ALL or cluster.damaged or cluster.is_calm:
            return
        controller = cluster.controller()
        if controller is None or not controller.is_up or not self._power.may_be_cut(controller):
            return
        self._crashes.cut_power(controller, SOON_S)
        cluster.fail_all(lambda broker: self._crashes.kill(broker, self._draw.uniform(*OTHERS_DOWN_S)))
