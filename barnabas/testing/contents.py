"""Topics and groups of a broker, or of a cluster, under test: requests go to the leader of a partition, or the
coordinator of a group.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from barnabas.broker.cluster.metadata import GROUP_METADATA_TOPIC
from barnabas.testing import report
from barnabas.testing.group import Group, WantedGroup, find_group
from barnabas.testing.requests import ask
from barnabas.testing.topic import Led, Topic
from barnabas.testing.waiting import TIMEOUT_S, check_may_block, check_wait, wait_until, with_timeout
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from barnabas.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState

if TYPE_CHECKING:
    from barnabas.broker.cluster.metadata import TopicMetadata
    from barnabas.broker.server import Broker as Server
    from barnabas.testing.broker_clock import BrokerClock
    from barnabas.testing.interception import Owner

T = TypeVar("T")

ADMIN_TIMEOUT_MS: Final = round(TIMEOUT_S * 1000)
CREATE_TOPICS_VERSION: Final = 7
DELETE_TOPICS_VERSION: Final = 6
SMALL_INTERNAL_TOPICS: Final = {"offsets.topic.num.partitions": "3", "transaction.state.log.num.partitions": "3"}
"""Fewer partitions than Kafka's 50, each of which would be a directory to create and to remove for each test."""

BY_DEFAULT: Final = -1
"""The number of partitions, or replicas, in the broker's configuration."""


