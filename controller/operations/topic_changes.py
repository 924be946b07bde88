"""Changes by others in the cluster's znodes: created topics, added partitions and deletions requested by tools.

A watch fires once for a changed znode, without the change. So after a change every topic that may have changed since it
was last read is read again and compared with the known one. The controller's own writes fire watches, too; they contain
nothing new.

*Source*: kafka 3.9.1 `KafkaController.processTopicChange`, `processPartitionModifications`, `processTopicDeletion`.
"""

import logging
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from barnabas.controller import requests, znodes
from barnabas.controller.context import ControllerContext
from barnabas.controller.coordination.interface import CoordinationStore, Delete, SetData, WatchedEvent
from barnabas.controller.loading import rewritten, with_states
from barnabas.controller.operations.deletion import delete_queued, drop_unwanted_deletions
from barnabas.controller.operations.elections import bring_online
from barnabas.controller.plan import OperationGroup
from barnabas.controller.state import ClusterState, TopicPartition, TopicState

logger = logging.getLogger(__name__)


class Changes(NamedTuple):
    """The changes by others. `cluster` contains the new topics and partitions, and lacks those that are `gone`.

    `queued` are names in the deletion queue that the controller has not processed; `repairs` are writes that give new
    topics an id, and that repair damaged znodes, including those of `restored` partitions, which are in a new epoch.
    """

    cluster: ClusterState
    new_topics: tuple[str, ...]
    added: tuple[TopicPartition, ...]
    gone: tuple[str, ...]
    queued: tuple[str, ...]
    repairs: tuple[OperationGroup, ...]
    restored: tuple[TopicPartition, ...]


