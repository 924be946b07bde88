"""A whole cluster in one process and in virtual time: brokers with separate disks, a metadata store, clients, and a
network between them, with faults of all of them; `make simulate SEED=7 SECONDS=600`.

A seed decides everything: the faults and their rates, delays, the clients' actions, the data on a disk after a crash,
the order of callbacks. The log of a run is the same, byte by byte, for the same seed. After SECONDS, the faults end,
and the cluster has CONVERGENCE_S to recover: all brokers registered, each partition led and in sync, every kind of
client served. A run fails for

- violations that `tools/soak/checker.py` finds in the responses that clients received;
- a record that a client has read and that is missing in the end;
- violations of `checks/invariants.py` at any moment: an in-sync replica without all committed records, two leaders of
  one partition in one leader epoch, a write of a replaced controller;
- logs of replicas that differ below the high watermark;
- an error that a broker logs, or that ends it, except for the loss of its session;
- a cluster that does not converge.

The faults are those of TigerBeetle's VOPR, and as there the seed decides the rate of each: killed processes (written
data stays in the page cache), machines that lose power (unsynced data may be lost, and the next boot has another id:
`faults/power.py`), clean restarts, paused processes, expired sessions of the metadata store, cut directions of the
network, broken connections, slow networks, brokers that only clients reach, all brokers at once, a controller that is
replaced while it runs, a flipped bit in a log, clocks that jump, disks that are full or fail for a while
(`world/machine.py`), writes to the metadata store with an unknown result; in some runs a replaced disk
(`faults/replacement.py`). `faults/ambushes.py` adds faults at the worst moments. In most runs `min.insync.replicas`
changes from time to time (`load/settings.py`). With more than three brokers, partitions are reassigned
continuously (`load/moves.py`).
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

from barnabas.broker.client.client import ClientError, KafkaClient
from barnabas.broker.client.group import fetch_committed
from barnabas.broker.configuration import config
from barnabas.broker.environment import Environment
from barnabas.broker.server import Broker
from barnabas.controller.coordination.interface import ConnectionLost, Stat
from barnabas.controller.znodes import CONTROLLER_EPOCH
from barnabas.storage.segment import LOG_SUFFIX
from barnabas.storage.segment_reader import ColdRead
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from barnabas.wire.record_batch import HEADER_SIZE, iter_headers
from tools.simulation.checks.invariants import Invariants, Running
from tools.simulation.faults.ambushes import Ambushes
from tools.simulation.faults.power import Power
from tools.simulation.faults.replacement import Replacement
from tools.simulation.load.clients import (
    TRANSACTION_TIMEOUT_MS,
    Committer,
    PlainProducer,
    Reader,
    Recorder,
    RivalProducer,
    TransactionalProducer,
    Worker,
    read_everything,
)
from tools.simulation.load.groups import Member
from tools.simulation.load.moves import Mover
from tools.simulation.load.settings import MIN_INSYNC_REPLICAS, Operator, Settings
from tools.simulation.load.topics import TopicOwner
from tools.simulation.world.disk import SimulatedDisk
from tools.simulation.world.loop import LoopClock
from tools.simulation.world.machine import FailingDisk, FullDisk, MachineClock
from tools.simulation.world.network import SimulatedNetwork
from tools.simulation.world.processes import Process, SimulatedThreads, current_process, process_of, run_processes
from tools.simulation.world.store import HOST as STORE
from tools.simulation.world.store import SimulatedStore
from tools.soak.checker import Checker

CONVERGENCE_S: Final = 120
SESSION_TIMEOUT_S: Final = 6.0
TOPIC: Final = "events"
PARTITIONS: Final = 3
TIMESTAMP_TYPE: Final = "LogAppendTime"
"""A topic config that differs from the default, to detect a broker that has not read the topic's configs."""

PORT: Final = 9092
TICK_S: Final = 0.25
DAMAGED_BYTES_MIN: Final = 1_000
"""The minimum size of a log that gets damaged. Whole batches after the damage prove that it was no crash."""

LEADER_EPOCH_BYTES: Final = range(12, 16)
"""The position of the leader epoch in a batch's header."""

CALM_S: Final = 15.0
"""The time without other faults of brokers after a log of one was damaged: only so many brokers may be down."""

GARBAGE_INTERVAL_S: Final = 60.0
OPERATIONS_MAX: Final = 4_000
"""The number of operations after which a disk forgets those that no power cut can undo."""

_FORESEEN: Final = (
    "its session with the metadata store is over",
    "is no longer the controller: another broker has",
    "is no longer the controller: the controller's epoch is another one",
    "knows a newer controller",
    "is no longer the controller: it could not join the cluster again",
)
"""Errors that brokers may log."""

_BY_OTHERS: Final = "behind the controller's back"
"""Errors that a replaced controller may log about its successor's work, before it learns of its replacement."""

CLIENTS: Final = (
    (PlainProducer, 2),
    (TransactionalProducer, 2),
    (RivalProducer, 2),
    (Reader, 2),
    (Committer, 1),
    (Member, 3),
    (TopicOwner, 1),
)
CLIENTS_OF_MORE: Final = ((Mover, 2),)
"""The clients that are added if there are more brokers than a partition has replicas."""

