"""The base class of a test's broker and of a test's cluster: start and stop, calls on the event loop, the clock,
faults, recordings and snapshots.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
from abc import abstractmethod
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol, Self, TypeVar

from barnabas.clock import Clock, OffsetClock
from barnabas.testing.brokers import coordinators, report
from barnabas.testing.brokers.log_lines import Lines
from barnabas.testing.brokers.security import Security, client_config, is_known
from barnabas.testing.brokers.snapshot import Snapshot
from barnabas.testing.caller import Caller
from barnabas.testing.contents.contents import Contents, config_text
from barnabas.testing.contents.topic import Topic
from barnabas.testing.faults.fault import Fault
from barnabas.testing.faults.faults import Faults
from barnabas.testing.interception.interception import Interception
from barnabas.testing.recording.recording import Recordable
from barnabas.testing.waiting.broker_clock import BrokerClock
from barnabas.testing.waiting.calls import Calls, of_another_process

if TYPE_CHECKING:
    from barnabas.broker.cli.secure_clients import Account
    from barnabas.broker.server import Broker as Server
    from barnabas.testing.faults.fault_list import Certificates

T = TypeVar("T")

SMALL_INTERNAL_TOPICS: Final = {"offsets.topic.num.partitions": "3", "transaction.state.log.num.partitions": "3"}
"""Fewer partitions than Kafka's 50: each test would create and remove a directory for each partition."""


class Life(Protocol):
    """One run: a thread, and its event loop."""

    @property
    def calls(self) -> Calls:
        """The calls of other threads on the event loop."""
        ...


L = TypeVar("L", bound=Life)


