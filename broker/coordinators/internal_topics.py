"""The internal topics, `__consumer_offsets` and `__transaction_state`: their creation and their coordinators.

The coordinators are notified when this broker begins or ceases to lead one of their partitions.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from barnabas.broker.cluster.metadata import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, MetadataCache, TopicMetadata
from barnabas.controller.topics import NewTopic

if TYPE_CHECKING:
    from barnabas.broker.configuration.config import BrokerConfig
    from barnabas.broker.configuration.topics import TopicConfigs
    from barnabas.broker.coordinators.runtime import CoordinatorRuntime
    from barnabas.broker.replication.partition import Partition


log = logging.getLogger(__name__)

_WAITING: Final = {
    GROUP_METADATA_TOPIC: ("Consumer groups", "offsets.topic.replication.factor"),
    TRANSACTION_STATE_TOPIC: ("Transactions", "transaction.state.log.replication.factor"),
}
"""The users of an internal topic, and the key with its number of replicas."""


class Coordinator(NamedTuple):
    """The coordinator of an internal topic: the runtime of its partitions, and what it does when other topics are
    deleted, whose names it is given."""

    topic: str
    runtime: CoordinatorRuntime[Any]
    on_topics_deleted: Callable[[list[str]], Awaitable[object]] | None = None


class InternalTopics:
    """Describes the internal topics, and notifies their coordinators of their partitions: call `attach` before the
    controller assigns any. A broker that `is_alone` has a metadata store of its own, which no other broker can join.
    """

    def __init__(
        self, config: BrokerConfig, topic_configs: TopicConfigs, metadata: MetadataCache, *, is_alone: bool = True
    ) -> None:
        self._topic_configs = topic_configs
        self._metadata = metadata
        self._is_alone = is_alone
        self._told: set[str] = set()
        self._sizes = {
            GROUP_METADATA_TOPIC: (config.offsets_topic_num_partitions, config.offsets_topic_replication_factor),
            TRANSACTION_STATE_TOPIC: (
                config.transaction_state_log_num_partitions,
                config.transaction_state_log_replication_factor,
            ),
        }
        self._coordinators: dict[str, Coordinator] = {}

    def attach(self, coordinators: Sequence[Coordinator]) -> None:
        """Set the coordinators of these topics."""
        self._coordinators = {coordinator.topic: coordinator for coordinator in coordinators}

    def new_topic(self, name: str) -> NewTopic | None:
        """The properties with which to create an internal topic; None for all other names. A broker that is alone
        creates no more replicas than there are brokers.
        """
        if name not in self._sizes:
            return None
        partition_count, replication_factor = self._sizes[name]
        if self._is_alone:
            replication_factor = min(replication_factor, max(1, len(self._metadata.broker_ids())))
        return NewTopic(
            name,
            partition_count=partition_count,
            replication_factor=replication_factor,
            configs=self._topic_configs.internal_topic_configs(name),
            is_needed=True,
        )

    def waits_for_brokers(self, name: str) -> str | None:
        """The reason why a topic cannot be created before more brokers are alive, at least as many as its replicas;
        None if it can. Logged in one line, once until there are enough.
        """
        if self._is_alone or name not in self._sizes:
            return None
        _, replication_factor = self._sizes[name]
        alive = len(self._metadata.broker_ids())
        if alive >= replication_factor:
            self._told.discard(name)
            return None
        what, key = _WAITING[name]
        why = (
            f"{what} wait: {name} is to have {replication_factor} replicas, alive brokers: {alive} "
            f"(a smaller cluster sets {key}={max(alive, 1)})"
        )
        if name not in self._told:
            self._told.add(name)
            log.warning("%s", why)
        return why

    def elected(self, partition: Partition) -> None:
        """Notify a partition's coordinator that this broker leads it, from now on or in a new epoch; partitions of
        other topics have none."""
        coordinator = self._coordinators.get(partition.topic)
        if coordinator is not None:
            coordinator.runtime.on_elected(partition.index, partition.state.leader_epoch)

    def resigned(self, partition: Partition) -> None:
        """Notify a partition's coordinator that this broker no longer leads it."""
        coordinator = self._coordinators.get(partition.topic)
        if coordinator is not None:
            coordinator.runtime.on_resigned(partition.index)

    async def metadata_updated(self, removed: Sequence[TopicMetadata]) -> None:
        """The controller has updated the metadata of topics; `removed` ones are gone."""
        for coordinator in self._coordinators.values():
            topic = self._metadata.topic(coordinator.topic)
            if topic is not None:
                coordinator.runtime.on_topic(topic.topic_id, topic.partition_count)
        for coordinator in self._coordinators.values() if removed else ():
            if coordinator.on_topics_deleted is not None:
                await coordinator.on_topics_deleted([topic.name for topic in removed])