REPLICAS_MAX: Final = 3

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


@dataclass(frozen=True, slots=True)
class Rates:
    """The rate of each fault, per second and broker (or pair of hosts), and its average duration."""

    kill: float
    power_cut: float
    clean_restart: float
    down_s: float
    pause: float
    pause_s: float
    expire: float
    cut: float
    cut_s: float
    reset: float
    slow: float
    slow_s: float
    slow_mean_s: float
    job_mean_s: float
    jump: float
    jump_s: float
    full: float
    failing: float
    trouble_s: float
    lose: float
    lose_s: float
    lose_probability: float
    isolate: float
    isolate_s: float
    fail_all: float
    deafen: float
    depose: float
    damage: float

    @classmethod
    def draw(cls, draw: random.Random) -> Rates:
        """Draw the rates from the seed. Each fault may be left out, so that others occur alone."""

        def rate(most: float) -> float:
            return 0.0 if draw.random() < 0.3 else draw.uniform(most / 10, most)

        return cls(
            kill=rate(0.1),
            power_cut=rate(0.1),
            clean_restart=rate(0.05),
            down_s=draw.uniform(0.1, 10.0),
            pause=rate(0.05),
            pause_s=draw.uniform(0.1, 10.0),
            expire=rate(0.03),
            cut=rate(0.03),
            cut_s=draw.uniform(0.1, 5.0),
            reset=rate(0.05),
            slow=rate(0.05),
            slow_s=draw.uniform(1.0, 10.0),
            slow_mean_s=draw.choice((0.03, 0.1, 0.5)),
            job_mean_s=draw.uniform(0.000_1, 0.02),
            jump=rate(0.05),
            jump_s=draw.choice((0.1, 2.0, 30.0)),
            full=rate(0.02),
            failing=rate(0.02),
            trouble_s=draw.uniform(0.5, 10.0),
            lose=rate(0.4),
            lose_s=draw.uniform(0.5, 5.0),
            lose_probability=draw.uniform(0.02, 0.5),
            isolate=rate(0.03),
            isolate_s=draw.uniform(1.0, 10.0),
            fail_all=rate(0.05),
            deafen=rate(0.05),
            depose=rate(0.05),
            damage=rate(0.5),
        )


@dataclass(slots=True)
class Outcome:
    """The results of a run. `write` gets a line for each event, and by default keeps the lines in `log`; `digest` is
    that of all lines.
    """

    wrong: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    simulated_s: float = 0.0
    write: Callable[[str], object] | None = None
    _digest: Any = field(default_factory=hashlib.sha256)

    @property
    def digest(self) -> str:
        return str(self._digest.hexdigest())

    def tell(self, line: str) -> None:
        self._digest.update(f"{line}\n".encode())
        (self.write or self.log.append)(line)


Progress: TypeAlias = Callable[[Outcome], None]
"""Called periodically with the results so far."""


