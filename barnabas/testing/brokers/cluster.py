"""Several brokers in one thread, so that a test can stop one of them, cut it off from another, and observe the
partitions that it led.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from barnabas.broker.configuration import config as broker_config
from barnabas.broker.environment import Environment
from barnabas.broker.server import Broker as Server
from barnabas.clock import Clock, SystemClock
from barnabas.controller.admin_request import ElectionType
from barnabas.controller.coordination.owner_thread import OwnerThread
from barnabas.storage.os_files import UnsyncedFiles
from barnabas.testing.brokers import report
from barnabas.testing.brokers.cluster_broker import ClusterBroker
from barnabas.testing.brokers.cluster_thread import ClusterThread
from barnabas.testing.brokers.log_lines import OwnStoreWorker, OwnThreads
from barnabas.testing.brokers.owner import SMALL_INTERNAL_TOPICS, Owner
from barnabas.testing.brokers.sessions import Sessions, leads_nothing, others_know
from barnabas.testing.brokers.snapshot import Snapshot
from barnabas.testing.contents.contents import ADMIN_TIMEOUT_MS
from barnabas.testing.contents.partitions import Led
from barnabas.testing.contents.roles import IN_SYNC_S, POLL_S
from barnabas.testing.contents.topic import Topic
from barnabas.testing.faults.cuts import BrokerNetwork, Cut, Cuts
from barnabas.testing.faults.state_faults import check_is_online
from barnabas.testing.interception.faulty_disk import ExchangeableFiles
from barnabas.testing.waiting.conditions import NothingMoreComes
from barnabas.testing.waiting.timeouts import TIMEOUT_S, check_count, check_wait
from barnabas.threads import OsThreads
from barnabas.wire.errors import ApiError, ErrorCode

T = TypeVar("T")

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


class Cluster(Owner[ClusterThread]):
    """`brokers` real brokers, numbered from 0, on 127.0.0.1 and free ports, with one metadata store in memory, and a
    temporary directory for all of them that is removed when the cluster stops.

    Kafka keys can be given as keywords, with underscores for dots, for every broker; keys that contain underscores go
    into `configs`. `racks` contains the rack of each broker (`broker.rack`), in order. `clock` is the source of time;
    `cluster.clock` moves it ahead for all brokers together. With `security="sasl_ssl"`, clients need TLS and a user:
    `client_config` is what they are given; the brokers log in to each other, too.

    Use it as a context manager (`with` or `async with`), or call `start()` and `stop()`. All methods may be called from
    any thread.

    Errors: ConfigError for a bad configuration, OSError when a broker cannot start; ApiError with Kafka's error if a
    broker refuses; TimeoutError after a wait; RuntimeError when a call needs the cluster to run.
    """

    _noun = "cluster"
    _recheck_s = POLL_S

    def __init__(
        self,
        brokers: int = 3,
        *,
        racks: Sequence[str] = (),
        clock: Clock | None = None,
        security: str | None = None,
        configs: Mapping[str, object] | None = None,
        **keywords: object,
    ) -> None:
        check_count("brokers", brokers, 1)
        if racks and len(racks) != brokers:
            given = "1 entry" if len(racks) == 1 else f"{len(racks)} entries"
            raise ValueError(f"racks has {given} for {brokers} brokers: name one for each broker, or none")
        super().__init__(clock, configs, keywords, security)
        self._configs = _configs(brokers, self._given, has_own_clock=clock is not None)
        self._racks = tuple(racks)
        self._followers_may_lag = clock is not None
        self._cuts = Cuts()
        self._cluster_id = ""
        self.brokers: Sequence[ClusterBroker] = _Brokers(ClusterBroker(self, number) for number in range(brokers))

    def __repr__(self) -> str:
        return f"<Cluster {self.bootstrap_servers if self._has_running_broker else 'not running'}>"

    # --- start and stop ---------------------------------------------------------------------------

    def _check_started(self) -> None:
        """Errors: RuntimeError when it was never started, or was stopped since."""
        if self._life is None:
            raise self._not_running()

    def start(self) -> Self:
        """Start all brokers, and return when clients can connect to each."""
        if self._life is not None:
            raise RuntimeError("this cluster runs already")
        self._pid = os.getpid()
        self._directory = Path(tempfile.mkdtemp(prefix="barnabas-"))
        self.data_dir.mkdir()
        atexit.register(self._remove_data)  # for clusters that are never stopped
        self._life = life = ClusterThread(self._offset_clock, self._lines, self._check_has_broker)
        try:
            self._run_through(life.open_store(self._root))
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
        life = self._life
        if life is None or not self._is_our_process:
            return
        try:
            self.faults._forget()  # first: a paused, or cut off, broker blocks others' shutdown
            self._run_through(self._end_in_turn(life))
            self._run_through(life.close_store())
        finally:
            self._life = None
            self._topics.clear()
            if self._security is not None:
                self._security.forget()
            self._cluster_id = ""
            life.end()
            atexit.unregister(self._remove_data)
            self._remove_data()
            self._directory = None

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
        self._run_through(self._restart(self._life_or_error(), min(timeout, TIMEOUT_S)))
        self.wait_in_sync(timeout)
        self._run_through(self._settle())
        self.faults._end_undone()

    async def _restart(self, life: ClusterThread, timeout_s: float) -> None:
        async with life.turn:
            try:
                await self._end_cleanly(life, "was restarted")
                await self._begin_all(timeout_s)
            finally:
                life.calls.go_on()

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

    async def _end_in_turn(self, life: ClusterThread) -> None:
        async with life.turn:
            await self._end_cleanly(life, "stopped")

    async def _end_cleanly(self, life: ClusterThread, what: str) -> None:
        """Stop all brokers, the last one first; pending calls end with an error that says `what` happened."""
        life.calls.pause(what)
        for broker in reversed(self.brokers):
            await broker._end()
        await life.calls.end()

    def reset(self) -> None:
        """Return the cluster to the state after its first start: all brokers run, without topics, groups, transactions,
        dynamic configs, cuts and faults, at the real time (or that of the given clock), with producer ids from 0 on.
        Addresses and cluster id stay; clients lose their connections, and see after reconnecting that topics are
        deleted. Recordings continue.

        Errors: RuntimeError when it does not run.
        """

        def wipe() -> None:
            shutil.rmtree(self._root)
            self.data_dir.mkdir(parents=True)
            self._offset_clock.set_offset(0)

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
            raise RuntimeError("a snapshot needs all brokers to run: start() them")
        topics = self.topic_names()
        self.faults._prepare_snapshot()
        taken = self._new_snapshot(topics)
        self._start_again(lambda: taken._take(self._root), "was started anew for a snapshot")
        return taken

    def restore(self, snapshot: Snapshot) -> None:
        """Return to the state of a snapshot, any number of times, on all brokers: topics and records, groups,
        transactions, producer ids, configs, and the offset of the clock. Faults and cuts are removed; clients lose
        their connections.

        Errors: RuntimeError when it does not run; ValueError when the snapshot is another cluster's, or is removed.
        """
        self._check_started()
        self._check_may_be_restored(snapshot)

        def put_back() -> None:
            shutil.rmtree(self._root)
            snapshot._put_back(self._root, self._snapshots)
            self._offset_clock.set_offset(snapshot._clock_offset_ms)

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
        life = self._life_or_error()
        self._run_through(self._begin_again(life, between, what))

    async def _begin_again(self, life: ClusterThread, between: Callable[[], None], what: str) -> None:
        async with life.turn:
            life.calls.pause(what)
            try:
                await self._end_at_once(life)
                await life.calls.end()
                between()
                await life.open_store(self._root)
                for broker in self.brokers:
                    await broker._begin()
                await self._until_in_sync()
                await self._elect_preferred()
                await self._settle()
            except BaseException:
                await self._end_at_once(life)
                raise
            finally:
                life.calls.go_on()

    async def _end_at_once(self, life: ClusterThread) -> None:
        """Stop all brokers at once. The metadata store closes before the brokers, so that no leaders are elected in
        place of stopped ones; fetchers stop first, so that they log no errors.
        """
        following = (server.replicas.fetchers for server in self.live_servers())
        await asyncio.gather(*[fetchers.stop() for fetchers in following if fetchers is not None])
        self._cluster_id = next((server.cluster_id for server in self.live_servers()), self._cluster_id)
        await life.close_store()
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
        return self._root / "brokers"

    def _check_has_broker(self) -> None:
        if not self._has_running_broker:
            raise RuntimeError("no broker of this cluster runs: start() one of its brokers")

    @property
    def _has_running_broker(self) -> bool:
        return self._life is not None and any(broker.is_running for broker in self.brokers)

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
        return self._create_topic(name, partitions, replication_factor, configs)

    async def _until_known(self, topic: str) -> None:
        await self._eventually(
            lambda: all(server.metadata.topic(topic) is not None for server in self.live_servers()) or None,
            f"not every broker knows {topic}",
        )
        await self._settle([topic])

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
        server, store = self.brokers[broker].server, self._life_or_error().store

        async def expire() -> None:
            sessions, epoch = self.brokers[broker]._sessions, server.controller.broker_epoch

            def has_registered() -> bool | None:
                if server not in self.live_servers():
                    raise NothingMoreComes(f"broker {broker} ended before it registered again")
                return server.controller.broker_epoch > epoch or None

            assert sessions is not None
            assert sessions.last is not None
            sessions.may_begin.clear()
            try:
                await store.expire(sessions.last)
                await self._eventually(
                    lambda: leads_nothing(self.live_servers(), broker) or None,
                    f"no leaders are elected in place of broker {broker}",
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

    def _run_through(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Like `call`, for a coroutine that starts and stops brokers, or needs no running one."""
        return self._calls_for(coroutine).run_through(coroutine)

    async def _eventually(self, find: Callable[[], T | None], what: str) -> T:
        """The result of `find`, once it is not None. Errors: TimeoutError."""
        return await self._found(find, ADMIN_TIMEOUT_MS / 1000, what)

    async def _have_others_know(self, broker: int) -> None:
        def know() -> bool | None:
            return others_know(self.live_servers(), broker) or None

        if self._hindering():
            with contextlib.suppress(TimeoutError):  # a broker that is cut off, or paused, learns it later
                await self._found(know, HEARD_S, "not informed")
        else:
            await self._eventually(know, f"other brokers do not know that broker {broker} is no leader")

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
            told = f"{name}-{partition} has no leader: none of its replicas, at {at}, runs: start() one of them"
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
        if self._security is not None:
            options = self._security.secure(options)
        sessions = Sessions(self._life_or_error().store)
        environment = Environment(
            clock=self._offset_clock,
            socket_clock=SystemClock(),  # connections between brokers use real time, whatever the brokers' clock
            files=ExchangeableFiles(UnsyncedFiles()).as_files(),
            network=BrokerNetwork(broker_id, self._cuts),
            metadata_store=sessions,
            store_worker=lambda: OwnStoreWorker(OwnerThread(), self._lines),
            threads=OwnThreads(OsThreads(), self._lines),
        )
        server = Server(broker_config.load(options=options), environment, on_failure)
        self._prepare(server)
        return server, sessions


def _configs(brokers: int, given: Mapping[str, str], *, has_own_clock: bool) -> dict[str, str]:
    """The configuration of each of that many brokers, without what differs between them."""
    replicas, in_sync = str(min(brokers, 3)), str(min(brokers, 2))
    own_clock = {"barnabas.group.newcomer.delay.ms": "0"}  # no test may move it: a rebalance must not wait for it
    return {
        **DEFAULTS,
        **(own_clock if has_own_clock else {}),
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        **given,
    }


class _Brokers(list[ClusterBroker]):
    """The brokers of a cluster, by number."""

    def __getitem__(self, number: Any) -> Any:
        try:
            return super().__getitem__(number)
        except IndexError:
            raise IndexError(f"this cluster has the brokers 0 to {len(self) - 1}, not {number}") from None