class Contents(ABC):
    """The operations of a test on topics and groups; part of `Broker` and `Cluster`.

    `_recheck_s` is the interval at which waits check without a notification: brokers of a cluster start and stop.
    """

    clock: BrokerClock
    _recheck_s: float | None = None
    _topics: dict[str, Topic]

    # --- what the broker or cluster provides ------------------------------------------------------

    @abstractmethod
    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on its event loop and return its result."""

    @abstractmethod
    async def call_async(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Like `call`, from a coroutine on another event loop."""

    @abstractmethod
    def _run_through(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Like `call`, also if none of a cluster's brokers runs, and while they are restarted."""

    @abstractmethod
    def live_servers(self) -> Sequence[Server]:
        """The running brokers."""

    def _absent(self) -> Sequence[int]:
        """The numbers of its brokers that do not run."""
        return []

    @abstractmethod
    async def _eventually(self, find: Callable[[], T | None], what: str) -> T:
        """The result of `find`, once it is not None; `what` describes its absence. Errors: TimeoutError; for a single
        broker, which does not wait: ApiError.
        """

    # --- topics -----------------------------------------------------------------------------------

    def topic(self, name: str) -> Topic:
        """A handle on a topic, which need not exist yet."""
        return self._topics.setdefault(name, Topic(self, name))

    def _check_created(self, error_code: int, message: str | None) -> None:
        """Raise the error of a CreateTopics response, if there is one: ApiError. For a timeout it names the faults that
        may be the cause.
        """
        hindering = [repr(fault) for fault in cast("Owner", self).faults if fault._hinders_brokers()]
        if error_code == ErrorCode.REQUEST_TIMED_OUT and hindering:
            message = f"{message or ErrorCode.REQUEST_TIMED_OUT.name}; there is {', '.join(hindering)}"
        check(error_code, message)

    def delete_topic(self, name: str) -> None:
        """Delete a topic; it is deleted on return.

        Errors: ApiError UNKNOWN_TOPIC_OR_PARTITION, TOPIC_DELETION_DISABLED.
        """

        async def delete() -> None:
            request = DeleteTopicsRequest(timeout_ms=ADMIN_TIMEOUT_MS, topics=[DeleteTopicState(name=name)])
            controller = await self._eventually(self._controlling, "no broker is the controller")
            [result] = (await ask(controller, request, DELETE_TOPICS_VERSION)).responses
            check(result.error_code, result.error_message)
            others = [server for server in self.live_servers() if server is not controller]
            if others:
                await self._eventually(
                    lambda: all(name not in server.metadata for server in others) or None,
                    f"not every broker has forgotten {name}",
                )

        self.call(delete())

    def topic_names(self) -> list[str]:
        """The names of the topics, without Kafka's internal ones."""

        async def names() -> list[str]:
            known = {topic.name: topic for server in self.live_servers() for topic in server.metadata.topics()}
            return sorted(name for name, topic in known.items() if not topic.is_internal)

        return self.call(names())

    # --- groups -----------------------------------------------------------------------------------

    def group(self, group_id: str) -> Group:
        """A consumer group in its current state; its state is "Dead" when it does not exist."""

        async def find() -> Group:
            server = await self._eventually(lambda: self._coordinating(group_id), f"no broker coordinates {group_id}")
            return find_group(server.groups, group_id, self._unread)

        return self.call(find())

    def wait_group(
        self,
        group_id: str,
        state: str = "Stable",
        *,
        members: int | None = None,
        offsets: Mapping[tuple[str | Topic, int], int] | None = None,
        lag: int | None = None,
        timeout: float = TIMEOUT_S,
    ) -> Group:
        """Wait until a group has this state and, if given, exactly this number of members; returns the group.

        `offsets` are, by (topic, partition), the minimum offsets that it has to have committed; `lag` is its maximum
        lag behind the ends of its partitions, see `Group`. Its clients learn the state a moment later: "Stable" means
        that every assignment is ready to be fetched. `timeout` is in seconds of real time.

        Errors: TimeoutError, with the actual state of the group; ValueError for a state that Kafka does not have, or
        that excludes this number of members, or offsets; RuntimeError inside a running event loop, which this would
        block: await `wait_group_async` there.
        """
        check_may_block("wait_group_async")
        check_wait(timeout)
        return self.call(self._wait_group(group_id, WantedGroup.of(state, members, offsets, lag), timeout))

    async def wait_group_async(
        self,
        group_id: str,
        state: str = "Stable",
        *,
        members: int | None = None,
        offsets: Mapping[tuple[str | Topic, int], int] | None = None,
        lag: int | None = None,
        timeout: float = TIMEOUT_S,
    ) -> Group:
        """Like `wait_group`, without blocking the event loop that it is awaited on."""
        check_wait(timeout)
        return await self.call_async(self._wait_group(group_id, WantedGroup.of(state, members, offsets, lag), timeout))

    async def _wait_group(self, group_id: str, wanted: WantedGroup, timeout_s: float) -> Group:
        def now() -> Group:
            server = self._coordinating(group_id)
            return Group.dead(group_id) if server is None else find_group(server.groups, group_id, self._unread)

        def reached() -> Group | None:
            group = now()
            return group if wanted.is_met(group) else None

        def listeners() -> Iterator[set[Callable[[], None]]]:
            return (server.groups.runtime.listeners for server in self.live_servers())

        try:
            waiting = wait_until(reached, listeners, self._recheck_s)
            return await with_timeout(waiting, timeout_s, lambda: wanted.not_met(now()))
        except TimeoutError as error:
            raise report.explained(error, cast("Owner", self)) from None

    def _unread(self, topic: str, partition: int, offset: int | None) -> int | None:
        led = self._led_by_its_word(topic, partition)
        if led is None:
            return None
        log = led.partition.log
        return max(0, log.high_watermark - (log.log_start_offset if offset is None else offset))

    # --- the brokers to use, on the event loop ----------------------------------------------------

    def report(self) -> str:
        """A report in lines: topics, groups, transactions, faults, the last recorded requests, and the log; part of the
        error of a wait that timed out. Errors: RuntimeError when nothing runs.
        """

        async def tell() -> str:
            return report.describe(cast("Owner", self))

        # Also while brokers are restarted: the report may show why that does not finish.
        return (self._run_through if self.live_servers() else self.call)(tell())

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

    # --- shared by tests --------------------------------------------------------------------------

    @cached_property
    def _shared_topics(self) -> list[str]:
        """The names of topics that pytest's fixtures have created here for more than one test."""
        return []

    def _check_may_be_reset(self, verb: str = "reset", kept: Collection[str] = ()) -> None:
        """Errors: RuntimeError while several tests share topics that are not `kept`: the others would lose them."""
        if lost := [name for name in self._shared_topics if name not in kept]:
            shared = ", ".join(lost)
            raise RuntimeError(
                f"kafka_broker cannot be {verb} while several tests share {shared}: make them for each test "
                "(kafka_topics), or take a broker of the test's own (kafka_broker_factory)"
            )


def topic_creation(
    name: str, partitions: int | None, replication_factor: int | None, configs: Mapping[str, object] | None
) -> CreateTopicsRequest:
    """A request that creates one topic, of version CREATE_TOPICS_VERSION; None is the broker's default."""
    wanted = [CreatableTopicConfig(name=key, value=config_text(value)) for key, value in (configs or {}).items()]
    topic = CreatableTopic(
        name=name,
        num_partitions=BY_DEFAULT if partitions is None else partitions,
        replication_factor=BY_DEFAULT if replication_factor is None else replication_factor,
        configs=wanted,
    )
    return CreateTopicsRequest(topics=[topic], timeout_ms=ADMIN_TIMEOUT_MS)


def check_partition(topic: TopicMetadata, partition: int) -> None:
    """Errors: ApiError UNKNOWN_TOPIC_OR_PARTITION, with the existing partitions."""
    if partition not in topic.partitions:
        there_are = f"the partitions {min(topic.partitions)} to {max(topic.partitions)}"
        error = f"topic {topic.name} has {there_are}, not {partition!r:.100}"
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, error)


def check(error_code: int, message: str | None) -> None:
    """Raise ApiError for an error code in a response; nothing for NONE."""
    if error_code:
        raise ApiError(ErrorCode.of(error_code), message or "")


def of_another_process() -> RuntimeError:
    """The error in a process that was forked from the one of the broker, or the cluster."""
    return RuntimeError("this runs in the process that started it: one that was forked has its address, and no more")


def given_configs(configs: Mapping[str, object] | None, keywords: Mapping[str, object]) -> dict[str, str]:
    """Kafka's keys and their values, from a mapping and from keywords with underscores for dots. Errors: TypeError."""
    if configs is not None and not isinstance(configs, Mapping):
        raise TypeError(f"configs is a mapping of Kafka's keys to their values, not {configs!r:.100}")
    by_keyword = {key.replace("_", "."): config_text(value) for key, value in keywords.items()}
    return by_keyword | {key: config_text(value) for key, value in (configs or {}).items()}


def config_text(value: object) -> str:
    """A configuration value as it is written in Kafka's files."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(map(config_text, value))
    return str(value)
