"""A broker in a thread of its own, so that the test that started it can use blocking clients."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Collection, Coroutine, Mapping
from pathlib import Path
from typing import Any, NoReturn, Self, TypeVar

from barnabas.broker.configuration import config as broker_config
from barnabas.broker.configuration.config import BrokerConfig
from barnabas.broker.environment import Environment
from barnabas.broker.server import Broker as BrokerServer
from barnabas.clock import Clock
from barnabas.storage.files import Files
from barnabas.storage.os_files import OsFiles, UnsyncedFiles
from barnabas.testing.brokers import report
from barnabas.testing.brokers.broker_thread import BrokerThread
from barnabas.testing.brokers.owner import SMALL_INTERNAL_TOPICS, Owner
from barnabas.testing.brokers.snapshot import Snapshot
from barnabas.testing.caller import Caller
from barnabas.testing.contents.partitions import Led
from barnabas.testing.contents.roles import check_partition
from barnabas.testing.contents.topic import Topic
from barnabas.testing.faults.state_faults import check_is_online, is_offline
from barnabas.testing.interception.faulty_disk import ExchangeableFiles
from barnabas.testing.interception.request import OF_BROKERS_ALONE
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages import API_NAMES

T = TypeVar("T")


class Broker(Owner[BrokerThread]):
    """A real broker on 127.0.0.1 and a free port, with a temporary directory that is removed when it stops.

    Its configuration is Kafka's, except that internal topics in a temporary directory have 3 partitions instead of 50.
    Any Kafka key can be given as a keyword, with underscores for dots: `Broker(num_partitions=3,
    auto_create_topics_enable=False)`; keys that contain underscores go into `configs`. Give `data_dir` to keep the data
    (a temporary directory is never synced to the disk). `clock` is its source of time, the machine by default;
    `broker.clock` moves it ahead. `files` is its access to its data: pass another implementation for a slow or failing
    disk. With `security="sasl_ssl"`, clients need TLS and a user: `client_config` is what they are given.

    Use it as a context manager (`with` or `async with`), or call `start()` and `stop()`. Several brokers may run at
    once; a stopped one may be started again. All methods may be called from any thread.

    Errors: ConfigError for a bad configuration, OSError, StorageError when it cannot start, RuntimeError when it runs
    already or when a call needs it to run. Methods that change or read topics raise ApiError with Kafka's error.
    """

    _noun = "broker"

    def __init__(
        self,
        *,
        data_dir: str | Path | None = None,
        clock: Clock | None = None,
        files: Files | None = None,
        security: str | None = None,
        configs: Mapping[str, object] | None = None,
        **keywords: object,
    ) -> None:
        super().__init__(clock, configs, keywords, security)
        self._given_data_dir = data_dir or self._given.get("log.dirs") or self._given.get("log.dir")
        self._files = files
        self._lock = threading.RLock()
        self._listeners: str | None = None
        """`listeners` with the ports of the first run, which later runs keep; None before it."""
        self._removals: list[threading.Thread] = []
        self._bootstrap_servers = ""

    def __repr__(self) -> str:
        return f"<Broker {self.bootstrap_servers if self.is_running else 'not running'}>"

    # --- start and stop ---------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT, the same in all its runs between `start()` and `stop()`. Errors: RuntimeError when it was never
        started, or was stopped since.
        """
        self._check_started()
        return self._bootstrap_servers

    def _check_started(self) -> None:
        """Errors: RuntimeError when it was never started, or was stopped since."""
        if self._listeners is None:
            raise self._not_running()

    @property
    def data_dir(self) -> Path:
        """The directory of its data. Errors: RuntimeError when it was never started, or its temporary directory is
        removed.
        """
        return self._root

    def start(self) -> Self:
        """Start, and return when clients can connect. After `kill()` it is the same broker again, with its data and its
        port; after `stop()` a new one.
        """
        with self._lock:
            if self._life is not None:
                raise RuntimeError(f"this broker runs already, at {self.bootstrap_servers}: use another Broker()")
            self._pid = os.getpid()
            if self._listeners is None:
                self._make_data_dir()
            try:
                self._begin()
            except BaseException:
                self._forget()
                raise
            self.faults._end_undone()
            report.started(self)
        return self

    def stop(self) -> None:
        """Stop cleanly, and remove the temporary directory; does nothing if it is stopped. A broker with its own
        directory first ends its faults; if it was killed and has not run since, it warns of their remains in its data.

        In a process that was forked from the broker's process this does nothing: the broker continues in its own
        process.
        """
        with self._lock:
            try:
                if self._is_our_process and self._given_data_dir is not None:
                    self._undo_faults()
            finally:
                life, self._life = self._life, None
                try:
                    if life is not None and self._is_our_process:
                        life.end()
                finally:
                    self._forget()

    def _undo_faults(self) -> None:
        """Remove the effects of faults from the data: the next process that opens the data does not know them."""
        if self._life is not None:
            self.faults.clear()
        elif left := self.faults._of_state():
            told = (
                f"{self.data_dir} keeps effects that only a running broker can undo: call start(), then stop(): {left}"
            )
            Caller.now().warn(told)

    def restart(self) -> None:
        """Stop cleanly (unless it was killed) and start again on the same data and the same port. Pending calls,
        including waits, end with an error that says so.
        """
        with self._lock:
            if self._life is not None:
                life, self._life = self._life_or_error(), None
                life.end(what="was restarted")
            elif self._listeners is None:
                raise self._not_running()
            self._begin()
            self.faults._end_undone()

    def kill(self) -> None:
        """End like a broker process after `kill -9`: connections are closed in the middle of requests, and the files
        stay as they are. `start()` or `restart()` recovers; `stop()` removes a temporary directory.
        """
        with self._lock:
            life, self._life = self._life_or_error(), None
            life.end(is_crash=True)

    def reset(self) -> None:
        """Return the broker to the state after its first start, in some ten ms: without topics, groups, transactions,
        dynamic configs and faults, at the real time (or that of the given clock), and with producer ids from 0 on.
        Address, cluster id and client connections stay: clients see that topics are deleted, and that groups do not
        know their members any more. Recordings continue.

        Only for a broker with a temporary directory, whose data is deleted.

        Errors: RuntimeError when it does not run, has its own directory, or has its metadata in ZooKeeper, and while
        there are topics of pytest's fixtures that several tests share.
        """
        self._check_may_be_reset()

        def start_afresh() -> None:
            self.data_dir.mkdir()
            self._offset_clock.set_offset(0)

        with self._lock:
            self._start_again_with("reset", start_afresh, "was reset")

    def snapshot(self) -> Snapshot:
        """A snapshot of the broker's current state, for `restore`. The broker is restarted for it, while clients stay
        connected: members stay in their groups and transactions stay open, but partitions have a new leader epoch.
        Large log files are not copied.

        Faults of disks and of connections, and pauses, end; those of requests stay. Only for a broker with a temporary
        directory.

        Errors: RuntimeError when it does not run, has its own directory, has its metadata in ZooKeeper, or while a
        transaction hangs or a partition is offline because of a fault: the snapshot would contain that permanently.
        """
        with self._lock:
            life = self._temporary_life("snapshot")
            topics = self.topic_names()
            self.faults._prepare_snapshot()
            taken = self._new_snapshot(topics)
            what = "was started anew for a snapshot"
            self._replace(life, lambda: taken._take(self.data_dir), is_clean=True, what=what)
            return taken

    def restore(self, snapshot: Snapshot) -> None:
        """Return to the state of a snapshot, any number of times: topics and records, groups, transactions, producer
        ids, configs, and the offset of the clock. Faults are removed; clients stay connected, as with `reset`.

        Errors: RuntimeError when it does not run, and while there are topics of pytest's fixtures that several tests
        share and the snapshot lacks; ValueError when the snapshot is another broker's, or is removed.
        """
        with self._lock:
            self._check_started()
            self._check_may_be_restored(snapshot)

            def put_back() -> None:
                snapshot._put_back(self.data_dir, self._snapshots)
                self._offset_clock.set_offset(snapshot._clock_offset_ms)

            self._start_again_with("restore", put_back, "was restored")

    def _start_again_with(self, verb: str, make_data_dir: Callable[[], None], what: str) -> None:
        """Restart the broker on other data; the current data is deleted."""
        life = self._temporary_life(verb)
        self.faults._forget()
        self._topics.clear()
        aside = self.data_dir.with_name(f"{self.data_dir.name}.old-{next(self._numbers)}")

        def between() -> None:
            self.data_dir.rename(aside)
            make_data_dir()

        try:
            self._replace(life, between, is_clean=False, what=what)
        finally:
            self._remove_later(aside)  # not before: removal would slow down the new broker

    def _replace(self, life: BrokerThread, between: Callable[[], None], *, is_clean: bool, what: str) -> None:
        """Replace the broker by another one; pending calls end with an error that says `what` happened. After an error
        no broker runs any more.
        """
        try:
            life.replace(self._config_of_next(life), between, is_clean=is_clean, what=what)
        except BaseException:
            self._life = None
            life.end()
            raise

    def _temporary_life(self, verb: str) -> BrokerThread:
        life = self._life_or_error()
        if self._given_data_dir is not None:
            raise RuntimeError(f"{verb} would exchange the data in {self.data_dir}: start a broker without a directory")
        if self._has_zookeeper:
            raise RuntimeError(f"{verb} cannot change what ZooKeeper stores: start a broker without zookeeper.connect")
        return life

    @property
    def _has_zookeeper(self) -> bool:
        return bool(self._given.get("zookeeper.connect", "").strip())

    # --- topics -----------------------------------------------------------------------------------

    def create_topic(
        self, name: str, partitions: int | None = None, configs: Mapping[str, object] | None = None
    ) -> Topic:
        """Create a topic; it is writable on return.

        `partitions` defaults to `num.partitions`; `configs` are topic configs such as {"retention.ms": 1000}.

        Errors: ApiError TOPIC_ALREADY_EXISTS, INVALID_TOPIC_EXCEPTION, INVALID_PARTITIONS, INVALID_CONFIG.
        """
        return self._create_topic(name, partitions, None, configs)

    def expire_session(self, broker: int | None = None) -> NoReturn:
        """A single broker has no session that could expire. Errors: RuntimeError, always."""
        raise RuntimeError("a lone broker has no session that could expire; use Cluster(), or Cluster(1)")

    def _check_brokers(self, numbers: Collection[int]) -> None:
        """Accept any number: a fault of another broker has no effect here, like a predicate that is never true."""

    def _check_apis(self, keys: frozenset[int] | None) -> None:
        """Refuse APIs that only other brokers would call. Errors: ValueError."""
        if keys and keys <= OF_BROKERS_ALONE and not self._has_zookeeper:
            named = ", ".join(API_NAMES[key] for key in sorted(keys))
            raise ValueError(f"a lone broker never gets {named}, which brokers send each other; use Cluster()")

    # --- inside -----------------------------------------------------------------------------------

    @property
    def server(self) -> BrokerServer:
        """The broker itself; it belongs to its own event loop (see `call`)."""
        return self._life_or_error().server

    def _run_through(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Like `call`: a single broker has no other event loop."""
        return self.call(coroutine)

    def live_servers(self) -> list[BrokerServer]:
        """The broker itself, if it runs."""
        life = self._life
        return [] if life is None or not self._is_our_process else [life.server]

    async def _eventually(self, find: Callable[[], T | None], what: str) -> T:
        """The result of `find`: a single broker has everything at once."""
        found = find()
        if found is None:
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, what)
        return found

    def _controlling(self) -> BrokerServer:
        """The broker that receives requests for the controller."""
        return self.server

    def _coordinating(self, group_id: str) -> BrokerServer:
        """The broker that coordinates a group, if any does."""
        return self.server

    def _led(self, name: str, partition: int) -> Led | None:
        """A partition that this broker leads; None if a fault has removed its leader."""
        check_partition(self._known_topic(name), partition)
        hosted = self.server.replicas.partition_or_error(name, partition)
        if not hosted.state.is_leader and is_offline(self.faults, name, partition):
            return None
        return Led(self.server, hosted)

    async def _leading(self, name: str, partition: int) -> Led:
        """Like `_led`. Errors: ApiError, LEADER_NOT_AVAILABLE if a fault has removed the leader."""
        if self._led(name, partition) is None:
            check_is_online(self.faults, name, partition)
        return await super()._leading(name, partition)

    def _begin(self) -> None:
        files = self._files or (UnsyncedFiles() if self._given_data_dir is None else OsFiles())
        clock = self._offset_clock
        disk = ExchangeableFiles(files).as_files()
        environment = Environment(clock=clock, socket_clock=clock.base, files=disk)
        options = self._options()
        config = broker_config.load(options=options)
        for problem in config.warnings:  # above all a misspelt keyword, which no test would notice
            self._made_by.warn(problem)
        self._life = BrokerThread(config, environment, self._prepare, self._lines)
        socket_server = self._life.server.socket_server
        self._bootstrap_servers = socket_server.bootstrap_servers
        self._listeners = _with_ports(options["listeners"], socket_server.ports)

    def _config_of_next(self, life: BrokerThread) -> BrokerConfig:
        """The configuration of a broker that replaces a running one."""
        return broker_config.load(options={"barnabas.cluster.id": life.server.cluster_id, **self._options()})

    def _options(self) -> dict[str, str]:
        options = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(self.data_dir)}
        if self._given_data_dir is None:
            options |= SMALL_INTERNAL_TOPICS
        if "log.dir" in self._given:
            del options["log.dirs"]
        if self._has_own_clock:  # a test may never move it: a rebalance must not wait for it
            options["barnabas.group.newcomer.delay.ms"] = "0"
        options |= self._given
        if self._listeners is not None:
            options["listeners"] = self._listeners
        return options if self._security is None else self._security.secure(options, self._given_data_dir)

    def _make_data_dir(self) -> None:
        if self._given_data_dir is not None:
            self._directory = Path(str(self._given_data_dir).partition(",")[0])
            return
        self._directory = Path(tempfile.mkdtemp(prefix="barnabas-"))
        atexit.register(self._remove_data)  # for brokers that are never stopped

    def _remove_later(self, directory: Path) -> None:
        """Remove a directory, if it exists, in a separate thread, which the interpreter waits for at its end."""
        self._removals = [removal for removal in self._removals if removal.is_alive()]
        self._removals.append(threading.Thread(target=shutil.rmtree, args=(directory, True), name="barnabas-removal"))
        self._removals[-1].start()

    def _forget(self) -> None:
        self._listeners = None
        if self._security is not None:
            self._security.forget()
        self._topics.clear()
        self.faults._forget()
        if self._given_data_dir is None and self._directory is not None:
            atexit.unregister(self._remove_data)
            self._remove_data()
            self._directory = None
            for removal in self._removals:
                removal.join()


def _with_ports(listeners: str, ports: Mapping[str, int]) -> str:
    """The value of `listeners` with the bound ports, by listener name, in place of 0."""

    def entry(text: str) -> str:
        address, _, port = text.strip().rpartition(":")
        name = address.partition("://")[0].upper()
        return f"{address}:{ports.get(name, port)}"

    return ",".join(map(entry, filter(str.strip, listeners.split(","))))
