"""How a controller reaches brokers: what it can tell them, and the way there (`broker/cluster/cluster_channel.py`)."""

from typing import Any, Protocol

from barnabas.wire.messages.leader_and_isr import LeaderAndIsrRequest
from barnabas.wire.messages.stop_replica import StopReplicaRequest
from barnabas.wire.messages.update_metadata import UpdateMetadataRequest

Command = LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest
"""What a controller can tell a broker."""


class BrokerChannel(Protocol):
    """How the controller reaches a broker; requests to one broker arrive in the order in which they are sent."""

    def reaches(self, broker_id: int) -> bool:
        """Whether requests can be sent to a broker. One that is not reached gets no partitions and is told nothing."""
        ...

    async def send(self, broker_id: int, request: Command, /) -> Any:
        """Deliver and return the response message of the same API, after the broker has applied the request.

        Raises: OSError where another broker cannot be reached, or does not answer in time; CoordinationError where the
        own one has to read something for it, and cannot.
        """
        ...
