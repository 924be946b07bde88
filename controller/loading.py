"""Reading the whole cluster from its znodes, as a new controller does.

*Source*: kafka 3.9.1 `KafkaController.initializeControllerContext`, `fetchTopicDeletionsInProgress` and
`processTopicIds`.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from barnabas.controller import znodes
from barnabas.controller.coordination.interface import CoordinationStore, Delete, SetData, Stat, Watcher
from barnabas.controller.plan import OperationGroup
from barnabas.controller.state import BrokerRegistration, ClusterState, TopicState


class LoadedCluster(NamedTuple):
    """The cluster as found, and the writes that mend what was left half-done; `cluster` already counts on them."""

    cluster: ClusterState
    repairs: tuple[OperationGroup, ...]


async def load_cluster(
    store: CoordinationStore, new_topic_id: Callable[[], bytes], watcher: Watcher | None = None
) -> LoadedCluster:
    """Read brokers, topics, partition states and the deletion queue; the watcher learns of new topics, of changes of
    topics, and of new entries of the queue.

    A topic without an id (from before Kafka 2.8) gets one. Entries of the deletion queue without a topic are dropped:
    the topic went before.

    Raises: DamagedZnode.
    """
    repairs: list[OperationGroup] = []
    topics: list[TopicState] = []
    found = await _children_with_data(store, znodes.TOPICS, watcher)
    for name, payload, stat in found:
        assignment = znodes.decode_topic(name, payload)
        topic_id = assignment.topic_id
        if topic_id is None:
            topic_id = new_topic_id()
            identified = znodes.encode_topic(topic_id, assignment.partitions)
            repairs.append((SetData(znodes.topic_path(name), identified, stat.version),))
        topics.append(TopicState(name, topic_id, assignment.partitions))
    queued = await store.get_children(znodes.DELETE_TOPICS, watcher)
    existing = {topic.name for topic in topics}
    repairs += [(Delete(znodes.delete_topic_path(name)),) for name in queued if name not in existing]
    cluster = ClusterState(
        brokers={broker.broker_id: broker for broker in await _brokers(store)},
        topics={topic.name: topic for topic in await with_states(store, topics)},
        deleting=frozenset(existing.intersection(queued)),
    )
    return LoadedCluster(cluster, tuple(repairs))


async def _brokers(store: CoordinationStore) -> list[BrokerRegistration]:
    found = await _children_with_data(store, znodes.BROKER_IDS)
    return [znodes.decode_broker(int(name), payload, stat.czxid) for name, payload, stat in found if name.isdecimal()]


async def with_states(store: CoordinationStore, topics: Iterable[TopicState]) -> list[TopicState]:
    """The topics with the states of their partitions, all read at once."""
    topics = list(topics)
    wanted = [(topic.name, partition) for topic in topics for partition in topic.assignments]
    answers = await store.get_many([znodes.partition_state_path(*partition) for partition in wanted])
    states = {
        (name, partition): znodes.decode_partition_state(name, partition, answer[0], answer[1].version)
        for (name, partition), answer in zip(wanted, answers, strict=True)
        if answer is not None
    }
    return [
        topic.with_partitions({p: states[topic.name, p] for p in topic.assignments if (topic.name, p) in states})
        for topic in topics
    ]


async def _children_with_data(
    store: CoordinationStore, parent: str, watcher: Watcher | None = None
) -> list[tuple[str, bytes, Stat]]:
    names = await store.get_children(parent, watcher)
    answers = await store.get_many([f"{parent}/{name}" for name in names], watcher)
    return [(name, *answer) for name, answer in zip(names, answers, strict=True) if answer is not None]
