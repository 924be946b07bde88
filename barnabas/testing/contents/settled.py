"""Whether the brokers of a cluster know the controller's decisions, and have executed them: all of them know the live
brokers and the leaders, coordinators have loaded their logs, and followers are in sync.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from barnabas.broker.cluster.metadata import GROUP_METADATA_TOPIC, INTERNAL_TOPICS
from barnabas.controller.state import NO_LEADER

if TYPE_CHECKING:
    from barnabas.broker.coordinators.runtime import CoordinatorRuntime
    from barnabas.broker.server import Broker as Server
    from barnabas.controller.state import ClusterState, PartitionState, TopicState


def unsettled(servers: Sequence[Server], topics: Collection[str] | None = None, *, in_sync: bool = True) -> str | None:
    """A decision that these brokers, all live ones, do not know or have not executed yet; None if there is none.

    `topics` restricts the check to these topics, without the list of live brokers; without `in_sync` followers may lag.
    """
    return next(_open_ends(servers, topics, in_sync), None) if servers else None


def _open_ends(servers: Sequence[Server], topics: Collection[str] | None, in_sync: bool) -> Iterator[str]:
    controllers = [server for server in servers if server.controller.is_active]
    if len(controllers) != 1:
        yield f"{len(controllers)} brokers are the controller"
        return
    context = controllers[0].controller.context
    if not context.cluster.brokers:
        yield f"broker {controllers[0].node_id} has not read the cluster yet"
    if topics is None:
        yield from _lives(servers, controllers[0])
        for server in servers:
            stale = {topic.name for topic in server.metadata.topics()} - context.cluster.topics.keys()
            yield from (f"broker {server.node_id} knows {name}" for name in stale - context.left_out)
    for topic in context.cluster.topics.values():
        if topic.name not in context.cluster.deleting and (topics is None or topic.name in topics):
            for server in servers:
                yield from _known(server, topic)
                yield from _obeyed(server, topic, context.cluster)
            if in_sync:
                yield from _followed(topic, context.cluster)


def _lives(servers: Sequence[Server], controlling: Server) -> Iterator[str]:
    """The live brokers, and the controller, as each broker knows them."""
    registered = controlling.controller.context.cluster.brokers
    living = sorted(server.node_id for server in servers)
    if sorted(registered) != living:
        yield f"brokers {living} live, and the controller knows {sorted(registered)}"
    for server in servers:
        known, node_id = server.metadata, server.node_id
        if node_id in registered and registered[node_id].epoch != server.controller.broker_epoch:
            yield f"broker {node_id} registers again"
        if not known.is_complete or known.controller_id != controlling.node_id or known.broker_ids() != living:
            yield f"broker {node_id} knows brokers {known.broker_ids()} and controller {known.controller_id}"


def _known(server: Server, topic: TopicState) -> Iterator[str]:
    """A topic in a broker's metadata."""
    known = server.metadata.topic(topic.name)
    if known is None or known.topic_id != topic.topic_id:
        yield f"broker {server.node_id} does not know {topic.name}"
        return
    for index, state in topic.partitions.items():
        told = known.partitions.get(index)
        if told is None:
            yield f"broker {server.node_id} does not know {topic.name}-{index}"
        elif (
            (told.leader, told.leader_epoch) != (state.leader, state.leader_epoch)
            or set(told.isr) != set(state.isr)
            or tuple(told.replicas) != topic.assignments[index].replicas
        ):
            yield (
                f"{topic.name}-{index} at broker {server.node_id}: leader {told.leader}, ISR {told.isr}, replicas"
                f" {told.replicas}, while the controller has leader {state.leader}, ISR {list(state.isr)}"
            )


def _obeyed(server: Server, topic: TopicState, cluster: ClusterState) -> Iterator[str]:
    """The roles that a broker has in a topic, as replica and as coordinator."""
    node_id = server.node_id
    for index, state in topic.partitions.items():
        name = f"{topic.name}-{index}"
        if node_id not in topic.assignments[index].replicas or not cluster.is_online(node_id, (topic.name, index)):
            continue
        hosted = server.replicas.partition(topic.name, index)
        if hosted is None:
            if state.leader != NO_LEADER:
                yield f"broker {node_id} does not host {name}"
        elif hosted.state.leader_epoch < state.leader_epoch:
            yield f"broker {node_id} does not know the leader of {name}"
        elif state.leader == node_id:
            if set(hosted.state.isr) != set(state.isr):
                yield f"broker {node_id} leads {name} with the ISR {list(hosted.state.isr)}"
            if topic.name in INTERNAL_TOPICS and runtime(server, topic.name).runner_at(index) is None:
                yield f"broker {node_id} still reads {name}"


def _followed(topic: TopicState, cluster: ClusterState) -> Iterator[str]:
    """Live replicas that are not in sync, except those that a reassignment adds: these may take long."""
    for index, state in topic.partitions.items():
        lagging = _lagging(topic, index, state, cluster)
        if lagging and state.leader != NO_LEADER:
            yield f"{topic.name}-{index}: leader {state.leader}, ISR {list(state.isr)} without {lagging}"


def _lagging(topic: TopicState, index: int, state: PartitionState, cluster: ClusterState) -> list[int]:
    return [
        replica
        for replica in topic.assignments[index].origin_replicas
        if replica not in state.isr and cluster.is_online(replica, (topic.name, index))
    ]


def runtime(server: Server, topic: str) -> CoordinatorRuntime[Any]:
    """The coordinator runtime of an internal topic."""
    return server.groups.runtime if topic == GROUP_METADATA_TOPIC else server.transactions.runtime
