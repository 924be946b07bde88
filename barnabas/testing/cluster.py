"""Several brokers in one thread, so that a test can stop one of them, cut it off from another, and observe the
partitions that it led.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import itertools
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from barnabas.broker.configuration import config as broker_config
from barnabas.broker.environment import Environment
from barnabas.broker.event_loops import new_event_loop
from barnabas.broker.server import Broker as Server
from barnabas.clock import Clock, OffsetClock, SystemClock
from barnabas.controller.coordination.embedded import EmbeddedStore
from barnabas.controller.coordination.owner_thread import OwnerThread
from barnabas.controller.operations.elect_leaders import ElectionType
from barnabas.storage.os_files import UnsyncedFiles
from barnabas.testing import report
from barnabas.testing.caller import Caller
from barnabas.testing.cluster_broker import ClusterBroker, Sessions, cluster_does_not_run
from barnabas.testing.contents import (
    ADMIN_TIMEOUT_MS,
    CREATE_TOPICS_VERSION,
    SMALL_INTERNAL_TOPICS,
    given_configs,
    of_another_process,
    topic_creation,
)
from barnabas.testing.cuts import BrokerNetwork, Cut, Cuts
from barnabas.testing.faults import Faults
from barnabas.testing.faulty_disk import ExchangeableFiles
from barnabas.testing.interception import Interception
from barnabas.testing.lifetime import Lifetime
from barnabas.testing.log_lines import Lines, OwnStoreWorker, OwnThreads
from barnabas.testing.recording import Recordable
from barnabas.testing.requests import ask
from barnabas.testing.roles import IN_SYNC_S, POLL_S, Roles
from barnabas.testing.snapshot import Snapshot
from barnabas.testing.state_faults import check_is_online
from barnabas.testing.topic import Led, Topic
from barnabas.testing.waiting.broker_clock import BrokerClock
from barnabas.testing.waiting.calls import Calls
from barnabas.testing.waiting.conditions import NothingMoreComes
from barnabas.testing.waiting.timeouts import TIMEOUT_S, check_wait
from barnabas.threads import OsThreads
from barnabas.wire.errors import ApiError, ErrorCode

T = TypeVar("T")

METADATA_FILE: Final = "metadata.sqlite"

HEARD_S: Final = 1.0
"""The time to wait for brokers that may be cut off from the controller."""

AHEAD_S: Final = 2.0
"""The time that a starting broker delays the next one: if it takes longer, a fault is delaying it."""

NEED_OTHERS: Final = frozenset({"default.replication.factor", "min.insync.replicas"})
"""Keys for which a configuration without ZooKeeper causes a warning, because the broker seems to be alone."""

DEFAULTS: Final = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    **SMALL_INTERNAL_TOPICS,
    "replica.lag.time.max.ms": "3000",
}
"""Smaller than Kafka's where that only saves time in tests; a cluster of fewer brokers has fewer replicas."""


