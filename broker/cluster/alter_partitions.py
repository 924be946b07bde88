"""AlterPartition requests of this broker, as a leader, to the controller: proposed ISRs of its partitions (KIP-497).
Created when the first partition with several replicas is led here.

One request is in flight at a time; proposals that arrive meanwhile are sent together in the next. A proposal is
repeated unchanged until the controller has responded for its partition. Source: Kafka's AlterPartitionManager.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NamedTuple

from barnabas.clock import Clock
from barnabas.set_aside import SetAside
from barnabas.timers import Timers, pause
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    RequestPartitionData,
    RequestTopicData,
    ResponsePartitionData,
)
from barnabas.wire.names import TopicId

logger = logging.getLogger(__name__)

VERSION: Final = 3
"""The version of AlterPartition requests: all brokers of a cluster have one version (decision 12)."""

RETRY_BACKOFF_MS: Final = 50

Send = Callable[[AlterPartitionRequest], Awaitable[AlterPartitionResponse]]
"""Sends a request to the controller, whichever broker that is. Raises if it gets no response."""

Answered = Callable[[ResponsePartitionData], bool]
"""Called with the controller's result for one partition; returns whether the same proposal is to be sent again. If it
raises, the proposal is sent again after a delay."""

_Key = tuple[TopicId, int]


class _Proposal(NamedTuple):
    asked: RequestPartitionData
    answered: Answered


class AlterPartitions:
    """Proposals without a response of the controller; owned by the event loop. `broker_epoch()` is the epoch of this
    broker's current registration."""

    def __init__(
        self,
        node_id: int,
        broker_epoch: Callable[[], int],
        send: Send,
        timers: Timers,
        clock: Clock,
    ) -> None:
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._send = send
        self._timers = timers
        self.set_aside = SetAside[_Key](
            "changing the in-sync replicas",
            clock,
            first_delay_ms=1_000,
            name=lambda key: f"partition {key[1]} of topic {key[0].hex()}",
        )
        """Partitions whose processing of a response raised an unexpected exception."""
        self._proposals: dict[_Key, _Proposal] = {}
        self._sending: asyncio.Task[None] | None = None
        self._is_closed = False

    def propose(self, topic_id: TopicId, asked: RequestPartitionData, answered: Answered) -> None:
        """Propose an ISR for one partition. It replaces an earlier proposal for the partition, in an earlier leader
        epoch."""
        self._proposals[topic_id, asked.partition_index] = _Proposal(asked, answered)
        if self._sending is None and not self._is_closed:
            self._sending = asyncio.ensure_future(self._send_all())

    async def answered(self) -> None:
        """Return when the controller has responded to all proposals, for tests."""
        while self._sending is not None:
            await asyncio.wait([self._sending])

    async def close(self) -> None:
        """Send no more requests."""
        self._is_closed = True
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.wait([self._sending])

    async def _send_all(self) -> None:
        is_told = False
        try:
            while self._proposals:
                unanswered = await self._send_once()
                if unanswered and not is_told:
                    is_told = True
                    logger.warning("in-sync replicas are not stored yet, and proposed again: %s", unanswered)
                if unanswered:
                    await pause(self._timers, RETRY_BACKOFF_MS)
        finally:
            self._sending = None

    async def _send_once(self) -> str:
        """Send all proposals, and process the results; returns why some of them have to be sent again, "" if none."""
        sent = {key: self._proposals[key] for key in self.set_aside.ready(self._proposals)}
        if not sent:
            return f"{len(self._proposals)} partitions"
        try:
            response = await self._send(self._request(sent))
        except Exception as error:  # noqa: BLE001 - it is sent again
            return str(error) or type(error).__name__
        if response.error_code:
            return ErrorCode.of(response.error_code).name
        for key, answer in _answers(response):
            proposal = sent.get(key)
            if proposal is None:
                continue
            with self.set_aside.attempt(key):
                if not proposal.answered(answer) and self._proposals.get(key) is proposal:
                    del self._proposals[key]
        left = sum(self._proposals.get(key) is proposal for key, proposal in sent.items())
        return f"{left} of {len(sent)} partitions" if left else ""

    def _request(self, proposals: dict[_Key, _Proposal]) -> AlterPartitionRequest:
        topics: dict[TopicId, RequestTopicData] = {}
        for (topic_id, _), proposal in proposals.items():
            topic = topics.setdefault(topic_id, RequestTopicData(topic_id=topic_id))
            topic.partitions.append(proposal.asked)
        return AlterPartitionRequest(
            broker_id=self._node_id, broker_epoch=self._broker_epoch(), topics=list(topics.values())
        )


def _answers(response: AlterPartitionResponse) -> Iterable[tuple[_Key, ResponsePartitionData]]:
    for topic in response.topics:
        for partition in topic.partitions:
            yield (TopicId(bytes(topic.topic_id)), partition.partition_index), partition