class ClusterWatch:
    """Reads topics and the deletion queue and registers itself as a watcher: `on_change` is called once, for the first
    change after each `read`, and after each `begin`, when a take-over loads everything instead.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._is_reported = False
        self._up_to_date: set[str] = set()
        self._changed: set[str] = set()
        """Topics that have changed since the last read began: their read data may be older, and their watch has fired.
        """
        self.left_out: set[str] = set()
        """Topics whose znode could not be read."""

    def __call__(self, event: WatchedEvent) -> None:
        """Called by the store after a change."""
        if event.path.startswith(znodes.TOPICS + "/"):
            name = event.path.removeprefix(znodes.TOPICS + "/")
            self._up_to_date.discard(name)
            self._changed.add(name)
        if not self._is_reported:
            self._is_reported = True
            self._on_change()

    def begin(self) -> None:
        """Everything is read from here on. Changes reported before do not count: a broker that is not the controller
        ignores them.
        """
        self._is_reported = False
        self._changed.clear()

    def loaded(self, topics: Iterable[str], left_out: Iterable[str]) -> None:
        """Continue after a take-over, which has loaded everything since `begin` and set this watcher at each of the
        topics, including those that are `left_out`.
        """
        self.left_out = set(left_out)
        self._up_to_date = self.left_out.union(topics) - self._changed

    async def read(self, store: CoordinationStore, cluster: ClusterState, new_topic_id: Callable[[], bytes]) -> Changes:
        """Compare the store with the known cluster. A damaged topic is logged, and left out if it is new.

        Raises: CoordinationError.
        """
        self.begin()
        names = await store.get_children(znodes.TOPICS, self)
        outdated = [name for name in names if name not in self._up_to_date]
        self.left_out &= set(names) - set(outdated)
        answers = await store.get_many([znodes.topic_path(name) for name in outdated], self)
        changed: dict[str, TopicState] = {}
        repairs: list[OperationGroup] = []
        for name, answer in zip(outdated, answers, strict=True):
            if answer is None:
                continue  # deleted since; its watch, or that of its parent, fires
            if name not in self._changed:
                self._up_to_date.add(name)
            payload, stat = answer
            try:
                topic, repair = _topic(name, payload, stat.version, cluster.topics.get(name), new_topic_id)
            except znodes.DamagedZnode as error:
                if name in cluster.topics:
                    repairs.append(rewritten(cluster.topics[name], stat.version, error))
                else:
                    logger.error("topic %s is left out: %s", name, error)
                    self.left_out.add(name)
                continue
            if topic is not None:
                changed[name] = topic
                repairs += repair
        gone = tuple(name for name in cluster.topics if name not in set(names))
        added = [
            (name, partition)
            for name, topic in changed.items()
            for partition in topic.assignments
            if name not in cluster.topics or partition not in cluster.topics[name].assignments
        ]
        queue = await store.get_children(znodes.DELETE_TOPICS, self)
        loaded = await with_states(store, changed.values(), cluster.topics)
        return Changes(
            cluster.with_topics(loaded.topics).without_topics(gone),
            tuple(name for name in changed if name not in cluster.topics),
            tuple(added),
            gone,
            tuple(name for name in queue if name not in cluster.deleting),
            (*repairs, *loaded.repairs),
            tuple(loaded.restored),
        )


def _topic(
    name: str, payload: bytes, version: int, known: TopicState | None, new_topic_id: Callable[[], bytes]
) -> tuple[TopicState | None, list[OperationGroup]]:
    """The topic with its changes, or None if there are none; and the write that gives it an id if it has none.

    Raises: DamagedZnode.
    """
    found = znodes.decode_topic(name, payload)
    if known is None:
        if found.topic_id is not None:
            return TopicState(name, found.topic_id, found.partitions), []
        topic_id = new_topic_id()
        write = SetData(znodes.topic_path(name), znodes.encode_topic(topic_id, found.partitions), version)
        return TopicState(name, topic_id, found.partitions), [(write,)]
    if found.topic_id not in (None, known.topic_id):
        logger.error("topic %s was replaced by another of the same name, not by the controller: ignored", name)
        return None, []
    new = {p: assignment for p, assignment in found.partitions.items() if p not in known.assignments}
    return (known._replace(assignments={**known.assignments, **new}), []) if new else (None, [])


class TopicChanges:
    """Processes changes by others of topics and of the deletion queue: `watch` is set when the cluster is taken over,
    and again by each `follow`, which the controller's task calls after a change.
    """

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self.watch = ClusterWatch(lambda: context.events.submit(self.follow))

    async def follow(self) -> None:
        """Process new topics, added partitions and requested deletions.

        Raises: Deposed, CoordinationError.
        """
        context = self._context
        changes = await self.watch.read(context.store, context.cluster, context.new_topic_id)
        context.cluster = changes.cluster
        context.left_out = frozenset(self.watch.left_out)
        if changes.gone:
            tell_of_gone(changes.gone)
            context.machine.forget(changes.gone)
            context.deletions.ended(changes.gone)
        if changes.added:
            logger.info("another program has added %d partition(s)", len(changes.added))
            context.machine.add(context.cluster, changes.added)
            await context.configs.refresh("topics", changes.new_topics)
            await bring_online(context, (*changes.added, *changes.restored), changes.repairs, requests.INCREMENTAL)
        elif changes.repairs:
            await context.election.write(changes.repairs)
        if changes.queued:
            await self._follow_deletions(changes.queued)

    async def _follow_deletions(self, queued: Collection[str]) -> None:
        context = self._context
        unknown = [name for name in queued if name not in context.cluster.topics]
        known = [name for name in queued if name in context.cluster.topics]
        context.cluster = context.cluster.with_deleting(known)
        dropped = [(Delete(znodes.delete_topic_path(name)),) for name in unknown]
        await context.election.write([*dropped, *drop_unwanted_deletions(context)])
        if context.cluster.deleting:
            await delete_queued(context, [name for name in known if name in context.cluster.deleting])


def tell_of_gone(names: Collection[str]) -> None:
    """Log the topics that others have deleted directly from the store."""
    if names:
        logger.warning("another program has deleted the znodes of %s: their logs stay", ", ".join(names))
