"""What this broker, as a leader, asks of the controller: to store other in-sync replicas for its partitions
(AlterPartition, KIP-497). Made when the first partition with several replicas is led here.

One request is under way at a time; proposals that come meanwhile leave together with the next. A proposal is asked
again, in the same words, until the controller has answered for its partition. Source: Kafka's AlterPartitionManager.
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
"""The version of AlterPartition that is sent: all brokers of a cluster are of one version (decision 12)."""

RETRY_BACKOFF_MS: Final = 50

Send = Callable[[AlterPartitionRequest], Awaitable[AlterPartitionResponse]]
"""Asks the controller, whoever that is. Raises where none has answered."""

Answered = Callable[[ResponsePartitionData], bool]
"""Is told the controller's answer for one partition; whether the same is to be asked again, as it is, after a while,
where this raises."""

_Key = tuple[TopicId, int]


class _Proposal(NamedTuple):
    asked: RequestPartitionData
    answered: Answered


class AlterPartitions:
    """Proposals that the controller has not answered; owned by the event loop. `broker_epoch()` is this broker's
    registration now."""

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
        """Partitions that made nothing of their answer, for a reason that nobody foresaw."""
        self._proposals: dict[_Key, _Proposal] = {}
        self._sending: asyncio.Task[None] | None = None
        self._is_closed = False

    def propose(self, topic_id: TopicId, asked: RequestPartitionData, answered: Answered) -> None:
        """Ask for one partition. What was proposed for it before, in an earlier leader epoch, is asked no more."""
        self._proposals[topic_id, asked.partition_index] = _Proposal(asked, answered)
        if self._sending is None and not self._is_closed:
            self._sending = asyncio.ensure_future(self._send_all())

    async def answered(self) -> None:
        """Return when the controller has answered all that is proposed, for tests."""
        while self._sending is not None:
            await asyncio.wait([self._sending])

    async def close(self) -> None:
        """Ask the controller for nothing more."""
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
                    logger.warning("in-sync replicas are not stored yet, and asked for again: %s", unanswered)
                if unanswered:
                    await pause(self._timers, RETRY_BACKOFF_MS)
        finally:
            self._sending = None

    async def _send_once(self) -> str:
        """Ask for all that is proposed, and tell the answers; why some of it has to be asked again, if it has."""
        sent = {key: self._proposals[key] for key in self.set_aside.ready(self._proposals)}
        if not sent:
            return f"{len(self._proposals)} partitions"
        try:
            response = await self._send(self._request(sent))
        except Exception as error:  # noqa: BLE001 - it is asked again
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
