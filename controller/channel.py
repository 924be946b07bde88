"""The controller's interface to brokers: its commands, and their delivery (`broker/cluster/cluster_channel.py`)."""

from typing import Any, Protocol

from barnabas.wire.messages.leader_and_isr import LeaderAndIsrRequest
from barnabas.wire.messages.stop_replica import StopReplicaRequest
from barnabas.wire.messages.update_metadata import UpdateMetadataRequest

Command = LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest
"""A command of the controller to a broker."""


class BrokerChannel(Protocol):
    """Delivers the controller's requests to brokers; requests to one broker arrive in the order of sending."""

    def reaches(self, broker_id: int) -> bool:
        """Whether requests can be sent to a broker. An unreachable one gets no partitions and no requests."""
        ...

    async def send(self, broker_id: int, request: Command, /) -> Any:
        """Deliver a request and return the response message of the same API, after the broker has applied the request.

        Raises: OSError if another broker cannot be reached, or does not respond in time; CoordinationError if the own
        broker cannot read znodes that the request needs.
        """
        ...