class Owner(Contents, Recordable, Generic[L]):
    """A broker or a cluster of a test. It runs from `start()` until `stop()`, or during its `with` or `async with`
    block; a `Life` is one such run. If an exception ends that block, the report of the broker or cluster is kept for
    the report of the test.
    """

    _noun: ClassVar[str]

    def __init__(
        self,
        clock: Clock | None,
        configs: Mapping[str, object] | None,
        keywords: Mapping[str, object],
        security: str | None,
    ) -> None:
        self._made_by = Caller.now()
        self._given = given_configs(configs, keywords)
        self._has_own_clock = clock is not None
        self._security = None if security is None else Security.of(security)
        self._offset_clock = OffsetClock(clock)
        self.clock = BrokerClock(self._offset_clock, self._move_time, self._check_started)
        self._lines = Lines()
        self._interception = Interception(self)
        self.faults = Faults(self._interception, self)
        self._topics: dict[str, Topic] = {}
        self._pid = os.getpid()
        self._life: L | None = None
        self._directory: Path | None = None
        """The directory of its data and its other files."""
        self._numbers = itertools.count(1)
        self._snapshots: list[Snapshot] = []

    # --- start and stop ---------------------------------------------------------------------------

    @abstractmethod
    def start(self) -> Self:
        """Start, and return when clients can connect."""

    @abstractmethod
    def stop(self) -> None:
        """Stop cleanly; does nothing when there is nothing to stop."""

    @property
    def is_running(self) -> bool:
        """Whether it was started and has been neither stopped nor killed since. A cluster is running even while none of
        its brokers runs.
        """
        return self._life is not None

    @abstractmethod
    def _check_started(self) -> None:
        """Errors: RuntimeError when it was never started, or was stopped since."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            report.failing(self)
        self.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, trace)

    def _not_running(self) -> RuntimeError:
        """The error for a use while the broker or cluster does not run."""
        return RuntimeError(f"this {self._noun} does not run: start() it, or use it in a `with` block")

    @property
    def _is_of_another_process(self) -> bool:
        """Whether it runs in the process from which this one was forked."""
        return self._life is not None and not self._is_our_process

    @property
    def _is_our_process(self) -> bool:
        return os.getpid() == self._pid

    @property
    def _root(self) -> Path:
        """Its directory. Errors: RuntimeError when it was never started, or its temporary directory is removed."""
        if self._directory is None:
            raise self._not_running()
        return self._directory

    def _remove_data(self) -> None:
        """Remove the temporary directory, and those of snapshots."""
        if self._is_our_process:
            shutil.rmtree(self._root, ignore_errors=True)
            for snapshot in self._snapshots:
                snapshot.remove()

    # --- snapshots --------------------------------------------------------------------------------

    def _new_snapshot(self, topics: Collection[str]) -> Snapshot:
        """A new snapshot of the files in the directory, which is not taken yet."""
        directory = self._root.with_name(f"{self._root.name}.snapshot-{next(self._numbers)}")
        self._snapshots.append(Snapshot(directory, self._offset_clock.offset_ms, topics))
        return self._snapshots[-1]

    def _check_may_be_restored(self, snapshot: Snapshot) -> None:
        """Errors: ValueError for the snapshot of another broker or cluster; RuntimeError while tests share topics that
        the snapshot lacks."""
        self._snapshots = [each for each in self._snapshots if not each._is_removed]
        if snapshot not in self._snapshots:
            noun = self._noun
            raise ValueError(
                f"this snapshot belongs to another {noun}, or was removed: "
                f"snapshots are removed when their {noun} stops"
            )
        self._check_may_be_reset("restored", snapshot._topics)

    @cached_property
    def _shared_topics(self) -> list[str]:
        """The names of topics that pytest's fixtures have created here for more than one test."""
        return []

    def _check_may_be_reset(self, verb: str = "reset", kept: Collection[str] = ()) -> None:
        """Errors: RuntimeError while several tests share topics that are not `kept`: the other tests would lose these
        topics."""
        if lost := [name for name in self._shared_topics if name not in kept]:
            shared = ", ".join(lost)
            raise RuntimeError(
                f"kafka_broker cannot be {verb} while several tests share {shared}: make them for each test "
                "(kafka_topics), or take a broker of the test's own (kafka_broker_factory)"
            )

    # --- calls on its event loop ------------------------------------------------------------------

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on its event loop and return its result. Errors: RuntimeError when no broker runs, or when
        the broker stops or is replaced (`reset`) meanwhile.
        """
        return self._calls_for(coroutine).run(coroutine)

    async def call_async(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Like `call`, from a coroutine on another event loop."""
        return await self._calls_for(coroutine).run_async(coroutine)

    def _watch(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Like `call`, for a coroutine that sends no request to brokers: the brokers may be replaced meanwhile."""
        return self._calls_for(coroutine).watch(coroutine)

    async def _watch_async(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Like `_watch`, from a coroutine on another event loop."""
        return await self._calls_for(coroutine).watch_async(coroutine)

    @abstractmethod
    def _run_through(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Like `call`, but works even if none of a cluster's brokers runs, and while they are restarted."""

    def _calls_for(self, coroutine: Coroutine[Any, Any, T]) -> Calls:
        """The `Calls` that run a coroutine; if there are none, the coroutine is closed."""
        try:
            return self._life_or_error().calls
        except RuntimeError:
            coroutine.close()
            raise

    def _life_or_error(self) -> L:
        life = self._life
        if life is None:
            raise self._not_running()
        if not self._is_our_process:
            raise of_another_process()
        return life

    def _prepare(self, server: Server) -> None:
        """Prepare a broker that was not started yet for the test: the current faults and recordings apply to it."""
        if self._security is not None:
            self._security.prepare(server)
        coordinators.attach(server, self.live_servers)
        self._interception.attach(server)

    def _move_time(self, move: Callable[[], None]) -> None:
        """Move the clock and run everything that becomes due, without a request in between. Otherwise a heartbeat that
        arrives at the new time, before the member's timer runs, would keep an expired member alive.
        """

        async def move_and_settle() -> None:
            move()
            for server in self.live_servers():
                await server.settle()

        if self._life is None:
            move()
        else:
            (self.call if self.live_servers() else self._run_through)(move_and_settle())

    # --- clients ----------------------------------------------------------------------------------

    @property
    @abstractmethod
    def bootstrap_servers(self) -> str:
        """HOST:PORT, or several, separated by commas."""

    def client_config(self, user: str = "client", client: str = "confluent_kafka") -> dict[str, Any]:
        """The configuration of a client that logs in as `user`, in the words of `client`: "confluent_kafka",
        "aiokafka", "kafka_python" or "java" (properties of Java and Spark). Add the client's own settings to it.

        A user that does not exist is added, and may use all topics, groups and transactional ids; "admin" may do
        everything. Without `security` it is the address alone.

        Errors: RuntimeError when it does not run, ValueError for an unknown client.
        """
        return client_config(client, self.bootstrap_servers, self._account(user))

    def _account(self, user: str) -> Account | None:
        """What a client of a user has to know; a user that does not exist is added. None without `security`."""
        security = self._security
        if security is None:
            return None
        if user not in security.names:
            self.call(self._add_user(security, user))
        return security.account(user, self.bootstrap_servers)

    async def _add_user(self, security: Security, user: str) -> None:
        """Add a user; every running broker knows it on return. Errors: ApiError."""
        await security.add_user(user, await self._eventually(self._controlling, "no broker is the controller"))
        await self._eventually(
            lambda: all(is_known(user, server) for server in self.live_servers()) or None,
            f"a broker has not heard of user {user}",
        )

    # --- reports ----------------------------------------------------------------------------------

    def report(self) -> str:
        """A report in lines: topics, groups, transactions, faults, the last recorded requests, and the log; part of the
        error of a wait that timed out. Errors: RuntimeError when nothing runs.
        """

        async def tell() -> str:
            return report.describe(self)

        # This also works while brokers are restarted: the report may show why the restart does not finish.
        return (self._run_through if self.live_servers() else self.call)(tell())

    def _explained(self, error: TimeoutError, more: Iterable[str] = ()) -> TimeoutError:
        return report.explained(error, self, more)

    def _absent(self) -> Sequence[int]:
        """The numbers of its brokers that do not run."""
        return []

    # --- faults -----------------------------------------------------------------------------------

    @abstractmethod
    def _check_brokers(self, numbers: Collection[int]) -> None:
        """Refuse numbers of brokers that do not exist here. Errors: ValueError."""

    @abstractmethod
    def _check_apis(self, keys: frozenset[int] | None) -> None:
        """Refuse APIs whose requests never arrive here. None means all APIs. Errors: ValueError."""

    def _certificates(self) -> Certificates:
        """The certificates that its brokers may present. Errors: RuntimeError unless it is secured and was started."""
        self._check_started()
        if self._security is None:
            raise RuntimeError(
                f'this {self._noun} has no TLS of its own: use {self._noun.capitalize()}(security="sasl_ssl")'
            )
        return self._security.certificates(self.live_servers)

    def _hindering(self) -> Sequence[Fault]:
        return [fault for fault in self.faults if fault._hinders_brokers()]


def given_configs(configs: Mapping[str, object] | None, keywords: Mapping[str, object]) -> dict[str, str]:
    """Kafka's keys and their values, from a mapping and from keywords with underscores for dots. Errors: TypeError."""
    if configs is not None and not isinstance(configs, Mapping):
        raise TypeError(f"configs is a mapping of Kafka's keys to their values, not {configs!r:.100}")
    by_keyword = {key.replace("_", "."): config_text(value) for key, value in keywords.items()}
    return by_keyword | {key: config_text(value) for key, value in (configs or {}).items()}
