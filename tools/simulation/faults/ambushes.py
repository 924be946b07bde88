"""Faults of a simulated cluster at specific moments, which random faults hardly ever meet.

Most difficult situations for replication and controllers last milliseconds: between a write to the metadata store and
its response, or between a command and its arrival. An ambush observes the write (it is at the store) and causes a fault
right then. A seed decides which kinds are active, often none, so that other faults also occur alone. The faults
themselves are those that `random_faults.py` also causes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from barnabas.controller.state import PartitionState
from tools.simulation.cluster import Cluster
from tools.simulation.faults.damage import damage
from tools.simulation.world.store import HOST as STORE

LAG_S_MAX: Final = 5.0

Kind: TypeAlias = Callable[[PartitionState | None, PartitionState, int], bool]
"""Called with a partition's state before and after a write, and the controller's id. Returns whether a fault was
caused.
"""

REST_S: Final = 2.0
"""The minimum time between two ambushes: the cluster must recover from one before the next."""


class Ambushes:
    """The ambushes of one run. `changed` and `controller_elected` are called with each write that the store has just
    applied.
    """

    def __init__(self, cluster: Cluster, draw: random.Random) -> None:
        self._cluster = cluster
        self._around = cluster.around
        self._draw = draw
        self._rests_until_s = 0.0
        self._slows_new_controller = False
        kinds: list[Kind] = [
            self._keep_joined_from_fetching,
            self._restart_elected,
            self._write_late,
            self._break_commands,
            self._delay_commands_of_new_controller,
        ]
        count = draw.choice((0, 1, 2)) if len(cluster.brokers) > 1 else 0
        self._kinds = draw.sample(kinds, count)
        self._damages = count > 0 and draw.random() < 0.3

    @property
    def names(self) -> list[str]:
        return [_name_of(kind) for kind in self._kinds] + ["damage without controller"] * self._damages

    def look(self) -> None:
        """Called periodically, independent of writes."""
        if self._damages and self._draw.random() < 0.3:
            self._damage_without_controller()

    def changed(self, before: PartitionState | None, state: PartitionState) -> None:
        """A partition's state has been written."""
        controller = self._around.store.controller_id()
        if not self._kinds or controller is None or self._now_s < self._rests_until_s:
            return
        for kind in self._draw.sample(self._kinds, len(self._kinds)):
            if kind(before, state, controller):
                self._told(_name_of(kind))
                return

    def _told(self, name: str) -> None:
        self._around.tell(f"ambush: {name}")
        self._around.count("ambushes")
        self._rests_until_s = self._now_s + REST_S + self._draw.expovariate(1.0)

    def controller_elected(self) -> None:
        """A new controller epoch was written. The controller's initial commands are delayed more than the requests to
        it.
        """
        node_id = self._around.store.controller_id()
        if not self._slows_new_controller or node_id is None:
            return
        self._slows_new_controller = False
        for other in range(len(self._cluster.brokers)):
            if other != node_id:
                self._slow_commands(node_id, other, self._now_s + 1.0)

    def _slow_commands(self, controller: int, other: int, until_s: float) -> None:
        """Delay all commands after the first, from which a broker learns of its new controller."""
        network, running = self._around.network, self._cluster.brokers[other].running
        if running is not None and running[1].metadata.controller_id == controller:
            way = (self._name(controller), self._name(other))
            network.set_delay(*way, 1.0)
            self._soon(lambda: network.set_delay(*way), 0.03)
        elif self._now_s < until_s:
            self._soon(lambda: self._slow_commands(controller, other, until_s), 0.000_3)

    # --- kinds: whether the fault was caused ----------------------------------------------------------

    def _keep_joined_from_fetching(self, before: PartitionState | None, state: PartitionState, controller: int) -> bool:
        """A broker was added to the ISR in the store, and its leader learns of that only after a while. New records of
        the leader do not reach the broker meanwhile.
        """
        joined = _joined(before, state)
        lag_s = int(self._around.configs["replica.lag.time.max.ms"]) / 1000
        if not joined or state.leader < 0 or lag_s > LAG_S_MAX:
            return False  # the leader waits for a follower that has caught up so recently anyway
        self._slow(STORE, self._name(controller), 3 * lag_s, 3 * lag_s)
        for member in joined:
            self._cut(self._name(state.leader), self._name(member), 3 * lag_s)
        return True

    def _restart_elected(self, before: PartitionState | None, state: PartitionState, controller: int) -> bool:
        """A leader is killed when it has learned of its election, but the controller has not received its response. Its
        new process runs before the controller notices, and receives the commands for the former one.
        """
        if not _is_elected(before, state) or state.leader == controller or not self._is_up(state.leader):
            return False
        length_s = self._draw.uniform(0.4, 1.0)

        def cut_off() -> None:
            self._cut(self._name(state.leader), self._name(controller), length_s)
            self._slow(STORE, self._name(controller), 6.0, 4.0)

        self._soon(cut_off)
        self._soon(partial(self._kill, state.leader, 0.1), length_s)
        return True

    def _write_late(self, before: PartitionState | None, state: PartitionState, controller: int) -> bool:
        """A controller's write arrives at the store when another controller is elected, which the writer does not know
        of yet.
        """
        if not _is_altered(before, state):
            return False

        def depose() -> None:
            self._slow(self._name(controller), STORE, 3.0, 1.0)
            self._slow(STORE, self._name(controller), 3.0, 1.0)
            self._around.store.depose_controller()

        self._soon(depose)
        return True

    def _break_commands(self, before: PartitionState | None, state: PartitionState, controller: int) -> bool:
        """The controller's connections break repeatedly while its commands are under way. Before they are sent again,
        it loses a broker, so that most partitions have a new state.
        """
        if before is None or before.leader_epoch == state.leader_epoch:
            return False
        others = [node_id for node_id in range(len(self._cluster.brokers)) if node_id != controller]
        for other in others:
            for _ in range(3):
                reset = partial(self._around.network.reset, self._name(controller), self._name(other))
                self._soon(reset, self._draw.uniform(0, 0.01))
        self._soon(partial(self._expire, self._draw.choice(others)), self._draw.uniform(0.02, 0.06))
        return True

    def _delay_commands_of_new_controller(
        self, before: PartitionState | None, state: PartitionState, _controller: int
    ) -> bool:
        """Leaders send a new controller another AlterPartition, and receive the response before the initial commands
        with the former state.
        """
        if not _is_altered(before, state):
            return False
        self._slows_new_controller = True
        self._soon(self._around.store.depose_controller)
        return True

    def _damage_without_controller(self) -> None:
        """A broker restarts with a damaged log while no controller is there to remove it from the ISR. The others still
        have the lost records.
        """
        cluster = self._cluster
        controller = self._around.store.controller_id()
        if controller is None or cluster.damaged is not None or not cluster.are_all_up:
            return
        broker = cluster.brokers[self._draw.choice([i for i in range(len(cluster.brokers)) if i != controller])]
        if not damage(cluster, broker):
            return
        self._told("damage without controller")
        cluster.keep_calm()
        for each in cluster.brokers:
            if each is not broker:  # it does not fetch for a moment, so that the damage has an effect
                self._slow(each.name, broker.name, 6.0, 0.3)
        self._kill(controller, 2.0)
        self._kill(broker.node_id, 0.1)

    # --- the faults ---------------------------------------------------------------------------------

    @property
    def _now_s(self) -> float:
        return self._around.loop.time()

    def _name(self, node_id: int) -> str:
        return self._cluster.brokers[node_id].name

    def _is_up(self, node_id: int) -> bool:
        return self._cluster.brokers[node_id].is_up

    def _soon(self, call: Callable[[], object], after_s: float = 0.0) -> None:
        """Call this after the store's current work, when its response is under way."""
        self._around.network.call_at(self._now_s + after_s, call)

    def _slow(self, sender: str, receiver: str, duration_s: float, mean_s: float) -> None:
        self._cluster.links.slow((sender, receiver), duration_s, mean_s)

    def _cut(self, sender: str, receiver: str, duration_s: float) -> None:
        self._cluster.links.cut((sender, receiver), duration_s)

    def _expire(self, node_id: int) -> None:
        broker = self._cluster.brokers[node_id]
        if broker.process is not None:
            self._around.tell(f"fault: {broker.name} session expired")
            self._around.store.expire_sessions_of(broker.process)

    def _kill(self, node_id: int, down_s: float) -> None:
        broker = self._cluster.brokers[node_id]
        if broker.process is not None:
            self._around.tell(f"fault: {broker.name} killed")
            broker.kill(restart_after_s=down_s)


def _name_of(kind: Kind) -> str:
    return kind.__name__.strip("_").replace("_", " ")


def _is_altered(before: PartitionState | None, state: PartitionState) -> bool:
    """Whether this write is an AlterPartition of the leader."""
    return before is not None and before.leader_epoch == state.leader_epoch and set(before.isr) != set(state.isr)


def _joined(before: PartitionState | None, state: PartitionState) -> list[int]:
    if before is None or not _is_altered(before, state):
        return []
    return sorted(set(state.isr) - set(before.isr))


def _is_elected(before: PartitionState | None, state: PartitionState) -> bool:
    return before is not None and before.leader_epoch < state.leader_epoch and state.leader >= 0