class SimulatedBroker:
    """One broker: its machine, its disk, and its process, if one runs."""

    def __init__(self, simulation: ClusterSimulation, node_id: int) -> None:
        self.name = f"broker-{node_id}"
        self.server: Broker | None = None
        self.starting: Broker | None = None
        """A process that is starting, but may already receive commands."""
        self.is_wanted = True
        self.process: Process | None = None
        self.host = simulation.network.host(self.name)
        self.disk = simulation.new_disk()
        self.clock = MachineClock(simulation.clock)
        self.boots = 1
        self.min_insync_replicas = simulation.configs[MIN_INSYNC_REPLICAS]
        """The value in its configuration file at the last start."""
        self.trouble: FullDisk | FailingDisk | None = None
        """The current fault of its disk."""
        self._trouble_until_s = 0.0
        self._simulation = simulation
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
        simulation = self._simulation
        simulation.tell(f"{self.name}: starts")
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
            self._simulation.tell(f"{self.name}: does not start: {error}")
            self._ends(process, "as a connection broke at its start" if isinstance(error, ConnectionLost) else "")
            return
        self.server, self.starting = server, None
        self._simulation.power.told(self.node_id)
        self._simulation.replacement.told(self.node_id)
        self._simulation.tell(f"{self.name}: is ready")

    def _new_server(self, process: Process) -> Broker:
        simulation, loop = self._simulation, asyncio.get_running_loop()
        self.min_insync_replicas = simulation.configs[MIN_INSYNC_REPLICAS]
        options = {
            **CONFIGS,
            **simulation.configs,
            "listeners": f"PLAINTEXT://{self.name}:{PORT}",
            "log.dirs": f"/{self.name}",
            "node.id": str(self.node_id),
            "zookeeper.connect": f"{STORE}:2181",
        }
        ids = random.Random(simulation.draw.random())
        environment = Environment(
            clock=self.clock,
            work_s=loop.time,
            files=self.disk,
            network=self.host,
            open_session=simulation.store.open_session,
            threads=SimulatedThreads(random.Random(ids.random()), simulation.rates.job_mean_s),
            random_bytes=ids.randbytes,
            random_below=ids.randrange,
            boot_id=partial("{}-boot-{}".format, self.name, self.boots),
        )
        return Broker(config.load(options=options), environment, lambda reason: self._ends(process, reason))

    def _ends(self, process: Process, reason: str) -> None:
        """The process ends by itself; another one is started a second later."""
        simulation = self._simulation
        if reason:
            simulation.tell(f"{self.name}: ends, {reason}")
            # A log cannot be truncated if there is no room for its checkpoints; a broker ends then.
            is_foreseen = "metadata store" in reason or self.trouble is not None
            if not is_foreseen:
                simulation.wrong.append(f"{self.name} ended: {reason}")
        simulation.network.call_at(simulation.loop.time(), self._end_if_alive, process)

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
        trouble, self.disk = self.disk.trouble, self._simulation.new_disk()
        self.disk.trouble = trouble

    def _end(self, restart_after_s: float) -> None:
        if self.process is not None:
            self.process.kill()
        self.process = self.server = self.starting = None
        self.restart_at_s = self._simulation.loop.time() + restart_after_s

    def stop(self, *, restart_after_s: float) -> None:
        """Stop the broker cleanly."""
        process, server = self.process, self.server
        assert process is not None
        assert server is not None
        self.server = None

        async def stop() -> None:
            await server.stop()
            self._simulation.tell(f"{self.name}: has stopped")
            self._simulation.network.call_at(self._simulation.loop.time(), self._stopped, process, restart_after_s)

        process.start(stop())

    def _stopped(self, process: Process, restart_after_s: float) -> None:
        if self.process is process:
            self.kill(restart_after_s=restart_after_s)

    def pause(self, duration_s: float) -> None:
        assert self.process is not None
        self.process.pause()
        self._paused_until_s = self._simulation.loop.time() + duration_s

    def trouble_disk(self, trouble: FullDisk | FailingDisk, duration_s: float) -> None:
        self.trouble = self.disk.trouble = trouble
        self._trouble_until_s = self._simulation.loop.time() + duration_s

    def _mend_disk(self) -> None:
        """Repair the disk, and restart the broker, which may have taken logs offline."""
        simulation, trouble = self._simulation, self.trouble
        assert trouble is not None
        simulation.tell(f"{self.name}: the disk is well again, which refused {trouble.refused} calls")
        simulation.count("refused by disks", trouble.refused)
        self.trouble, self.disk.trouble = None, lambda call: None
        if isinstance(trouble, FailingDisk) and self.process is not None:
            self.kill(restart_after_s=1.0)

    def go_on(self, *, at_once: bool = False) -> None:
        """Do the due work: resume a paused process, or start an ended one again."""
        now_s = self._simulation.loop.time()
        if self.trouble is not None and (at_once or now_s >= self._trouble_until_s):
            self._mend_disk()
        if self.process is None:
            if at_once or now_s >= self.restart_at_s:
                self.start()
        elif self.is_paused and (at_once or now_s >= self._paused_until_s):
            self._simulation.tell(f"{self.name}: goes on")
            self.process.resume()


