"""The current leader of a partition in the response of a broker that does not lead it, so that the client need not
request metadata first (KIP-951).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from barnabas.broker.api.context import RequestContext

LeaderIdAndEpochT = TypeVar("LeaderIdAndEpochT")
NodeEndpointT = TypeVar("NodeEndpointT", bound="NodeEndpoint")


class NodeEndpoint(Protocol):
    """A broker's address in a response."""

    node_id: int


class Entry(Protocol[LeaderIdAndEpochT]):
    """A partition's part of a response."""

    current_leader: LeaderIdAndEpochT


@dataclass(frozen=True, slots=True)
class CurrentLeader(Generic[LeaderIdAndEpochT, NodeEndpointT]):
    """Sets current leaders in one API's responses, with that API's two message types for it."""

    leader_type: Callable[..., LeaderIdAndEpochT]
    endpoint_type: Callable[..., NodeEndpointT]

    def tell(
        self,
        entry: Entry[LeaderIdAndEpochT],
        node_endpoints: list[NodeEndpointT],
        topic: str,
        partition_index: int,
        context: RequestContext,
    ) -> None:
        """Set the entry's current leader, and add the leader to the response's `node_endpoints` if it is missing; does
        nothing if the metadata does not have the partition.
        """
        metadata = context.services.metadata
        partition = metadata.partition(topic, partition_index)
        if partition is None:
            return
        leader = partition.leader
        entry.current_leader = self.leader_type(leader_id=leader, leader_epoch=partition.leader_epoch)
        endpoint = metadata.endpoint(leader, context.session.listener.name)
        if endpoint is not None and all(node.node_id != leader for node in node_endpoints):
            node_endpoints.append(self.endpoint_type(node_id=leader, host=endpoint.host, port=endpoint.port, rack=None))
