"""One run of a simulated cluster: brokers with separate disks, a metadata store, clients, and a network between them,
with faults of all of them.

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
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Final, TypeAlias

from tools.simulation.checks.end import check_end
from tools.simulation.checks.guarantee import Guarantee
from tools.simulation.checks.invariants import Invariants
from tools.simulation.checks.logged import logged_by
from tools.simulation.cluster import Cluster
from tools.simulation.faults.faults import Faults
from tools.simulation.load.clients import (
    TRANSACTION_TIMEOUT_MS,
    Committer,
    PlainProducer,
    Reader,
    Recorder,
    RivalProducer,
    TransactionalProducer,
    Worker,
)
from tools.simulation.load.events import PARTITIONS, TOPIC, create_topic
from tools.simulation.load.groups import Member
from tools.simulation.load.moves import Mover
from tools.simulation.load.settings import Operator
from tools.simulation.load.topics import TopicOwner
from tools.simulation.outcome import Outcome
from tools.simulation.surroundings import TICK_S, Plan, Surroundings
from tools.simulation.world.disk import SimulatedDisk
from tools.simulation.world.processes import Process, current_process, process_of, run_processes

CONVERGENCE_S: Final = 120
GARBAGE_INTERVAL_S: Final = 60.0

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

Progress: TypeAlias = Callable[[Outcome], None]
"""Called periodically with the results so far."""


class Simulation:
    """One run."""

    def __init__(self, plan: Plan, outcome: Outcome, progress: Progress) -> None:
        around = self._around = Surroundings(plan, outcome)
        self._loop = around.loop
        self._wrong = outcome.wrong
        self.cluster = Cluster(around)
        self._recorder = Recorder(around.tell)
        self._workers: list[Worker] = []
        self._guarantee = Guarantee(around)
        self.faults = Faults(self.cluster, self._guarantee)
        self._invariants = Invariants(self.cluster, self.faults.settings.committed)
        around.store.written = partial(self.faults.written, invariants=self._invariants)
        self._collect_at_s = GARBAGE_INTERVAL_S
        self._progress = progress

    async def run(self) -> None:
        around, brokers = self._around, self.cluster.brokers
        around.tell(f"durable {around.is_durable}, {around.rates}, {self.faults.ambushes.names}")
        await around.store.open()
        admin = Process("admin", around.network.host("admin"))
        for broker in brokers:
            broker.start()
        await self._within("the start", lambda: self.cluster.are_all_up)
        creating = admin.start(create_topic(self.cluster.bootstrap_servers, around.tell))
        await self._within("the creation of a topic", creating.done)
        running = [] if self._wrong else self._start_clients()
        clients = [f"client-{worker.process}" for worker in self._workers]
        began_s = self._loop.time()
        self.faults.begin()
        try:
            while self._loop.time() < began_s + around.plan.seconds and self._goes_on():
                await asyncio.sleep(TICK_S)
                self._invariants.look()
                self.faults.look(clients)
                self._collect_garbage()
            self.faults.end()
            self._recorder.history.healed = self._loop.time()
            if self._goes_on():
                await self._converge(running)
            if self._goes_on():
                await admin.start(check_end(self.cluster, self._recorder, self._invariants))
        finally:
            self._guarantee.forgive()
            around.outcome.simulated_s = self._loop.time()
            for broker in brokers:
                if broker.process is not None:
                    broker.process.kill()
            around.network.close()
            for task in (creating, *running):
                task.cancel()
            await asyncio.gather(creating, *running, return_exceptions=True)
            await around.store.close()
            await asyncio.sleep(TICK_S)  # killed processes end

    def _goes_on(self) -> bool:
        return not self._wrong and not self._guarantee.is_over

    def _start_clients(self) -> list[asyncio.Task[None]]:
        around, settings = self._around, self.faults.settings
        kinds: list[Callable[..., Worker]] = []
        for kind, count in CLIENTS + (CLIENTS_OF_MORE if self.cluster.has_moves else ()):
            kinds += [kind] * count
        if settings.mean_s is not None:
            kinds.append(partial(Operator, settings.mean_s, len(self.cluster.brokers), settings.to_be_raised))
        running = []
        for number, new_worker in enumerate(kinds, start=1):
            process = Process(f"client-{number}", around.network.host(f"client-{number}"))
            draw = random.Random(around.draw.getrandbits(32))
            servers = self.cluster.bootstrap_servers
            worker = new_worker(number, servers, TOPIC, PARTITIONS, self._recorder, draw, around.clock)
            self._workers.append(worker)
            running.append(process.start(worker.run()))
        return running

    def _collect_garbage(self) -> None:
        if self._loop.time() >= self._collect_at_s:
            self._collect_at_s = self._loop.time() + GARBAGE_INTERVAL_S
            gc.collect()
            outcome = self._around.outcome
            outcome.simulated_s = self._loop.time()
            outcome.counts["acknowledged"] = self._recorder.acknowledged
            self._progress(outcome)

    async def _within(self, what: str, is_so: Any, until_s: float | None = None) -> None:
        """Wait for the condition; after CONVERGENCE_S, or at `until_s`, report it and continue."""
        until_s = self._loop.time() + CONVERGENCE_S if until_s is None else until_s
        while not is_so() and self._goes_on():
            if self._loop.time() > until_s:
                self._wrong.append(f"{what}: not within {CONVERGENCE_S} s")
                return
            await asyncio.sleep(TICK_S)
            self._invariants.look()
            for broker in self.cluster.brokers:
                broker.go_on(at_once=True)

    def _is_in_sync(self) -> bool:
        """Whether every partition is led, by a broker that all brokers know as its leader, with all replicas in its
        ISR.
        """
        if not self.cluster.are_all_up:
            return False
        servers = [broker.server for broker in self.cluster.brokers if broker.server is not None]
        for server in servers:
            for topic in server.metadata.topics():
                for partition in topic.partitions.values():
                    if partition.leader < 0 or set(partition.isr) != set(partition.replicas):
                        return False
        return self._invariants.is_known()

    async def _converge(self, running: list[asyncio.Task[None]]) -> None:
        """Wait for each condition in this order, within CONVERGENCE_S in total."""
        until_s = self._loop.time() + CONVERGENCE_S
        await self._within("all partitions in sync", self._is_in_sync, until_s)
        before = [worker.done for worker in self._workers]
        await self._within(
            "something done by each client",
            lambda: all(worker.done > done for worker, done in zip(self._workers, before, strict=True)),
            until_s,
        )
        for worker in self._workers:
            worker.is_stopping = True
        await self._within("the clients' end", lambda: all(task.done() for task in running), until_s)
        for task in running:
            if task.done() and not task.cancelled() and task.exception() is not None:
                self._wrong.append(f"a client failed: {task.exception()!r}")
        await asyncio.sleep(TRANSACTION_TIMEOUT_MS / 1000)
        await self._within("the end of open transactions", self._has_no_open_transactions, until_s)

    def _has_no_open_transactions(self) -> bool:
        return all(
            partition.log.last_stable_offset == partition.log.log_end_offset == partition.log.high_watermark
            for broker in self.cluster.brokers
            if broker.server is not None
            for partition in broker.server.replicas.partitions()
            if partition.state.is_leader
        )


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
    plan = Plan(seed, seconds, brokers, new_disk)

    async def run() -> None:
        simulation = Simulation(plan, outcome, progress)
        loop = asyncio.get_running_loop()

        def unforeseen(_: Any, context: dict[str, Any]) -> None:
            process = process_of(context.get("future")) or current_process()
            # A client that dies (`Worker.die`) leaves waits for its connections behind.
            is_left = context.get("message") == "Task was destroyed but it is pending!"
            if not is_left and (process is None or not process.is_dead):
                outcome.wrong.append(f"the loop: {context.get('message')}, {context.get('exception')!r}")

        loop.set_exception_handler(unforeseen)
        with logged_by(simulation.cluster, simulation.faults.replacement):
            await simulation.run()

    gc.collect()
    gc.disable()  # so that no object is finalised at an unpredictable moment: `Simulation` collects
    try:
        with warnings.catch_warnings(), _unraisable_of_killed(), planted or nullcontext():
            # The awaitable of a process at the moment of its kill.
            warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
            run_processes(seed, run())
            gc.collect()
    finally:
        gc.enable()
    return outcome
