"""Faults at random moments, each with the rate that was drawn for the run."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tools.simulation.broker import SimulatedBroker
from tools.simulation.cluster import Cluster
from tools.simulation.faults.crashes import Crashes
from tools.simulation.surroundings import TICK_S
from tools.simulation.world.machine import FailingDisk, FullDisk
from tools.simulation.world.store import HOST as STORE


class RandomFaults:
    """The random faults of one run: those of the store, of each broker, of all brokers, and of the network."""

    def __init__(self, cluster: Cluster, crashes: Crashes) -> None:
        self._cluster = cluster
        self._around = cluster.around
        self._crashes = crashes
        self._draw = cluster.around.draw
        self._rates = cluster.around.rates
        self._loses_until_s = 0.0
        self._around.store.loses = self._loses_connection

    def look(self) -> None:
        """Called every TICK_S, before `look_between`."""
        self._fault_of_store()
        for broker in self._cluster.brokers:
            broker.go_on()
            self._fault_of_machine(broker)
            if broker.is_up and not self._cluster.is_calm:
                self._fault_of(broker)
        self._fault_of_all()

    def look_between(self, clients: Sequence[str]) -> None:
        """Called every TICK_S with the hosts of the clients."""
        hosts = [each.name for each in self._cluster.brokers]
        for host in hosts:
            for other in (*hosts, *clients, STORE):
                if other != host:
                    self._fault_between(host, other)

    def end(self) -> None:
        """From now on, connections to the metadata store are not lost."""
        self._loses_until_s = 0.0

    def _happens(self, rate: float) -> bool:
        return self._draw.random() < rate * TICK_S

    def _fault_of(self, broker: SimulatedBroker) -> None:
        rates, draw = self._rates, self._draw
        down_s = draw.expovariate(1 / draw.choice((0.1, rates.down_s)))
        process = broker.process
        assert process is not None
        if process.has_fuse:
            return
        if self._happens(rates.kill):
            process.light_fuse(self._steps(), lambda: self._crashes.kill(broker, down_s))
        elif self._happens(rates.power_cut):
            process.light_fuse(self._steps(), lambda: self._crashes.cut_power(broker, down_s))
        elif self._happens(rates.clean_restart):
            self._around.fault("stopped", broker.name)
            broker.stop(restart_after_s=down_s)
        elif self._happens(rates.pause):
            self._around.fault("paused", broker.name)
            broker.pause(draw.expovariate(1 / rates.pause_s))
        elif self._happens(rates.expire):
            self._around.fault("session expired", broker.name)
            self._around.store.expire_sessions_of(process)

    def _fault_of_machine(self, broker: SimulatedBroker) -> None:
        rates, draw = self._rates, self._draw
        if self._happens(rates.jump):
            off_s = draw.uniform(-rates.jump_s, rates.jump_s)
            self._around.fault("clock jumped", f"{broker.name}, now {off_s:.3f} s off,")
            broker.clock.set_off_by(round(off_s * 1000))
        if broker.trouble is None:
            duration_s = draw.expovariate(1 / rates.trouble_s)
            if self._happens(rates.full):
                self._around.fault("disk full", broker.name)
                broker.trouble_disk(FullDisk(), duration_s)
            elif self._happens(rates.failing):
                self._around.fault("disk failing", broker.name)
                probability = draw.choice((0.01, 0.1, 1.0))
                broker.trouble_disk(FailingDisk(random.Random(draw.random()), probability), duration_s)

    def _fault_of_store(self) -> None:
        """Break connections to the metadata store during writes."""
        rates, draw = self._rates, self._draw
        if self._loses_until_s <= self._around.loop.time() and self._happens(rates.lose):
            self._loses_until_s = self._around.loop.time() + draw.expovariate(1 / rates.lose_s)

    def _loses_connection(self) -> bool:
        if self._around.loop.time() < self._loses_until_s and self._draw.random() < self._rates.lose_probability:
            self._around.fault("connection lost", "the metadata store")
            return True
        return False

    def _fault_of_all(self) -> None:
        rates, draw = self._rates, self._draw
        if self._happens(rates.deafen):
            self._deafen_controller()
        if self._happens(rates.depose):
            self._deafen_controller()
            self._around.fault("deposed", "the controller")
            self._around.store.depose_controller()
        if self._happens(rates.isolate) and not self._cluster.lacking:
            self._isolate(draw.choice(self._cluster.brokers).name, draw.expovariate(1 / rates.isolate_s))
        if self._happens(rates.fail_all) and not self._cluster.damaged and not self._cluster.is_calm:
            fail = self._crashes.cut_power if self._around.is_durable and draw.random() < 0.5 else self._crashes.kill
            down_s = draw.choice((0.1, 1.0, rates.down_s))
            self._cluster.fail_all(lambda broker: fail(broker, draw.uniform(0.5, 1.5) * down_s))

    def _deafen_controller(self) -> None:
        """Delay everything from the metadata store to the controller by seconds; the other direction is not delayed."""
        controller = self._cluster.controller()
        if controller is not None:
            way = (STORE, controller.name)
            self._around.fault("deaf", way[1])
            self._cluster.links.slow(way, self._draw.expovariate(1 / self._rates.slow_s), self._draw.choice((0.1, 1.0)))

    def _isolate(self, name: str, duration_s: float) -> None:
        """Let only clients reach a broker."""
        self._around.fault("isolated", name)
        for other in (*(each.name for each in self._cluster.brokers), STORE):
            if other != name:
                for way in ((name, other), (other, name)):
                    self._cluster.links.cut(way, duration_s)

    def _steps(self) -> int:
        """The number of steps of a process before a fault: it may be in the middle of anything."""
        return int(self._draw.choice((1, 10, 100, 1000)) * self._draw.random()) + 1

    def _fault_between(self, broker: str, other: str) -> None:
        rates, draw = self._rates, self._draw
        way = (broker, other) if draw.random() < 0.5 else (other, broker)
        if self._happens(rates.cut):
            duration_s = draw.expovariate(1 / rates.cut_s)
            ways = [way, way[::-1]] if draw.random() < 0.5 else [way]
            for each in ways:
                self._around.fault("cut", f"{each[0]} to {each[1]}")
                self._cluster.links.cut(each, duration_s)
        elif self._happens(rates.reset):
            if self._around.network.reset(*way):
                self._around.fault("reset", f"{way[0]} and {way[1]}")
        elif self._happens(rates.slow):
            self._around.fault("slow", f"{way[0]} to {way[1]}")
            self._cluster.links.slow(way, draw.expovariate(1 / rates.slow_s), rates.slow_mean_s)
