"""Topics and groups of a broker, or of a cluster, under test: requests go to the leader of a partition, or the
coordinator of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from barnabas.testing.contents.group import Group, WantedGroup, find_group
from barnabas.testing.contents.requests import ask
from barnabas.testing.contents.roles import Roles
from barnabas.testing.contents.topic import Topic
from barnabas.testing.waiting.conditions import wait_until
from barnabas.testing.waiting.timeouts import TIMEOUT_S, check_may_block, check_wait, with_timeout
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from barnabas.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState

ADMIN_TIMEOUT_MS: Final = round(TIMEOUT_S * 1000)
CREATE_TOPICS_VERSION: Final = 7
DELETE_TOPICS_VERSION: Final = 6
BY_DEFAULT: Final = -1
"""The number of partitions, or replicas, in the broker's configuration."""


class Contents(Roles):
    """The operations of a test on topics and groups; part of `Broker` and `Cluster`."""

    _topics: dict[str, Topic]

    # --- topics -----------------------------------------------------------------------------------

    def topic(self, name: str) -> Topic:
        """A handle on a topic, which need not exist yet."""
        return self._topics.setdefault(name, Topic(self, name))

    def _create_topic(
        self, name: str, partitions: int | None, replication_factor: int | None, configs: Mapping[str, object] | None
    ) -> Topic:
        """Create a topic; None is the broker's default. Errors: ApiError, TimeoutError."""
        request = topic_creation(name, partitions, replication_factor, configs)

        async def create() -> None:
            controller = await self._eventually(self._controlling, "no broker is the controller")
            [result] = (await ask(controller, request, CREATE_TOPICS_VERSION)).topics
            self._check_created(result.error_code, result.error_message)
            await self._until_known(name)

        self.call(create())
        return self.topic(name)

    async def _until_known(self, topic: str) -> None:
        """Wait until all running brokers know a new topic: a single one does at once. Errors: TimeoutError."""

    def _check_created(self, error_code: int, message: str | None) -> None:
        """Raise the error of a CreateTopics response, if there is one: ApiError. For a timeout it names the faults that
        may be the cause.
        """
        if error_code == ErrorCode.REQUEST_TIMED_OUT and (hindering := self._hindering()):
            message = f"{message or ErrorCode.REQUEST_TIMED_OUT.name}; there is {', '.join(map(repr, hindering))}"
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
            raise self._explained(error) from None

    def _unread(self, topic: str, partition: int, offset: int | None) -> int | None:
        led = self._led_by_its_word(topic, partition)
        if led is None:
            return None
        log = led.partition.log
        return max(0, log.high_watermark - (log.log_start_offset if offset is None else offset))


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


def check(error_code: int, message: str | None) -> None:
    """Raise ApiError for an error code in a response; nothing for NONE."""
    if error_code:
        raise ApiError(ErrorCode.of(error_code), message or "")


def config_text(value: object) -> str:
    """A configuration value as it is written in Kafka's files."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(map(config_text, value))
    return str(value)
