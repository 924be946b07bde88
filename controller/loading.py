"""Loads the whole cluster from its znodes, as a new controller does.

*Source*: kafka 3.9.1 `KafkaController.initializeControllerContext`, `fetchTopicDeletionsInProgress` and
`processTopicIds`.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from barnabas.controller import znodes
from barnabas.controller.coordination.interface import CoordinationStore, Delete, SetData, Stat, Watcher
from barnabas.controller.plan import OperationGroup, parent_paths, state_creations, state_update
from barnabas.controller.state import (
    NO_ZNODE,
    NOBODY,
    BrokerRegistration,
    ClusterState,
    PartitionState,
    TopicPartition,
    TopicState,
)

logger = logging.getLogger(__name__)


class LoadedCluster(NamedTuple):
    """The loaded cluster, and the writes that complete interrupted operations; `cluster` already includes them.

    `outlived` are the partitions whose leader has died and registered again since its election; `unproven` maps
    partitions to ISR members that registered since then and may lack records. `alone` maps partitions with an ISR of
    one, for which the last replica to leave is known, to the zxids at which their states were written. `left_out` are
    the topics whose znode cannot be read: brokers have logs of them.
    """

    cluster: ClusterState
    repairs: tuple[OperationGroup, ...]
    outlived: frozenset[TopicPartition]
    unproven: Mapping[TopicPartition, Sequence[int]]
    alone: Mapping[TopicPartition, int]
    left_out: tuple[str, ...]


class LoadedStates(NamedTuple):
    """Topics with the states of their partitions, the writes that restore the states of `restored` partitions, and, as
    in `LoadedCluster`, the partitions that are `outlived`, `unproven` and `alone`.
    """

    topics: list[TopicState]
    repairs: list[OperationGroup]
    outlived: list[TopicPartition]
    unproven: dict[TopicPartition, list[int]]
    alone: dict[TopicPartition, int]
    restored: list[TopicPartition]


async def load_cluster(
    store: CoordinationStore,
    new_topic_id: Callable[[], bytes],
    watcher: Watcher | None = None,
    known: Mapping[str, TopicState] = MappingProxyType({}),
    lives: Mapping[int, int] = MappingProxyType({}),
) -> LoadedCluster:
    """Load brokers, topics, partition states and the deletion queue; the watcher is called for new topics, changes of
    topics, and new entries of the queue.

    A topic without an id (from before Kafka 2.8) gets one. Entries of the deletion queue without a topic are dropped:
    the topic was deleted before. An unreadable znode is rewritten from the `known` state, else logged and left out.
    `lives` contains the epochs of brokers that have registered again since.

    Raises: CoordinationError.
    """
    repairs: list[OperationGroup] = []
    topics: list[TopicState] = []
    left_out: list[str] = []
    found = await _children_with_data(store, znodes.TOPICS, watcher)
    for name, payload, stat in found:
        try:
            assignment = znodes.decode_topic(name, payload)
        except znodes.DamagedZnode as error:
            if name not in known:
                logger.error("topic %s is left out: %s", name, error)
                left_out.append(name)
                continue
            topics.append(known[name]._replace(partitions={}))
            repairs.append(rewritten(known[name], stat.version, error))
            continue
        topic_id = assignment.topic_id
        if topic_id is None:
            topic_id = new_topic_id()
            identified = znodes.encode_topic(topic_id, assignment.partitions)
            repairs.append((SetData(znodes.topic_path(name), identified, stat.version),))
        topics.append(TopicState(name, topic_id, assignment.partitions))
    queued = await store.get_children(znodes.DELETE_TOPICS, watcher)
    existing = {name for name, _, _ in found}
    repairs += [(Delete(znodes.delete_topic_path(name)),) for name in queued if name not in existing]
    brokers = {broker.broker_id: broker for broker in await _brokers(store)}
    began = {broker_id: broker.epoch for broker_id, broker in brokers.items()}
    loaded = await with_states(store, topics, known, {**began, **lives}, brokers)
    cluster = ClusterState(
        brokers=brokers,
        topics={topic.name: topic for topic in loaded.topics},
        deleting=frozenset({topic.name for topic in loaded.topics}.intersection(queued)),
    )
    return LoadedCluster(
        cluster,
        (*repairs, *loaded.repairs),
        frozenset(loaded.outlived),
        loaded.unproven,
        loaded.alone,
        tuple(left_out),
    )


def rewritten(topic: TopicState, version: int, error: znodes.DamagedZnode) -> OperationGroup:
    """The write that repairs a topic's damaged znode."""
    logger.error("topic %s is written anew: %s", topic.name, error)
    return (SetData(znodes.topic_path(topic.name), znodes.encode_topic(topic.topic_id, topic.assignments), version),)


async def _brokers(store: CoordinationStore) -> list[BrokerRegistration]:
    found = await _children_with_data(store, znodes.BROKER_IDS)
    ids = {name: broker_id for name, _, _ in found if (broker_id := znodes.broker_id_of(name)) is not None}
    return [registered(ids[name], payload, stat) for name, payload, stat in found if name in ids]


def registered(broker_id: int, payload: bytes, stat: Stat) -> BrokerRegistration:
    """A broker's registration; if it cannot be read, one without details."""
    try:
        return znodes.decode_broker(broker_id, payload, stat.czxid)
    except znodes.DamagedZnode as error:
        logger.error("the registration of broker %d cannot be read: %s", broker_id, error)
        return BrokerRegistration(broker_id, (), epoch=stat.czxid)


