"""Taking over the cluster: everything is loaded, partitions without a leader get one, and every broker receives its
complete state. A new controller does so, and one that does not know the outcome of its last decision.

Interrupted work is continued: deletions, reassignments, and requests of tools in znodes.

*Source*: kafka 3.9.1 `KafkaController.onControllerFailover`.
"""

import logging
from collections.abc import Mapping

from barnabas.controller import requests, znodes
from barnabas.controller.bootstrap import create_missing, identity
from barnabas.controller.context import ControllerContext
from barnabas.controller.coordination.interface import WatchedEvent
from barnabas.controller.loading import LoadedCluster, load_cluster
from barnabas.controller.operations.announcement import tell_who_lives
from barnabas.controller.operations.broker_changes import BrokerChanges
from barnabas.controller.operations.deletion import delete_queued, drop_unwanted_deletions
from barnabas.controller.operations.elections import bring_online
from barnabas.controller.operations.last_to_leave import forget_missed
from barnabas.controller.operations.topic_changes import TopicChanges, tell_of_gone
from barnabas.controller.plan import OperationGroup
from barnabas.controller.registration import Registration
from barnabas.controller.state import TopicState

logger = logging.getLogger(__name__)


class TakeOver:
    """Loads the content of the store into the controller, and sets watches. Called by the controller's task, and by
    `Controller.start` before the task exists; its methods raise Deposed and CoordinationError.
    """

    def __init__(
        self, context: ControllerContext, own: Registration, broker_changes: BrokerChanges, topic_changes: TopicChanges
    ) -> None:
        self._context = context
        self._own = own
        self._broker_changes = broker_changes
        self._topic_changes = topic_changes
        self._loaded_epoch = 0
        """The controller epoch in which the cluster was last loaded."""

    async def run(self) -> None:
        """Take over the cluster."""
        context = self._context
        known = self._known()
        await self.restore()
        await self._broker_changes.follow()
        loaded = await self._load()
        await context.election.confirm()  # or brokers would receive, with an old epoch, decisions of a newer one
        repairs = [*loaded.repairs, *drop_unwanted_deletions(context)]
        brokers = context.brokers
        brokers.part_from(brokers.met)
        brokers.meet(context.cluster.brokers)
        if brokers.others:
            await self._begin_with_others()
            # Topics created by others came without a notification; elections need their overrides.
            ids = {topic.topic_id for topic in known.values()}
            new = [topic.name for topic in loaded.cluster.topics.values() if topic.topic_id not in ids]
            await context.configs.refresh("topics", new)
        if loaded.alone:
            repairs += await forget_missed(context, loaded.alone)
        repairs += self._shrink_isrs(loaded)
        everything = [(topic.name, partition) for topic, partition in context.cluster.partitions()]
        if context.cluster.deleting:
            await delete_queued(context, sorted(context.cluster.deleting))  # before their logs belong to no topic
        await bring_online(context, everything, repairs, requests.FULL)
        await self._follow_requests()
        await self._resume_reassignments()

    async def restore(self) -> None:
        """Create the fixed znodes that were deleted."""
        created = await self._context.configs.restore()
        created += await create_missing(self._context.store, identity(self._context.cluster_id))
        if created:
            logger.error("another program has deleted %s: created again", ", ".join(created))

    def _known(self) -> Mapping[str, TopicState]:
        """The topics that this controller knows from before. If another controller was elected since it last loaded
        them, they are outdated: leaders were elected, replicas left ISRs and topics were deleted, so nothing is
        restored from them.
        """
        context, election = self._context, self._context.election
        is_valid = self._loaded_epoch in (election.epoch, election.predecessor_epoch)
        return context.cluster.topics if is_valid else {}

    async def _load(self) -> LoadedCluster:
        """Load everything; from here on the controller decides on it.

        Partitions whose leader has died and registered again since need a new election: the election was in its
        former life.
        """
        context, own = self._context, self._own.broker
        known = self._known()
        lives = {own.broker_id: self._own.first_epoch}  # the process did not die when it registered again
        watch = self._topic_changes.watch
        watch.begin()
        loaded = await load_cluster(context.store, context.new_topic_id, watch, known, lives)
        watch.loaded(loaded.cluster.topics, loaded.left_out)
        tell_of_gone([name for name in known if name not in loaded.cluster.topics])
        live = {each: broker for each, broker in loaded.cluster.brokers.items() if context.brokers.reaches(each)}
        live[own.broker_id] = own
        self._loaded_epoch = context.election.epoch
        context.cluster = loaded.cluster._replace(brokers=live, shutting_down=context.cluster.still_stopping(live))
        context.machine.load(context.cluster, outlived=loaded.outlived)
        context.deletions.begin_anew(context.cluster.deleting)
        context.refusals.forget()
        context.log_ends.clear()
        context.left_out = frozenset(loaded.left_out)
        return loaded

    async def _begin_with_others(self) -> None:
        """There are several brokers: all have to know the live brokers before they receive their roles."""
        from barnabas.controller.operations.preferred_election import keep_balance

        keep_balance(self._context)
        await tell_who_lives(self._context, self._context.brokers.met)

    def _shrink_isrs(self, loaded: LoadedCluster) -> list[OperationGroup]:
        """Remove brokers from ISRs that may lack records, or died while there was no controller; returns the writes, in
        this order: after any of them a broker that may lack records is not doubted again."""
        writes: list[OperationGroup] = []
        if loaded.unproven:
            from barnabas.controller.operations.broker_lives import doubt

            writes += doubt(self._context, loaded.unproven)
        cluster = self._context.cluster
        states = (state for topic in cluster.topics.values() for state in topic.partitions.values())
        if any(member not in cluster.brokers for state in states for member in state.isr):
            from barnabas.controller.operations.broker_lives import end_absences

            writes += end_absences(self._context)
        return writes

    async def _follow_requests(self) -> None:
        """Execute the requests of tools in znodes, and watch for the next ones."""
        asked = [await self._context.store.exists(path, self._requests_changed) for path in znodes.REQUESTS]
        if any(asked):
            from barnabas.controller.operations.znode_requests import follow_requests

            await follow_requests(self._context)

    def _requests_changed(self, _event: WatchedEvent) -> None:
        self._context.events.submit(self._follow_requests)

    async def _resume_reassignments(self) -> None:
        """Continue the reassignments under way, about which all brokers are informed."""
        assignments = (a for topic in self._context.cluster.topics.values() for a in topic.assignments.values())
        if any(assignment.adding_replicas or assignment.removing_replicas for assignment in assignments):
            from barnabas.controller.operations.reassignment import advance

            await advance(self._context)