class Cluster(Lifetime, Roles, Recordable):
    """`brokers` real brokers, numbered from 0, on 127.0.0.1 and free ports, with one metadata store in memory, and a
    temporary directory for all of them that is removed when the cluster stops.

    Kafka keys can be given as keywords, with underscores for dots, for every broker; keys that contain underscores go
    into `configs`. `racks` contains the rack of each broker (`broker.rack`), in order. `clock` is the source of time;
    `cluster.clock` moves it ahead for all brokers together.

    Use it as a context manager (`with` or `async with`), or call `start()` and `stop()`. All methods may be called from
    any thread.

    Errors: ConfigError for a bad configuration, OSError when a broker cannot start; ApiError with Kafka's error if a
    broker refuses; TimeoutError after a wait; RuntimeError when a call needs the cluster to run.
    """

    _recheck_s = POLL_S

    def __init__(
        self,
        brokers: int = 3,
        *,
        racks: Sequence[str] = (),
        clock: Clock | None = None,
        configs: Mapping[str, object] | None = None,
        **keywords: object,
    ) -> None:
        if brokers < 1:
            raise ValueError(f"a cluster has 1 broker at least, not {brokers}")
        if racks and len(racks) != brokers:
            raise ValueError(f"{brokers} brokers stand in {brokers} racks, or in none, not in {len(racks)}")
        self._made_by = Caller.now()
        replicas = str(min(brokers, 3))
        self._given = given_configs(configs, keywords)
        own_clock = {"barnabas.group.newcomer.delay.ms": "0"}  # no test may move it: a rebalance must not wait for it
        self._configs = {
            **DEFAULTS,
            **({} if clock is None else own_clock),
            "default.replication.factor": replicas,
            "min.insync.replicas": str(min(brokers, 2)),
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": str(min(brokers, 2)),
            **self._given,
        }
        self._racks = tuple(racks)
        self._followers_may_lag = clock is not None
        self._clock = OffsetClock(clock)
        self.clock = BrokerClock(self._clock, self._move_time, self._check_started)
        self._lines = Lines()
        self._interception = Interception(self)
        self.faults = Faults(self._interception)
        self._topics: dict[str, Topic] = {}
        self._cuts = Cuts()
        self._pid = os.getpid()
        self._calls = Calls("cluster", self._check_has_broker)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._store: EmbeddedStore | None = None
        self._cluster_id = ""
        self._turn = asyncio.Lock()
        """Held while all brokers are stopped, and started."""
        self._numbers = itertools.count(1)
        self._snapshots: list[Snapshot] = []
        self._directory = Path()
        self.brokers: Sequence[ClusterBroker] = _Brokers(ClusterBroker(self, number) for number in range(brokers))

    def __repr__(self) -> str:
        return f"<Cluster {self.bootstrap_servers if self._has_running_broker else 'not running'}>"

    # --- start and stop ---------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not been stopped since, whatever the number of running brokers."""
        return self._loop is not None

    def _check_started(self) -> None:
        """Errors: RuntimeError when it was never started, or was stopped since."""
        if self._loop is None:
            raise cluster_does_not_run()

    def start(self) -> Self:
        """Start all brokers, and return when clients can connect to each."""
        if self._loop is not None:
            raise RuntimeError("this cluster runs already")
        self._pid = os.getpid()
        self._directory = Path(tempfile.mkdtemp(prefix="barnabas-"))
        self.data_dir.mkdir()
        atexit.register(self._remove_data)  # for clusters that are never stopped
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), name="barnabas-cluster", daemon=True)
        self._thread.start()
        started.wait()
        try:
            self._run_through(self._open_store())
            self._warn()
            for broker in self.brokers:
                broker.start(heard=False)  # the wait below covers all brokers
            self._run_through(self._settle())
        except BaseException:
            self.stop()
            raise
        report.started(self)
        return self

    def _warn(self) -> None:
        """Warn of problems with keywords: above all a misspelt one, which no test would notice."""
        given = {key: value for key, value in self._given.items() if key not in NEED_OTHERS}
        for problem in broker_config.load(options=given).warnings:
            self._made_by.warn(problem)

    def stop(self) -> None:
        """Stop all brokers cleanly, the last one first; their data is removed. In a process that was forked from the
        cluster's process this does nothing: the cluster continues in its own process.
        """
        loop, thread = self._loop, self._thread
        if loop is None or thread is None or not self._is_our_process:
            return
        try:
            self.faults._forget()  # first: a paused, or cut off, broker blocks others' shutdown
            self._run_through(self._end_in_turn())
            if self._store is not None:
                self._run_through(self._store.close())
        finally:
            self._loop = self._thread = self._store = None
            self._topics.clear()
            self._cluster_id = ""
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            atexit.unregister(self._remove_data)
            self._remove_data()
            self._directory = Path()

    def restart(self, timeout: float = IN_SYNC_S) -> None:
        """Stop all brokers cleanly, the last one first, and start them again on the same data and ports; stopped ones
        are started, too, and all are in sync on return. Pending calls end with an error that says so. Faults stay, and
        may be removed meanwhile.

        Errors: RuntimeError when the cluster does not run; TimeoutError from `wait_in_sync`, for instance while a
        broker is cut off, and from a broker's `start`, with the pause or the cut that delays it: the others run then.
        `timeout` is in seconds of real time, for either; a stop ends by itself.
        """
        check_wait(timeout)
        self._check_started()
        self._run_through(self._restart(min(timeout, TIMEOUT_S)))
        self.wait_in_sync(timeout)
        self._run_through(self._settle())
        self.faults._end_undone()

    async def _restart(self, timeout_s: float) -> None:
        async with self._turn:
            try:
                await self._end_cleanly("was restarted")
                await self._calls.end()
                await self._begin_all(timeout_s)
            finally:
                self._calls.go_on()

    async def _begin_all(self, timeout_s: float) -> None:
        """Start all brokers, one after the other, but without waiting long for one. Raises TimeoutError for the first
        one that does not start; the others run then.
        """
        starts: list[asyncio.Task[None]] = []
        try:
            for broker in self.brokers:
                starts.append(asyncio.create_task(broker._begin(timeout_s)))
                await asyncio.wait(starts[-1:], timeout=AHEAD_S)
            await asyncio.wait(starts)
        finally:
            for start in starts:
                start.cancel()
            ends = await asyncio.gather(*starts, return_exceptions=True)
        for error in filter(None, ends):
            raise error

    async def _end_in_turn(self) -> None:
        async with self._turn:
            await self._end_cleanly("stopped")
            await self._calls.end()

    async def _end_cleanly(self, what: str) -> None:
        """Stop all brokers, the last one first; pending calls end with an error that says `what` happened."""
        self._calls.pause(what)
        for broker in reversed(self.brokers):
            await broker._end()

    def reset(self) -> None:
        """Return the cluster to the state after its first start: all brokers run, without topics, groups, transactions,
        dynamic configs, cuts and faults, at the real time (or that of the given clock), with producer ids from 0 on.
        Addresses and cluster id stay; clients lose their connections, and see after reconnecting that topics are
        deleted. Recordings continue.

        Errors: RuntimeError when it does not run.
        """

        def wipe() -> None:
            shutil.rmtree(self._directory)
            self.data_dir.mkdir(parents=True)
            self._clock.set_offset(0)

        self._check_may_be_reset()
        self._forget_contents()
        self._start_again(wipe, "was reset")

    def snapshot(self) -> Snapshot:
        """A snapshot of the cluster's current state, for `restore`: its brokers are restarted for it, with new leader
        epochs, and clients lose their connections. Large log files are not copied. Cuts, pauses, faults of disks and of
        connections, and other faults of requests between brokers end; those of clients' requests stay.

        Errors: RuntimeError when not all of its brokers run, or while a transaction hangs or a partition is offline
        because of a fault: the snapshot would contain that permanently.
        """
        self._check_started()
        if not all(broker.is_running for broker in self.brokers):
            raise RuntimeError("only of a cluster whose brokers all run is there a snapshot: start() them")
        topics = self.topic_names()
        self.faults._prepare_snapshot()
        directory = self._directory.with_name(f"{self._directory.name}.snapshot-{next(self._numbers)}")
        taken = Snapshot(directory, self._clock.offset_ms, topics)
        self._snapshots.append(taken)
        self._start_again(lambda: taken._take(self._directory), "was started anew for a snapshot")
        return taken

    def restore(self, snapshot: Snapshot) -> None:
        """Return to the state of a snapshot, any number of times, on all brokers: topics and records, groups,
        transactions, producer ids, configs, and the offset of the clock. Faults and cuts are removed; clients lose
        their connections.

        Errors: RuntimeError when it does not run; ValueError when the snapshot is another cluster's, or is removed.
        """
        self._check_started()
        self._snapshots = [each for each in self._snapshots if not each._is_removed]
        if snapshot not in self._snapshots:
            raise ValueError("this snapshot is not this cluster's, or it is gone: it goes when the cluster stops")
        self._check_may_be_reset("restored", snapshot._topics)

        def put_back() -> None:
            shutil.rmtree(self._directory)
            snapshot._put_back(self._directory, self._snapshots)
            self._clock.set_offset(snapshot._clock_offset_ms)

        self._forget_contents()
        self._start_again(put_back, "was restored")

    def _forget_contents(self) -> None:
        self._check_started()
        self.faults._forget()
        self._topics.clear()

    def _start_again(self, between: Callable[[], None], what: str) -> None:
        """Stop all brokers at once, call `between`, and start all: each partition is led by its first replica then, and
        all replicas are in sync. Pending calls end with an error that says `what` happened, except those that outlive
        their brokers. After an error, no broker runs.
        """
        self._run_through(self._begin_again(between, what))

    async def _begin_again(self, between: Callable[[], None], what: str) -> None:
        async with self._turn:
            self._calls.pause(what)
            try:
                await self._end_at_once()
                await self._calls.end()
                between()
                await self._open_store()
                for broker in self.brokers:
                    await broker._begin()
                await self._until_in_sync()
                await self._elect_preferred()
                await self._settle()
            except BaseException:
                await self._end_at_once()
                raise
            finally:
                self._calls.go_on()

    async def _end_at_once(self) -> None:
        """Stop all brokers at once. The metadata store closes before the brokers, so that no leaders are elected in
        place of stopped ones; fetchers stop first, so that they log no errors.
        """
        assert self._store is not None
        following = (server.replicas.fetchers for server in self.live_servers())
        await asyncio.gather(*[fetchers.stop() for fetchers in following if fetchers is not None])
        self._cluster_id = next((server.cluster_id for server in self.live_servers()), self._cluster_id)
        await self._store.close()
        servers = self.live_servers()
        for broker in self.brokers:
            broker._is_gone()
        await asyncio.gather(*[server.crash() for server in servers], *[broker._has_ended() for broker in self.brokers])

    async def _elect_preferred(self) -> None:
        controller = await self._eventually(self._controlling, "no broker is the controller")
        await controller.controller.elect_leaders(None, ElectionType.PREFERRED, ADMIN_TIMEOUT_MS)

        def are_elected() -> bool | None:
            found = [
                state.leader == state.replicas[0]
                for server in self.live_servers()
                for topic in server.metadata.topics()
                for state in topic.partitions.values()
            ]
            return all(found) or None

        await self._eventually(are_elected, "not every partition is led by its first replica")

    @property
    def _is_of_another_process(self) -> bool:
        """Whether it runs in the process from which this one was forked."""
        return self._loop is not None and not self._is_our_process

    @property
    def _is_our_process(self) -> bool:
        return os.getpid() == self._pid

    def _remove_data(self) -> None:
        if self._is_our_process:
            shutil.rmtree(self._directory, ignore_errors=True)
            for snapshot in self._snapshots:
                snapshot.remove()

    def _run(self, started: threading.Event) -> None:
        self._lines.here()
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            self._loop = loop = runner.get_loop()
            self._turn = asyncio.Lock()
            self._calls.begin(loop)
            loop.call_soon(started.set)
            loop.run_forever()
        self._calls.close()

    async def _open_store(self) -> None:
        worker = OwnStoreWorker(OwnerThread(), self._lines)
        path = str(self._directory / METADATA_FILE)
        self._store = EmbeddedStore(path, self._clock, is_durable=False, worker=worker)
        await self._store.open()

    # --- contents ---------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT of every running broker, separated by commas. Errors: RuntimeError when none runs."""
        self._check_started()
        self._check_has_broker()
        return ",".join(broker.bootstrap_servers for broker in self.brokers if broker.is_running)

    @property
    def data_dir(self) -> Path:
        """The directory of the brokers' data, with a subdirectory for each broker number. Errors: RuntimeError when the
        cluster was never started, or was stopped since.
        """
        if self._directory == Path():
            raise cluster_does_not_run()
        return self._directory / "brokers"

    def _check_has_broker(self) -> None:
        if not self._has_running_broker:
            raise RuntimeError("no broker of this cluster runs: start() one of its brokers")

    @property
    def _has_running_broker(self) -> bool:
        return self._loop is not None and any(broker.is_running for broker in self.brokers)

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        replication_factor: int | None = None,
        configs: Mapping[str, object] | None = None,
    ) -> Topic:
        """Create a topic; all running brokers know it on return.

        `partitions` defaults to `num.partitions` (1), `replication_factor` to `default.replication.factor` (3, or the
        number of brokers if that is smaller); `configs` are topic configs such as {"retention.ms": 1000}.

        Errors: ApiError TOPIC_ALREADY_EXISTS, INVALID_REPLICATION_FACTOR, INVALID_CONFIG and so on.
        """
        request = topic_creation(name, partitions, replication_factor, configs)

        async def create() -> None:
            controller = await self._eventually(self._controlling, "no broker is the controller")
            [result] = (await ask(controller, request, CREATE_TOPICS_VERSION)).topics
            self._check_created(result.error_code, result.error_message)
            await self._eventually(
                lambda: all(server.metadata.topic(name) is not None for server in self.live_servers()) or None,
                f"not every broker knows {name}",
            )
            await self._settle([name])

        self.call(create())
        return self.topic(name)

    # --- faults -----------------------------------------------------------------------------------

    def cut(self, one: int, other: int, *, one_way: bool = False) -> Cut:
        """Cut the connection between two brokers, in both directions, until the fault is removed, or `heal()`: their
        connections break, and new ones wait. Both still reach their clients, and the metadata store. With `one_way`
        only `one` cannot reach `other`; the connections of `other` to `one` stay.

        Errors: ValueError unless these are two brokers of the cluster.
        """
        if one == other or not {one, other} <= set(range(len(self.brokers))):
            raise ValueError(f"two of the brokers 0 to {len(self.brokers) - 1} are cut off, not {one} and {other}")
        ways = [(one, other)] if one_way else [(one, other), (other, one)]
        return self.faults._add(Cut(self.faults, self._cuts, ways))

    def heal(self) -> None:
        """End all cuts."""
        self._check_started()
        for fault in list(self.faults):
            if isinstance(fault, Cut):
                fault.remove()

    def expire_session(self, broker: int) -> None:
        """Expire a broker's session, as ZooKeeper does after its timeout: other leaders are elected for its partitions.
        Then the broker learns of it and registers again, and the other brokers know that (those that faults prevent
        from knowing are waited for one second); on return it has registered.

        Errors: ValueError for a number of no broker of the cluster; RuntimeError when it does not run, or is stopped or
        killed meanwhile.
        """
        self._check_brokers([broker])
        self._check_started()
        server = self.brokers[broker].server

        async def expire() -> None:
            sessions, epoch = self.brokers[broker]._sessions, server.controller.broker_epoch

            def has_registered() -> bool | None:
                if server not in self.live_servers():
                    raise NothingMoreComes(f"broker {broker} ended before it registered again")
                return server.controller.broker_epoch > epoch or None

            assert self._store is not None
            assert sessions is not None
            assert sessions.last is not None
            sessions.may_begin.clear()
            try:
                await self._store.expire(sessions.last)
                await self._eventually(
                    lambda: self._leads_nothing(broker) or None, f"nobody is elected in place of broker {broker}"
                )
                await self._have_others_know(broker)
            finally:
                sessions.may_begin.set()
            await self._eventually(has_registered, f"broker {broker} does not register again")
            await self._settle()

        self.call(expire())

    def _check_brokers(self, numbers: Collection[int]) -> None:
        """Refuse numbers of no broker. Errors: ValueError."""
        unknown = sorted(set(numbers) - {broker.number for broker in self.brokers})
        if unknown:
            told = ", ".join(map(str, unknown))
            raise ValueError(f"this cluster has the brokers 0 to {len(self.brokers) - 1}, not {told}")

    def _check_apis(self, keys: frozenset[int] | None) -> None:
        """Accept all: the remaining APIs are used between brokers."""

    # --- inside -----------------------------------------------------------------------------------

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the brokers' event loop and return its result. Errors: RuntimeError when the cluster does
        not run, or none of its brokers, or it stops meanwhile, or the brokers in use are replaced (`reset`).
        """
        return self._calls_for(coroutine).run(coroutine)

    async def call_async(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Like `call`, from a coroutine on another event loop."""
        return await self._calls_for(coroutine).run_async(coroutine)

    def _watch(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Like `call`, for a coroutine that sends no request to brokers: they may be restarted meanwhile."""
        return self._calls_for(coroutine).watch(coroutine)

    async def _watch_async(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Like `watch`, from a coroutine on another event loop."""
        return await self._calls_for(coroutine).watch_async(coroutine)

    def _run_through(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Like `call`, for a coroutine that starts and stops brokers, or needs no running one."""
        return self._calls_for(coroutine).run_through(coroutine)

    def _calls_for(self, coroutine: Coroutine[Any, Any, T]) -> Calls:
        """The `Calls` that run a coroutine; if the cluster does not run, the coroutine is closed."""
        if self._loop is None or not self._is_our_process:
            coroutine.close()
            raise cluster_does_not_run() if self._loop is None else of_another_process()
        return self._calls

    async def _eventually(self, find: Callable[[], T | None], what: str) -> T:
        """The result of `find`, once it is not None. Errors: TimeoutError."""
        return await self._found(find, ADMIN_TIMEOUT_MS / 1000, what)

    def _leads_nothing(self, broker: int) -> bool:
        """Whether the controller, if it is another broker, has no leadership recorded for a broker; or there is no
        other broker.
        """
        controller = self._controlling()
        if all(server.node_id == broker for server in self.live_servers()):
            return True
        return (
            controller is not None
            and controller.node_id != broker
            and not any(
                state.leader == broker
                for topic in controller.controller.context.cluster.topics.values()
                for state in topic.partitions.values()
            )
        )

    async def _have_others_know(self, broker: int) -> None:
        def know() -> bool | None:
            return self._others_know(broker) or None

        if self._is_hindered():
            with contextlib.suppress(TimeoutError):  # a broker that is cut off, or paused, learns it later
                await self._found(know, HEARD_S, "not told")
        else:
            await self._eventually(know, f"nobody tells the others that broker {broker} leads nothing")

    def _others_know(self, broker: int) -> bool:
        """Whether each of the other brokers knows that a broker leads nothing."""
        return not any(
            state.leader == broker
            for server in self.live_servers()
            if server.node_id != broker
            for topic in server.metadata.topics()
            for state in topic.partitions.values()
        )

    async def _leading(self, name: str, partition: int) -> Led:
        """A partition at its leader, once the leader knows its high watermark: a new leader waits for fetches of its
        followers.

        Errors: TimeoutError; ApiError, LEADER_NOT_AVAILABLE at once if it will get no leader by itself.
        """

        def find() -> Led | None:
            led = self._led(name, partition)
            if led is None:
                self._check_may_be_led(name, partition)
                return None
            log = led.partition.log
            return led if log.high_watermark >= min(log.leader_epochs.latest_start_offset, log.log_end_offset) else None

        return await self._eventually(find, f"no broker leads {name}-{partition}")

    def _check_may_be_led(self, name: str, partition: int) -> None:
        """Errors: ApiError for a partition that gets no leader until the test acts."""
        states = [server.metadata.partition(name, partition) for server in self.live_servers()]
        running = {server.node_id for server in self.live_servers()}
        if any(state is None or state.leader in running for state in states):
            return
        check_is_online(self.faults, name, partition)
        replicas = {replica for state in states if state is not None for replica in state.replicas}
        if not replicas & running:
            at = ", ".join(map(str, sorted(replicas)))
            told = f"nobody leads {name}-{partition}: of its replicas, at {at}, none runs: start() one of them"
            raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, told)

    def live_servers(self) -> list[Server]:
        """The running brokers."""
        if not self._is_our_process:
            return []
        return [broker.server for broker in self.brokers if broker.is_running]

    def _absent(self) -> list[int]:
        return [broker.number for broker in self.brokers if not broker.is_running]

    def _new_server(self, broker_id: int, port: int, on_failure: Callable[[str], None]) -> tuple[Server, Sessions]:
        """A broker that was not started yet, on its existing data if there are any, and its sessions with the metadata
        store. With `port` 0 the system chooses one.
        """
        assert self._store is not None
        options = {
            **self._configs,
            "node.id": str(broker_id),
            "listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "log.dirs": str(self.data_dir / str(broker_id)),
        }
        if self._cluster_id:
            options["barnabas.cluster.id"] = self._cluster_id
        if self._racks:
            options["broker.rack"] = self._racks[broker_id]
        sessions = Sessions(self._store)
        environment = Environment(
            clock=self._clock,
            socket_clock=SystemClock(),  # connections between brokers use real time, whatever the brokers' clock
            files=ExchangeableFiles(UnsyncedFiles()).as_files(),
            network=BrokerNetwork(broker_id, self._cuts),
            metadata_store=sessions,
            store_worker=lambda: OwnStoreWorker(OwnerThread(), self._lines),
            threads=OwnThreads(OsThreads(), self._lines),
        )
        server = Server(broker_config.load(options=options), environment, on_failure)
        self._attach(server)
        return server, sessions

    def _attach(self, server: Server) -> None:
        """Apply the current faults and recordings to a broker."""
        self._interception.attach(server)

    def _move_time(self, move: Callable[[], None]) -> None:
        async def move_and_settle() -> None:
            move()
            for server in self.live_servers():
                await server.settle()

        (self.call if self.live_servers() else self._run_through)(move_and_settle())


class _Brokers(list[ClusterBroker]):
    """The brokers of a cluster, by number."""

    def __getitem__(self, number: Any) -> Any:
        try:
            return super().__getitem__(number)
        except IndexError:
            raise IndexError(f"this cluster has the brokers 0 to {len(self) - 1}, not {number}") from None