async def with_states(
    store: CoordinationStore,
    topics: Iterable[TopicState],
    known: Mapping[str, TopicState] = MappingProxyType({}),
    lives: Mapping[int, int] = MappingProxyType({}),
    brokers: Mapping[int, BrokerRegistration] = MappingProxyType({}),
) -> LoadedStates:
    """The topics with the states of their partitions, read together, and the writes that restore deleted or damaged
    states from their `known` ones, but in a new leader epoch: the znode's version, which is the partition epoch, may
    have restarted at 0, and the leader would take that for an older state. A state that is not known is lost: the
    partition has no leader until its replicas have reported their logs (`operations/lost_states.py`).

    A broker whose registration, with an epoch in `lives`, is newer than the state that makes it leader was elected in a
    former life: zxids order both (`znodes.decided_zxid`). The same order applies to `brokers` that may lack records:
    one that joined the ISR since then has them.

    Raises: CoordinationError.
    """
    topics = list(topics)
    wanted = [(topic, partition) for topic in topics for partition in topic.assignments]
    answers = await store.get_many([znodes.partition_state_path(topic.name, partition) for topic, partition in wanted])
    states: dict[TopicPartition, PartitionState] = {}
    deleted: dict[TopicPartition, PartitionState] = {}
    missing: list[TopicPartition] = []
    garbled: dict[TopicPartition, OperationGroup] = {}
    outlived: list[TopicPartition] = []
    unproven: dict[TopicPartition, list[int]] = {}
    alone: dict[TopicPartition, int] = {}
    lacking = {member: broker for member, broker in brokers.items() if broker.may_lack_records or broker.damaged}
    for (topic, partition), answer in zip(wanted, answers, strict=True):
        key = (topic.name, partition)
        before = _known_state(known.get(topic.name), topic, partition)
        if answer is None:
            if before is None:
                missing.append(key)
            elif before.is_lost:
                states[key] = before._replace(partition_epoch=NO_ZNODE)
            else:
                states[key] = deleted[key] = before._replace(leader_epoch=before.leader_epoch + 1, partition_epoch=0)
            continue
        try:
            states[key] = znodes.decode_partition_state(*key, answer[0], answer[1].version)
            if len(states[key].isr) == 1 and states[key].last_to_leave != NOBODY:
                alone[key] = answer[1].mzxid
            decided_zxid = znodes.decided_zxid(answer[0], answer[1].mzxid)
            if lives.get(states[key].leader, -1) > decided_zxid:
                outlived.append(key)
            were_in_sync = (*states[key].isr, *states[key].left_isr) if lacking else ()
            for member in were_in_sync:
                if member in lacking and lacking[member].may_lack(key) and lives[member] > decided_zxid:
                    unproven.setdefault(key, []).append(member)
        except znodes.DamagedZnode as error:
            version = answer[1].version
            if before is None or before.is_lost:
                logger.error("the state of %s-%d is lost: %s", *key, error)
                states[key] = znodes.lost_partition_state(version)
                continue
            logger.error("the state of %s-%d is written anew: %s", *key, error)
            found = before._replace(partition_epoch=version)
            states[key] = found._replace(leader_epoch=found.leader_epoch + 1, partition_epoch=version + 1)
            garbled[key] = (state_update(*key, found, states[key]),)
    repairs = [*garbled.values(), *(await _restoration(store, deleted) if deleted else [])]
    for key in await _had_states(store, missing) if missing else []:
        states[key] = znodes.lost_partition_state()
        logger.error("the state of %s-%d is lost: its znode was deleted", *key)
    complete = [
        topic.with_partitions({p: states[topic.name, p] for p in topic.assignments if (topic.name, p) in states})
        for topic in topics
    ]
    return LoadedStates(complete, repairs, outlived, unproven, alone, [*garbled, *deleted])


def _known_state(known: TopicState | None, topic: TopicState, partition: int) -> PartitionState | None:
    """The known state of a partition, unless it belongs to another topic of the name."""
    return known.partitions.get(partition) if known is not None and known.topic_id == topic.topic_id else None


async def _had_states(store: CoordinationStore, missing: Sequence[TopicPartition]) -> list[TopicPartition]:
    """The partitions without a state that may have had one: a znode above it has lost a child, according to its
    cversion and number of children. The others are new, also if their creation was interrupted. (Kafka takes all for
    new.)
    """
    parents = [
        [znodes.topic_path(name), znodes.partitions_path(name), znodes.partition_path(name, index)]
        for name, index in missing
    ]
    paths = list(dict.fromkeys(path for each in parents for path in each))
    answers = dict(zip(paths, await store.get_many(paths), strict=True))
    poorer = {path for path, answer in answers.items() if answer and answer[1].cversion > answer[1].num_children}
    return [key for key, each in zip(missing, parents, strict=True) if not poorer.isdisjoint(each)]


async def _restoration(
    store: CoordinationStore, deleted: Mapping[TopicPartition, PartitionState]
) -> list[OperationGroup]:
    """The writes that recreate deleted partition states. If another controller deleted them, with the topic, this one
    is deposed, and its writes are refused.
    """
    logger.warning(
        "the states of %d partitions, %s-%d first, are gone: writing them anew", len(deleted), *next(iter(deleted))
    )
    paths = parent_paths(deleted)
    existing = {path for path, answer in zip(paths, await store.get_many(paths), strict=True) if answer is not None}
    return state_creations(deleted, existing)


async def _children_with_data(
    store: CoordinationStore, parent: str, watcher: Watcher | None = None
) -> list[tuple[str, bytes, Stat]]:
    names = await store.get_children(parent, watcher)
    answers = await store.get_many([f"{parent}/{name}" for name in names], watcher)
    return [(name, *answer) for name, answer in zip(names, answers, strict=True) if answer is not None]
