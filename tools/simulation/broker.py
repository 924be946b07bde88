"""One broker of a simulated cluster: its machine, its disk, and its process, if one runs."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import Final, TypeAlias

from barnabas.broker.configuration import config
from barnabas.broker.environment import Environment
from barnabas.broker.server import Broker
from barnabas.controller.coordination.interface import ConnectionLost
from tools.simulation.surroundings import MIN_INSYNC_REPLICAS, OPERATIONS_MAX, Surroundings
from tools.simulation.world.machine import FailingDisk, FullDisk, MachineClock
from tools.simulation.world.processes import Process, SimulatedThreads
from tools.simulation.world.store import HOST as STORE

Running: TypeAlias = tuple[Process, Broker]

PORT: Final = 9092

CONFIGS: Final = {
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "initial.task.delay.ms": "500",
    "log.cleaner.backoff.ms": "1000",
    "log.retention.check.interval.ms": "2000",
    "log.segment.bytes": "65536",
    "log.segment.delete.delay.ms": "1000",
    "offsets.topic.num.partitions": "2",
    "offsets.topic.segment.bytes": "65536",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "transaction.state.log.num.partitions": "2",
    "transaction.state.log.segment.bytes": "65536",
}


class SimulatedBroker:
    """One broker: its machine, its disk, and its process, if one runs."""

    def __init__(self, around: Surroundings, node_id: int) -> None:
        self.name = f"broker-{node_id}"
        self.server: Broker | None = None
        self.starting: Broker | None = None
        """A process that is starting, but may already receive commands."""
        self.is_wanted = True
        self.process: Process | None = None
        self.host = around.network.host(self.name)
        self.disk = around.new_disk()
        self.clock = MachineClock(around.clock)
        self.boots = 1
        self.min_insync_replicas = around.configs[MIN_INSYNC_REPLICAS]
        """The value in its configuration file at the last start."""
        self.trouble: FullDisk | FailingDisk | None = None
        """The current fault of its disk."""
        self._trouble_until_s = 0.0
        self._around = around
        self.node_id = node_id
        self._paused_until_s = 0.0
        self.restart_at_s = 0.0

    @property
    def running(self) -> Running | None:
        """The broker, from the opening of its logs to the start of its shutdown; else None."""
        server = self.server
        if self.starting is not None and hasattr(self.starting, "transactions"):
            server = self.starting
        return None if server is None or self.process is None else (self.process, server)

    @property
    def is_up(self) -> bool:
        return self.server is not None and self.server.is_ready and not self.is_paused

    @property
    def is_paused(self) -> bool:
        return self.process is not None and self.process.is_paused

    def start(self) -> None:
        """Start a new process, which may be slow, or fail, to start."""
        around = self._around
        around.tell(f"{self.name}: starts")
        self.host.power_up()
        process = self.process = Process(self.name, self.host)

        def before_change() -> bool:
            if process.has_fuse:
                process.step()
            return not process.is_dead

        self.disk.before_change = before_change
        process.start(self._run(process))

    async def _run(self, process: Process) -> None:
        try:
            server = self.starting = self._new_server(process)
            await server.start()
        except Exception as error:  # noqa: BLE001 - any error ends the process
            self._around.tell(f"{self.name}: does not start: {error}")
            self._ends(process, "as a connection broke at its start" if isinstance(error, ConnectionLost) else "")
            return
        self.server, self.starting = server, None
        for told in self._around.ready:
            told(self.node_id)
        self._around.tell(f"{self.name}: is ready")

    def _new_server(self, process: Process) -> Broker:
        around, loop = self._around, asyncio.get_running_loop()
        self.min_insync_replicas = around.configs[MIN_INSYNC_REPLICAS]
        options = {
            **CONFIGS,
            **around.configs,
            "listeners": f"PLAINTEXT://{self.name}:{PORT}",
            "log.dirs": f"/{self.name}",
            "node.id": str(self.node_id),
            "zookeeper.connect": f"{STORE}:2181",
        }
        ids = random.Random(around.draw.random())
        environment = Environment(
            clock=self.clock,
            work_s=loop.time,
            files=self.disk,
            network=self.host,
            open_session=around.store.open_session,
            threads=SimulatedThreads(random.Random(ids.random()), around.rates.job_mean_s),
            random_bytes=ids.randbytes,
            random_below=ids.randrange,
            boot_id=partial("{}-boot-{}".format, self.name, self.boots),
        )
        return Broker(config.load(options=options), environment, lambda reason: self._ends(process, reason))

    def _ends(self, process: Process, reason: str) -> None:
        """The process ends by itself; another one is started a second later."""
        around = self._around
        if reason:
            around.tell(f"{self.name}: ends, {reason}")
            # A log cannot be truncated if there is no room for its checkpoints; a broker ends then.
            is_foreseen = "metadata store" in reason or self.trouble is not None
            if not is_foreseen:
                around.wrong.append(f"{self.name} ended: {reason}")
        around.network.call_at(around.loop.time(), self._end_if_alive, process)

    def _end_if_alive(self, process: Process) -> None:
        if self.process is process:
            self.kill(restart_after_s=1.0)

    def kill(self, *, restart_after_s: float) -> None:
        """Like `kill -9`: written data stays in the page cache, and the machine has not booted again."""
        self._end(restart_after_s)
        self.host.end_process()
        self.disk.end_process()

    def cut_power(self, draw: random.Random, *, restart_after_s: float) -> None:
        """The machine loses power: unsynced data may be lost, and the next boot has another id."""
        self._end(restart_after_s)
        self.host.lose_power()
        self.boots += 1
        trouble, self.disk = self.disk.trouble, self.disk.power_cut(draw)
        self.disk.operations_max, self.disk.trouble = OPERATIONS_MAX, trouble

    def replace_disk(self) -> None:
        """Empty the disk while the broker is down."""
        trouble, self.disk = self.disk.trouble, self._around.new_disk()
        self.disk.trouble = trouble

    def _end(self, restart_after_s: float) -> None:
        if self.process is not None:
            self.process.kill()
        self.process = self.server = self.starting = None
        self.restart_at_s = self._around.loop.time() + restart_after_s

    def stop(self, *, restart_after_s: float) -> None:
        """Stop the broker cleanly."""
        process, server = self.process, self.server
        assert process is not None
        assert server is not None
        self.server = None

        async def stop() -> None:
            await server.stop()
            self._around.tell(f"{self.name}: has stopped")
            self._around.network.call_at(self._around.loop.time(), self._stopped, process, restart_after_s)

        process.start(stop())

    def _stopped(self, process: Process, restart_after_s: float) -> None:
        if self.process is process:
            self.kill(restart_after_s=restart_after_s)

    def pause(self, duration_s: float) -> None:
        assert self.process is not None
        self.process.pause()
        self._paused_until_s = self._around.loop.time() + duration_s

    def trouble_disk(self, trouble: FullDisk | FailingDisk, duration_s: float) -> None:
        self.trouble = self.disk.trouble = trouble
        self._trouble_until_s = self._around.loop.time() + duration_s

    def _mend_disk(self) -> None:
        """Repair the disk, and restart the broker, which may have taken logs offline."""
        around, trouble = self._around, self.trouble
        assert trouble is not None
        around.tell(f"{self.name}: the disk is well again, which refused {trouble.refused} calls")
        around.count("refused by disks", trouble.refused)
        self.trouble, self.disk.trouble = None, lambda call: None
        if isinstance(trouble, FailingDisk) and self.process is not None:
            self.kill(restart_after_s=1.0)

    def go_on(self, *, at_once: bool = False) -> None:
        """Do the due work: resume a paused process, or start an ended one again."""
        now_s = self._around.loop.time()
        if self.trouble is not None and (at_once or now_s >= self._trouble_until_s):
            self._mend_disk()
        if self.process is None:
            if at_once or now_s >= self.restart_at_s:
                self.start()
        elif self.is_paused and (at_once or now_s >= self._paused_until_s):
            self._around.tell(f"{self.name}: goes on")
            self.process.resume()