class ClusterSimulation:
    """One run."""

    def __init__(
        self,
        seed: int,
        seconds: float,
        brokers: int,
        new_disk: Callable[[], SimulatedDisk],
        outcome: Outcome,
        progress: Progress,
    ) -> None:
        self.draw = random.Random(seed)
        self.loop = asyncio.get_running_loop()
        self.outcome = outcome
        self.wrong = outcome.wrong
        self.clock = LoopClock(self.loop)
        self.network = SimulatedNetwork(self.draw.getrandbits(32))
        self.store = SimulatedStore(self.network, self.clock, SESSION_TIMEOUT_S)
        self.seconds = seconds
        self._new_disk = new_disk
        self.is_durable = self.draw.random() < 0.6
        self.rates = Rates.draw(self.draw)
        self.configs = {
            "barnabas.flush.before.ack": str(self.is_durable).lower(),
            "default.replication.factor": str(min(brokers, REPLICAS_MAX)),
            "leader.imbalance.check.interval.seconds": str(self.draw.choice((1, 5, 20))),
            MIN_INSYNC_REPLICAS: str(min(brokers, self.draw.choice((1, 2)))),
            "offsets.topic.replication.factor": str(min(brokers, REPLICAS_MAX)),
            "replica.lag.time.max.ms": str(self.draw.choice((2_000, 5_000, 30_000))),
            "transaction.state.log.min.isr": str(min(brokers, 2)),
            "transaction.state.log.replication.factor": str(min(brokers, REPLICAS_MAX)),
        }
        self.brokers = [SimulatedBroker(self, node_id) for node_id in range(brokers)]
        self.recorder = Recorder(self.tell)
        self.workers: list[Worker] = []
        self.damaged: str | None = None
        """The partition whose log was damaged on one broker; "" once none may be, because all brokers were down at
        once.
        """
        self.power = Power(self, random.Random(f"{seed} power"))
        self.settings = Settings(self, random.Random(f"{seed} settings"))
        self.invariants = Invariants(self._running, self.wrong, self.power.lacking, self.settings.committed)
        self.is_faulty = False
        self.calm_until_s = 0.0
        """`is_calm` before this time."""
        self.has_moves = brokers > REPLICAS_MAX
        self.ambushes = Ambushes(self, random.Random(f"{seed} ambushes"))
        self.replacement = Replacement(self, random.Random(f"{seed} replacement"))
        self.store.written = self._written
        self._collect_at_s = GARBAGE_INTERVAL_S
        self._progress = progress
        self._loses_until_s = 0.0
        self.store.loses = self._loses_connection
        self._slow: dict[tuple[str, str], float] = {}
        self._cut: dict[tuple[str, str], float] = {}

    # --- the log ------------------------------------------------------------------------------------

    def tell(self, what: str) -> None:
        self.outcome.tell(f"{self.loop.time():.6f} {what}")

    def count(self, what: str, many: int = 1) -> None:
        self.outcome.counts[what] = self.outcome.counts.get(what, 0) + many

    def new_disk(self) -> SimulatedDisk:
        disk = self._new_disk()
        disk.operations_max = OPERATIONS_MAX
        return disk

    # --- the run ------------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{broker.name}:{PORT}" for broker in self.brokers)

    async def run(self) -> None:
        self.tell(f"durable {self.is_durable}, {self.rates}, {self.ambushes.names}")
        await self.store.open()
        admin = Process("admin", self.network.host("admin"))
        for broker in self.brokers:
            broker.start()
        await self.within("the start", self._are_all_up)
        creating = admin.start(self._create_topic())
        await self.within("the creation of a topic", creating.done)
        running = [] if self.wrong else self._start_clients()
        began_s = self.loop.time()
        self.is_faulty = True
        try:
            while self.loop.time() < began_s + self.seconds and self._goes_on():
                await asyncio.sleep(TICK_S)
                self._observe()
                self._faults()
                self._collect_garbage()
            self._end_faults()
            if self._goes_on():
                await self._converge(running)
            if self._goes_on():
                await admin.start(self._check())
        finally:
            self.power.forgive(self.wrong)
            self.outcome.simulated_s = self.loop.time()
            for broker in self.brokers:
                if broker.process is not None:
                    broker.process.kill()
            self.network.close()
            for task in (creating, *running):
                task.cancel()
            await asyncio.gather(creating, *running, return_exceptions=True)
            await self.store.close()
            await asyncio.sleep(TICK_S)  # killed processes end

    def _goes_on(self) -> bool:
        return not self.wrong and not self.power.ended_the_last_in_sync

    def _start_clients(self) -> list[asyncio.Task[None]]:
        kinds: list[Callable[..., Worker]] = []
        for kind, count in CLIENTS + (CLIENTS_OF_MORE if self.has_moves else ()):
            kinds += [kind] * count
        if self.settings.mean_s is not None:
            kinds.append(partial(Operator, self.settings.mean_s, len(self.brokers), self.settings.to_be_raised))
        running = []
        for number, new_worker in enumerate(kinds, start=1):
            process = Process(f"client-{number}", self.network.host(f"client-{number}"))
            draw = random.Random(self.draw.getrandbits(32))
            worker = new_worker(number, self.bootstrap_servers, TOPIC, PARTITIONS, self.recorder, draw, self.clock)
            self.workers.append(worker)
            running.append(process.start(worker.run()))
        return running

    async def _create_topic(self) -> None:
        settings = [CreatableTopicConfig(name="message.timestamp.type", value=TIMESTAMP_TYPE)]
        topic = CreatableTopic(name=TOPIC, num_partitions=PARTITIONS, replication_factor=-1, configs=settings)
        request = CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
        async with KafkaClient(self.bootstrap_servers) as client:
            while True:
                reply = await client.send_to_controller(request)
                error = ErrorCode.of(reply.topics[0].error_code)
                if error in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                    return
                self.tell(f"admin: {error.name}")
                await asyncio.sleep(0.5)
                await client.metadata([])

    def _collect_garbage(self) -> None:
        if self.loop.time() >= self._collect_at_s:
            self._collect_at_s = self.loop.time() + GARBAGE_INTERVAL_S
            gc.collect()
            self.outcome.simulated_s = self.loop.time()
            self.outcome.counts["acknowledged"] = self.recorder.acknowledged
            self._progress(self.outcome)

    # --- faults -------------------------------------------------------------------------------------

    def _written(self, path: str, data: bytes, stat: Stat) -> None:
        """The metadata store has written a znode: a possible moment for an ambush."""
        self.settings.written(path, data)
        found = self.invariants.written(path, data, stat)
        if found is not None:
            partition, _, state = found
            self.settings.state_written(partition, state)
            self.power.written(partition, state)
        self.replacement.written()
        if not self.is_faulty or self.power.lacking:
            return
        if path == CONTROLLER_EPOCH:
            self.ambushes.controller_elected()
        elif found is not None:
            _, before, state = found
            self.ambushes.changed(before, state)

    def _faults(self) -> None:
        now_s = self.loop.time()
        for way in [way for way, until_s in self._cut.items() if now_s >= until_s]:
            self._heal(way)
        for way in [way for way, until_s in self._slow.items() if now_s >= until_s]:
            del self._slow[way]
            self.network.set_delay(*way)
        self._fault_of_store()
        for broker in self.brokers:
            broker.go_on()
            self._fault_of_machine(broker)
            if broker.is_up and not self.is_calm:
                self._fault_of(broker)
        self._fault_of_all()
        self.ambushes.look()
        self.settings.look(TICK_S)
        self.replacement.look()
        self.power.look()
        hosts = [each.name for each in self.brokers]
        clients = [f"client-{worker.process}" for worker in self.workers]
        for host in hosts:
            for other in (*hosts, *clients, STORE):
                if other != host:
                    self._fault_between(host, other)

    @property
    def is_calm(self) -> bool:
        """Whether no broker may get a random fault now, because enough of them are down or lack records."""
        return self.loop.time() < self.calm_until_s or bool(self.power.lacking)

    def _happens(self, rate: float) -> bool:
        return self.draw.random() < rate * TICK_S

    def _fault_of(self, broker: SimulatedBroker) -> None:
        rates, draw = self.rates, self.draw
        down_s = draw.expovariate(1 / draw.choice((0.1, rates.down_s)))
        process = broker.process
        assert process is not None
        if process.has_fuse:
            return
        if self._happens(rates.kill):
            process.light_fuse(self._steps(), lambda: self.kill(broker, down_s))
        elif self._happens(rates.power_cut):
            process.light_fuse(self._steps(), lambda: self.cut_power(broker, down_s))
        elif self._happens(rates.clean_restart):
            self._fault("stopped", broker.name)
            broker.stop(restart_after_s=down_s)
        elif self._happens(rates.pause):
            self._fault("paused", broker.name)
            broker.pause(draw.expovariate(1 / rates.pause_s))
        elif self._happens(rates.expire):
            self._fault("session expired", broker.name)
            self.store.expire_sessions_of(process)

    def _fault_of_machine(self, broker: SimulatedBroker) -> None:
        rates, draw = self.rates, self.draw
        if self._happens(rates.jump):
            off_s = draw.uniform(-rates.jump_s, rates.jump_s)
            self._fault("clock jumped", f"{broker.name}, now {off_s:.3f} s off,")
            broker.clock.set_off_by(round(off_s * 1000))
        if broker.trouble is None:
            duration_s = draw.expovariate(1 / rates.trouble_s)
            if self._happens(rates.full):
                self._fault("disk full", broker.name)
                broker.trouble_disk(FullDisk(), duration_s)
            elif self._happens(rates.failing):
                self._fault("disk failing", broker.name)
                probability = draw.choice((0.01, 0.1, 1.0))
                broker.trouble_disk(FailingDisk(random.Random(draw.random()), probability), duration_s)

    def _fault_of_store(self) -> None:
        """Break connections to the metadata store during writes."""
        rates, draw = self.rates, self.draw
        if self._loses_until_s <= self.loop.time() and self._happens(rates.lose):
            self._loses_until_s = self.loop.time() + draw.expovariate(1 / rates.lose_s)

    def _loses_connection(self) -> bool:
        if self.loop.time() < self._loses_until_s and self.draw.random() < self.rates.lose_probability:
            self._fault("connection lost", "the metadata store")
            return True
        return False

    def _fault_of_all(self) -> None:
        rates, draw = self.rates, self.draw
        if self._happens(rates.deafen):
            self._deafen_controller()
        if self._happens(rates.depose):
            self._deafen_controller()
            self._fault("deposed", "the controller")
            self.store.depose_controller()
        if self._happens(rates.isolate) and not self.power.lacking:
            self._isolate(draw.choice(self.brokers).name, draw.expovariate(1 / rates.isolate_s))
        if self._happens(rates.fail_all) and not self.damaged and not self.is_calm:
            fail = self.cut_power if self.is_durable and draw.random() < 0.5 else self.kill
            down_s = draw.choice((0.1, 1.0, rates.down_s))
            self.fail_all(lambda broker: fail(broker, draw.uniform(0.5, 1.5) * down_s))

    def fail_all(self, fail: Callable[[SimulatedBroker], None]) -> None:
        """Let all brokers fail at once; no log is damaged in this run from now on."""
        self.damaged = ""
        for broker in self.brokers:
            if broker.process is not None:
                fail(broker)

    def controller(self) -> SimulatedBroker | None:
        """The controller according to the metadata store."""
        node_id = self.store.controller_id()
        return None if node_id is None else self.brokers[node_id]

    def _deafen_controller(self) -> None:
        """Delay everything from the metadata store to the controller by seconds; the other direction is not delayed."""
        controller = self.controller()
        if controller is not None:
            way = (STORE, controller.name)
            self._fault("deaf", way[1])
            self.slow(way, self.draw.expovariate(1 / self.rates.slow_s), self.draw.choice((0.1, 1.0)))

    def _isolate(self, name: str, duration_s: float) -> None:
        """Let only clients reach a broker."""
        self._fault("isolated", name)
        for other in (*(each.name for each in self.brokers), STORE):
            if other != name:
                for way in ((name, other), (other, name)):
                    self.cut(way, duration_s)

    def cut(self, way: tuple[str, str], duration_s: float) -> None:
        self._cut[way] = self.loop.time() + duration_s
        self.network.cut(*way)

    def slow(self, way: tuple[str, str], duration_s: float, mean_s: float) -> None:
        self._slow[way] = self.loop.time() + duration_s
        self.network.set_delay(*way, mean_s)

    def _steps(self) -> int:
        """The number of steps of a process before a fault: it may be in the middle of anything."""
        return int(self.draw.choice((1, 10, 100, 1000)) * self.draw.random()) + 1

    def kill(self, broker: SimulatedBroker, down_s: float) -> None:
        self._fault("killed", broker.name)
        broker.kill(restart_after_s=down_s)
        # Only if the others live, and stay alive: the last replica in an ISR has to lead.
        others_live = all(other.is_up for other in self.brokers if other is not broker)
        if self.damaged is None and others_live and self.draw.random() < self.rates.damage and self.damage(broker):
            self.keep_calm()
        else:
            self.replacement.crashed(broker)

    def damage(self, broker: SimulatedBroker) -> bool:
        """Flip a bit of a log whose records other brokers have, too. It happens once in a run, so nothing is lost by
        it. Returns whether there was such a log. The bit is in the last segment, because a start after a crash checks
        only that, and not in a leader epoch, which no checksum covers, so that nothing could detect the damage.
        """
        for index in self.draw.sample(range(PARTITIONS), PARTITIONS):
            name = f"{TOPIC}-{index}"
            state = self.invariants.states.get((TOPIC, index))
            path = self._last_segment(broker, name)
            is_everywhere = state is not None and len(state.isr) == len(self.brokers) > 1
            if is_everywhere and path is not None and broker.disk.stat(path).size >= DAMAGED_BYTES_MIN:
                self._fault("damaged", f"{name} of {broker.name}")
                self.damaged = name
                broker.disk.turn_bit(path, self._damaged_position(broker.disk, path))
                return True
        return False

    @staticmethod
    def _last_segment(broker: SimulatedBroker, log: str) -> str | None:
        """The path of the file with the newest records of a log, if there are any."""
        directory = f"/{broker.name}/{log}"
        if not broker.disk.exists(directory):
            return None
        return max(
            (f"{directory}/{each.name}" for each in broker.disk.list(directory) if each.name.endswith(LOG_SUFFIX)),
            default=None,
        )

    def _damaged_position(self, disk: SimulatedDisk, path: str) -> int:
        descriptor = disk.open(path)
        data = bytes(disk.pread(descriptor, disk.stat(path).size, 0))
        disk.close(descriptor)
        epochs = {header.position + at for header in iter_headers(data) for at in LEADER_EPOCH_BYTES}
        return self.draw.choice([at for at in range(HEADER_SIZE, DAMAGED_BYTES_MIN // 2) if at not in epochs])

    def keep_calm(self) -> None:
        """Cause no faults of brokers for a while, except for those of the network that have begun."""
        self.calm_until_s = self.loop.time() + CALM_S
        self.put_fuses_out()

    def put_fuses_out(self) -> None:
        for broker in self.brokers:
            if broker.process is not None:
                broker.process.put_fuse_out()

    def cut_power(self, broker: SimulatedBroker, down_s: float) -> None:
        if not self.power.may_be_cut(broker):
            self.kill(broker, down_s)
            return
        self._fault("without power", broker.name)
        broker.cut_power(self.draw, restart_after_s=down_s)
        self.power.cut(broker)
        self.replacement.crashed(broker)

    def _fault_between(self, broker: str, other: str) -> None:
        rates, draw = self.rates, self.draw
        way = (broker, other) if draw.random() < 0.5 else (other, broker)
        now_s = self.loop.time()
        if self._happens(rates.cut):
            until_s = now_s + draw.expovariate(1 / rates.cut_s)
            ways = [way, way[::-1]] if draw.random() < 0.5 else [way]
            for each in ways:
                self._fault("cut", f"{each[0]} to {each[1]}")
                self._cut[each] = until_s
                self.network.cut(*each)
        elif self._happens(rates.reset):
            if self.network.reset(*way):
                self._fault("reset", f"{way[0]} and {way[1]}")
        elif self._happens(rates.slow):
            self._fault("slow", f"{way[0]} to {way[1]}")
            self._slow[way] = now_s + draw.expovariate(1 / rates.slow_s)
            self.network.set_delay(*way, rates.slow_mean_s)

    def _fault(self, kind: str, where: str) -> None:
        self.count(kind)
        self.tell(f"fault: {where} {kind}")

    def _heal(self, way: tuple[str, str]) -> None:
        del self._cut[way]
        self.tell(f"healed: {way[0]} to {way[1]}")
        self.network.heal(*way)

    def _end_faults(self) -> None:
        self.tell("faults end")
        self.is_faulty = False
        self.put_fuses_out()
        self._loses_until_s = 0.0
        self.recorder.history.healed = self.loop.time()
        for way in list(self._cut):
            self._heal(way)
        for way in list(self._slow):
            self.network.set_delay(*way)
        self._slow.clear()

    # --- the end ------------------------------------------------------------------------------------

    async def within(self, what: str, is_so: Any, until_s: float | None = None) -> None:
        """Wait for the condition; after CONVERGENCE_S, or at `until_s`, report it and continue."""
        until_s = self.loop.time() + CONVERGENCE_S if until_s is None else until_s
        while not is_so() and self._goes_on():
            if self.loop.time() > until_s:
                self.wrong.append(f"{what}: not within {CONVERGENCE_S} s")
                return
            await asyncio.sleep(TICK_S)
            self._observe()
            for broker in self.brokers:
                broker.go_on(at_once=True)

    def _are_all_up(self) -> bool:
        return all(broker.is_up for broker in self.brokers)

    def _is_in_sync(self) -> bool:
        """Whether every partition is led, by a broker that all brokers know as its leader, with all replicas in its
        ISR.
        """
        if not self._are_all_up():
            return False
        servers = [broker.server for broker in self.brokers if broker.server is not None]
        for server in servers:
            for topic in server.metadata.topics():
                for partition in topic.partitions.values():
                    if partition.leader < 0 or set(partition.isr) != set(partition.replicas):
                        return False
        return self.invariants.is_known()

    async def _converge(self, running: list[asyncio.Task[None]]) -> None:
        """Wait for each condition in this order, within CONVERGENCE_S in total."""
        until_s = self.loop.time() + CONVERGENCE_S
        await self.within("all partitions in sync", self._is_in_sync, until_s)
        before = [worker.done for worker in self.workers]
        await self.within(
            "something done by each client",
            lambda: all(worker.done > done for worker, done in zip(self.workers, before, strict=True)),
            until_s,
        )
        for worker in self.workers:
            worker.is_stopping = True
        await self.within("the clients' end", lambda: all(task.done() for task in running), until_s)
        for task in running:
            if task.done() and not task.cancelled() and task.exception() is not None:
                self.wrong.append(f"a client failed: {task.exception()!r}")
        await asyncio.sleep(TRANSACTION_TIMEOUT_MS / 1000)
        await self.within("the end of open transactions", self._has_no_open_transactions, until_s)

    def _has_no_open_transactions(self) -> bool:
        return all(
            partition.log.last_stable_offset == partition.log.log_end_offset == partition.log.high_watermark
            for broker in self.brokers
            if broker.server is not None
            for partition in broker.server.replicas.partitions()
            if partition.state.is_leader
        )

    def _running(self) -> list[Running | None]:
        return [each.running for each in self.brokers]

    def _observe(self) -> None:
        self.invariants.look()

    async def _check(self) -> None:
        recorder = self.recorder
        try:
            async with KafkaClient(self.bootstrap_servers) as client:
                recorder.history.final = await read_everything(client, TOPIC, PARTITIONS)
                for (group, partition), offset in sorted(recorder.committed.items()):
                    known = await fetch_committed(client, group, [(TOPIC, partition)])
                    found = known.get((TOPIC, partition))
                    if found is None or found < offset:
                        self.wrong.append(f"{group} committed {offset} of partition {partition}, found {found}")
        except ClientError as error:
            self.wrong.append(f"the end cannot be read: {error}")
            return
        findings = Checker(recorder.history).run()
        for name, witnesses in sorted(findings.anomalies.items()):
            self.wrong.append(f"{name}: {len(witnesses)}, {witnesses[0]}")
        self._check_consumed()
        self._check_replicas()
        self.invariants.check_settings(TOPIC, TIMESTAMP_TYPE)
        self.wrong += recorder.wrong
        self.outcome.counts |= recorder.counts
        self.outcome.counts["acknowledged"] = recorder.acknowledged
        self.outcome.counts["operations"] = findings.operations
        self.outcome.counts["transactions"] = findings.transactions
        self.outcome.counts["commits"] = sum(recorder.committed.values())
        self.outcome.counts["sessions expired"] = self.store.expired
        self.outcome.counts["former sessions ended"] = self.store.taken_over

    def _check_consumed(self) -> None:
        """Check that all records that were read are still there, at the same offsets."""
        final = self.recorder.history.final or {}
        there = {key: dict(records) for key, records in final.items()}
        for operation in self.recorder.history.operations():
            for poll in operation.polls():
                for key, records in poll.records.items():
                    for offset, value in records:
                        if there[key].get(offset) != value:
                            self.wrong.append(f"{key}@{offset}={value} was read, and is {there[key].get(offset)} now")
                            return

    def _check_replicas(self) -> None:
        """Check that all replicas of a partition have the same bytes below the lowest high watermark."""
        logs: dict[tuple[str, int], list[Any]] = {}
        for broker in self.brokers:
            if broker.server is not None:
                for partition in broker.server.replicas.partitions():
                    logs.setdefault((partition.log.topic, partition.log.partition), []).append(partition.log)
        for name, replicas in sorted(logs.items()):
            end = min(log.high_watermark for log in replicas)
            # Each replica compacts its log and deletes old segments independently.
            compacted = max(self.invariants.compacted.get((*name, bytes(log.topic_id)), 0) for log in replicas)
            start = max(compacted, *(max(log.log_start_offset, log.clean_offset or 0) for log in replicas))
            contents = {_content(log, start, end) for log in replicas}
            if len(contents) > 1:
                self.wrong.append(f"{name}: replicas differ below {end}")
            self.tell(f"{name}: {len(replicas)} replicas, high watermark {end}")


def _content(log: Any, offset: int, end: int) -> bytes:
    """A digest of all batches of a log between two offsets."""
    digest = hashlib.sha256()
    while offset < end:
        try:
            data = log.read(offset, 1 << 20)
        except ColdRead as cold:
            data = cold.load()
        for header in iter_headers(data.records):
            offset = header.next_offset
            if offset <= end:
                digest.update(data.records[header.position : header.end_position])
    return digest.digest()


_COUNTED: Final = {
    "compacted": "compacted up to offset",
    "ended by retention": "by retention",
    "moves begun": ": reassigning to",
    "moves done": ": reassigned",
}
"""The log messages of brokers to count, by the name of the counter."""


class _LogOfBrokers(logging.Handler):
    """Writes the log messages of brokers to the simulation's log; errors fail the run."""

    def __init__(self, simulation: ClusterSimulation) -> None:
        super().__init__(logging.INFO)
        self._simulation = simulation

    def emit(self, record: logging.LogRecord) -> None:
        process = current_process()
        if process is not None and process.is_dead:
            return
        name = "nobody" if process is None else process.name
        self._simulation.tell(f"{name}: {record.levelname} {self.format(record)}")
        message = record.getMessage()
        for what, words in _COUNTED.items():
            if words in message:
                self._simulation.count(what)
        brokers, told = self._simulation.brokers, self._simulation.outcome.counts
        has_trouble = any(broker.name == name and broker.trouble is not None for broker in brokers)
        tells_of_trouble = "KAFKA_STORAGE_ERROR" in message and {"disk full", "disk failing"} & told.keys()
        damaged = self._simulation.damaged
        tells_of_damage = damaged is not None and damaged != "" and damaged in message
        tells_of_loss = self._simulation.replacement.tells(name, message)
        controller = self._simulation.controller()
        is_replaced_controller = _BY_OTHERS in message and (controller is None or name != controller.name)
        is_foreseen = (
            has_trouble
            or tells_of_trouble
            or tells_of_damage
            or tells_of_loss
            or is_replaced_controller
            or any(foreseen in message for foreseen in _FORESEEN)
        )
        if record.levelno == logging.ERROR and not is_foreseen:
            self._simulation.wrong.append(f"{name} logged: {self.format(record)}")


@contextmanager
def _logged_by(simulation: ClusterSimulation) -> Iterator[None]:
    handler = _LogOfBrokers(simulation)
    loggers = [logging.getLogger("barnabas"), logging.getLogger("asyncio")]
    before = [(logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.INFO)
        logger.propagate = False
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger, (level, propagate) in zip(loggers, before, strict=True):
            logger.setLevel(level)
            logger.propagate = propagate
            logger.removeHandler(handler)


@contextmanager
def _unraisable_of_killed() -> Iterator[None]:
    """Suppress warnings of coroutines that wait again while they are closed: those of killed processes, which a real
    kill would not run.
    """
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if str(unraisable.exc_value) != "coroutine ignored GeneratorExit":
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


def simulate(
    seed: int,
    seconds: float,
    *,
    brokers: int = 3,
    new_disk: Callable[[], SimulatedDisk] = SimulatedDisk,
    planted: AbstractContextManager[object] | None = None,
    write: Callable[[str], object] | None = None,
    progress: Progress = lambda _: None,
) -> Outcome:
    """Run once, with `seconds` of faults; blocking. Needs a PYTHONHASHSEED to be reproducible.

    `planted` is entered for the run: a bug of brokers, for example. `write` gets the log's lines, which are not kept
    then; `progress` is called once per simulated minute.
    """
    outcome = Outcome(write=write)

    async def run() -> None:
        simulation = ClusterSimulation(seed, seconds, brokers, new_disk, outcome, progress)
        loop = asyncio.get_running_loop()

        def unforeseen(_: Any, context: dict[str, Any]) -> None:
            process = process_of(context.get("future")) or current_process()
            # A client that dies (`Worker.die`) leaves waits for its connections behind.
            is_left = context.get("message") == "Task was destroyed but it is pending!"
            if not is_left and (process is None or not process.is_dead):
                outcome.wrong.append(f"the loop: {context.get('message')}, {context.get('exception')!r}")

        loop.set_exception_handler(unforeseen)
        with _logged_by(simulation):
            await simulation.run()

    gc.collect()
    gc.disable()  # so that no object is finalised at an unpredictable moment: `ClusterSimulation` collects
    try:
        with warnings.catch_warnings(), _unraisable_of_killed(), planted or nullcontext():
            # The awaitable of a process at the moment of its kill.
            warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
            run_processes(seed, run())
            gc.collect()
    finally:
        gc.enable()
    return outcome
