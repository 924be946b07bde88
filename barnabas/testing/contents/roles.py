"""Leaders of partitions, coordinators of groups, the controller, and whether replicas are in sync: a single broker has
all roles itself, as soon as it runs.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeVar

from barnabas.broker.cluster.metadata import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from barnabas.testing.contents.partitions import Led
from barnabas.testing.contents.settled import runtime, unsettled
from barnabas.testing.contents.topic import Topic, topic_name
from barnabas.testing.waiting.broker_clock import BrokerClock
from barnabas.testing.waiting.conditions import outliving
from barnabas.testing.waiting.timeouts import TIMEOUT_S, check_wait
from barnabas.wire.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.cluster.metadata import TopicMetadata
    from barnabas.broker.server import Broker as Server

T = TypeVar("T")

CREATE_AGAIN_S: Final = 1.0
POLL_S: Final = 0.02
FIRST_POLL_S: Final = 0.001
"""The first interval of checks whether all brokers know a change: usually they do a few ms later."""

IN_SYNC_S: Final = 2 * TIMEOUT_S


class Roles(ABC):
    """The roles of brokers for tests, and waits for them; part of `Broker` and `Cluster`. `timeout` is in seconds of
    real time; it ends in a TimeoutError with the actual state.
    """

    clock: BrokerClock
    _recheck_s: float | None = None
    """The interval at which waits check without a notification: brokers of a cluster start and stop."""

    _followers_may_lag = False
    """True if a test moves the clock: followers retry fetches by it."""

    # --- what the broker or cluster provides ------------------------------------------------------

    @abstractmethod
    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on its event loop and return its result."""

    @abstractmethod
    async def call_async(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Like `call`, from a coroutine on another event loop."""

    @abstractmethod
    def live_servers(self) -> Sequence[Server]:
        """The running brokers."""

    @abstractmethod
    async def _eventually(self, find: Callable[[], T | None], what: str) -> T:
        """The result of `find`, once it is not None; `what` describes its absence. Errors: TimeoutError; for a single
        broker, which does not wait: ApiError.
        """

    @abstractmethod
    def _hindering(self) -> Sequence[object]:
        """The faults that may hinder the communication between brokers, or access to their data."""

    @abstractmethod
    def _explained(self, error: TimeoutError, more: Iterable[str] = ()) -> TimeoutError:
        """The error with `more` and the state of the brokers added to its text."""

    # --- roles ------------------------------------------------------------------------------------

    def controller(self, timeout: float = TIMEOUT_S) -> int:
        """The number of the broker that is the controller; waits until there is one."""

        async def find() -> int:
            return (await self._until(self._controlling, timeout, "no broker is the controller")).node_id

        return self.call(find())

    def leader(self, topic: str | Topic, partition: int = 0, timeout: float = TIMEOUT_S) -> int:
        """The number of the broker that considers itself the leader of a partition; waits until one does.

        Errors: TimeoutError; ApiError UNKNOWN_TOPIC_OR_PARTITION for a partition that the topic does not have.
        """
        name = topic_name(topic)

        def find() -> int | None:
            led = self._led_by_its_word(name, partition)
            if led is not None:
                return led.server.node_id
            known = [found for server in self.live_servers() if (found := server.metadata.topic(name)) is not None]
            if known:  # of brokers with different states the one that knows most
                check_partition(max(known, key=lambda found: len(found.partitions)), partition)
            return None

        return self.call(self._until(find, timeout, f"no broker leads {name}-{partition}"))

    def coordinator(
        self, *, group: str | None = None, transactional_id: str | None = None, timeout: float = TIMEOUT_S
    ) -> int:
        """The number of the broker that considers itself the coordinator of a consumer group, or of the transactions of
        a transactional id; waits until one does. The first call makes brokers create the internal topic, as a client's
        request does.

        Errors: ValueError unless one of the two is given.
        """
        if (group is None) == (transactional_id is None):
            raise ValueError("the coordinator needs one name: pass group=... or transactional_id=...")
        key = (group if transactional_id is None else transactional_id) or ""
        topic = GROUP_METADATA_TOPIC if transactional_id is None else TRANSACTION_STATE_TOPIC
        asked_s = -inf

        def find() -> int | None:
            nonlocal asked_s
            servers = self.live_servers()
            if not servers:
                return None
            if all(topic not in server.metadata for server in servers):
                now_s = asyncio.get_running_loop().time()
                if now_s - asked_s >= CREATE_AGAIN_S:
                    asked_s = now_s
                    servers[0].services.auto_topics.create([topic])
                return None
            partition = runtime(servers[0], topic).partition_for(key)
            led = self._led_by_its_word(topic, partition)
            if led is None or runtime(led.server, topic).runner_at(partition) is None:
                return None
            return led.server.node_id

        return self.call(self._until(find, timeout, f"no broker coordinates {key}"))

    def wait_in_sync(self, timeout: float = IN_SYNC_S) -> None:
        """Wait until every partition has a leader and all its replicas are in its ISR, according to its leader, and
        every running broker knows it.
        """
        self.call(self._until_in_sync(timeout))

    def wait_heard(self, timeout: float = IN_SYNC_S) -> None:
        """Wait until every running broker knows the controller's decisions, and has executed them: all know the live
        brokers and the leaders, coordinators have loaded their logs, and replicas of running brokers are in sync,
        unless a fault hinders them. Methods here that start, stop, kill, elect and create wait for that themselves;
        this is for actions of others.
        """
        self.call(self._until_heard(timeout))

    async def _until_heard(self, timeout_s: float) -> None:
        try:
            await self._until(lambda: self._open_end(None) is None or None, timeout_s, "")
        except TimeoutError:
            error = TimeoutError(f"not all brokers are up to date after {timeout_s:g} s: {self._open_end(None)}")
            raise self._explained(error) from None

    async def _settle(self, topics: Collection[str] | None = None, *, in_faults: bool = False) -> None:
        """Like `wait_heard`, on the event loop, for these topics or for all; without `in_faults` not while a fault
        separates brokers. Errors: TimeoutError.
        """
        until_s = asyncio.get_running_loop().time() + IN_SYNC_S
        pause_s = FIRST_POLL_S
        while (in_faults or not self._hindering()) and (missing := self._open_end(topics)) is not None:
            if asyncio.get_running_loop().time() > until_s:
                error = TimeoutError(f"not all brokers are up to date: {missing} (waited {IN_SYNC_S:g} s)")
                raise self._explained(error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, POLL_S)

    def _open_end(self, topics: Collection[str] | None) -> str | None:
        in_sync = not self._followers_may_lag and not self._hindering()
        return unsettled(self.live_servers(), topics, in_sync=in_sync)

    async def _until_in_sync(self, timeout_s: float = IN_SYNC_S) -> None:
        try:
            await self._until(lambda: not self._lagging() or None, timeout_s, "")
        except TimeoutError:
            error = TimeoutError(f"not in sync after {timeout_s:g} s: {'; '.join(self._lagging()[:5])}")
            raise self._explained(error) from None

    def _lagging(self) -> list[str]:
        """The partitions that are not in sync, as each broker knows them: leaders know it before all others do."""
        told = {
            (server.node_id, topic.name, index): state
            for server in self.live_servers()
            for topic in server.metadata.topics()
            for index, state in topic.partitions.items()
        }
        lagging = [
            f"{name}-{index} at broker {broker}: leader {state.leader}, ISR {state.isr}"
            for (broker, name, index), state in told.items()
            if state.leader < 0 or set(state.isr) != set(state.replicas)
        ]
        led = [self._led_by_its_word(name, index) for name, index in {(name, index) for _, name, index in told}]
        return lagging + [
            f"{each.partition} at broker {each.server.node_id}: leader {each.server.node_id}, ISR {list(role.isr)}"
            for each in led
            if each is not None and set((role := each.partition.state).isr) != set(role.replicas)
        ]

    async def _until(self, find: Callable[[], T | None], timeout_s: float, what: str) -> T:
        """The result of `find`, once it is not None, also after brokers were replaced. Raises TimeoutError; ValueError
        and TypeError for an invalid timeout.
        """
        check_wait(timeout_s)
        with outliving():  # it uses the current brokers each time
            return await self._found(find, timeout_s, what)

    async def _found(self, find: Callable[[], T | None], timeout_s: float, what: str) -> T:
        """The result of `find`, once it is not None. Raises TimeoutError."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        while (found := find()) is None:
            if loop.time() > until_s:
                raise self._explained(TimeoutError(f"{what} (waited {timeout_s:g} s)"))
            await asyncio.sleep(POLL_S)
        return found

    # --- the brokers with a role, on the event loop -----------------------------------------------

    def _controlling(self) -> Server | None:
        """The broker that is the controller."""
        return next((server for server in self.live_servers() if server.controller.is_active), None)

    def _coordinating(self, group_id: str) -> Server | None:
        """The broker that coordinates a group; any broker while there is no coordinator yet."""
        for server in self.live_servers():
            try:
                server.groups.runtime.runner(group_id)
            except ApiError:
                continue
            return server
        if any(GROUP_METADATA_TOPIC in server.metadata for server in self.live_servers()):
            return None
        return next(iter(self.live_servers()), None)

    def _known_topic(self, name: str) -> TopicMetadata:
        """The metadata of a topic. Errors: ApiError UNKNOWN_TOPIC_OR_PARTITION."""
        for server in self.live_servers():
            if (found := server.metadata.topic(name)) is not None:
                return found
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")

    def _led(self, name: str, partition: int) -> Led | None:
        """A partition at its leader; None if it has no leader now. Errors: ApiError UNKNOWN_TOPIC_OR_PARTITION, and the
        error that prevents a single broker from serving it.
        """
        check_partition(self._known_topic(name), partition)
        return self._led_by_its_word(name, partition)

    def _led_by_its_word(self, name: str, partition: int) -> Led | None:
        """A partition, which may be unknown, at the broker that considers itself its leader. Of several the one with
        the highest leader epoch: the others do not know yet that they are deposed, such as a paused one.
        """
        leaders = [
            Led(server, hosted)
            for server in self.live_servers()
            if (hosted := server.replicas.partition(name, partition)) is not None and hosted.state.is_leader
        ]
        return max(leaders, key=lambda led: led.partition.state.leader_epoch, default=None)

    async def _leading(self, name: str, partition: int) -> Led:
        """A partition at its leader, as `_led`, once it has one. Errors: ApiError, TimeoutError."""
        return await self._eventually(lambda: self._led(name, partition), f"no broker leads {name}-{partition}")


def check_partition(topic: TopicMetadata, partition: int) -> None:
    """Errors: ApiError UNKNOWN_TOPIC_OR_PARTITION, with the existing partitions."""
    if partition not in topic.partitions:
        there_are = f"the partitions {min(topic.partitions)} to {max(topic.partitions)}"
        error = f"topic {topic.name} has {there_are}, not {partition!r:.100}"
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, error)
