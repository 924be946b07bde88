"""A client that reassigns partitions of a simulated cluster to other brokers, and cancels reassignments."""

from __future__ import annotations

from typing import Any, Final

from barnabas.broker.cluster.metadata import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tools.simulation.load import topics as simulated_topics
from tools.simulation.load.clients import Attempts, Worker

PARTITIONS_OF_INTERNAL: Final = 2
PAUSE_S: Final = 2.0
REPLICAS: Final = (2, 3, 3, 4)
"""The number of replicas for a partition: mostly unchanged."""

CANCEL_PROBABILITY: Final = 0.2

_ANSWERS: Final = {
    ErrorCode.INVALID_REPLICA_ASSIGNMENT,  # a broker of the new replicas does not live
    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,  # there is nothing to cancel
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # topics are deleted and created again all the time
}
"""Expected errors in a response."""


class Mover(Worker):
    """Any partition may be on any brokers: records, commits and transactions move with it, even if the topic is deleted
    meanwhile.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._brokers = len(self._bootstrap_servers.split(","))

    async def run_once(self) -> None:
        await self.pause(PAUSE_S)
        topics = {
            self.topic: self.partitions,
            GROUP_METADATA_TOPIC: PARTITIONS_OF_INTERNAL,
            TRANSACTION_STATE_TOPIC: PARTITIONS_OF_INTERNAL,
            simulated_topics.TOPIC: simulated_topics.PARTITIONS,
        }
        topic = self.draw.choice(list(topics))
        index = self.draw.randrange(topics[topic])
        brokers = self.draw.sample(range(self._brokers), self.draw.choice(REPLICAS))
        await self._move(topic, index, None if self.draw.random() < CANCEL_PROBABILITY else brokers)

    async def _move(self, topic: str, index: int, brokers: list[int] | None) -> None:
        """Reassign the partition to these brokers; None cancels the current reassignment."""
        partition = ReassignablePartition(partition_index=index, replicas=brokers)
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=5_000, topics=[ReassignableTopic(name=topic, partitions=[partition])]
        )
        async for _ in (attempts := Attempts(self)):
            with self.retried(attempts):
                await self.client.metadata([])
                reply = await self.client.send_to_controller(request)
                error = ErrorCode.of(reply.error_code)
                if error is ErrorCode.NONE:
                    error = ErrorCode.of(reply.responses[0].partitions[0].error_code)
                self.recorder.tell(f"{self.name}: {topic}-{index} to {brokers}: {error.name}")
                if error is ErrorCode.NONE or error in _ANSWERS:
                    self.done += 1
                    return
                if not error.retriable:
                    self.recorder.wrong.append(f"{topic}-{index} cannot be moved: {error.name}")
                    return
                attempts.failed(error.name)
