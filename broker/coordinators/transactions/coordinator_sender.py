"""Requests of a partition's leader to transaction coordinators in other brokers, with AddPartitionsToTxn: verify that a
partition is part of a transaction, or add it. Batched per broker, one request in flight at a time.

Source: Kafka's AddPartitionsToTxnManager.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.broker.cluster.broker_batches import BrokerBatches
from barnabas.broker.cluster.metadata import TRANSACTION_STATE_TOPIC, MetadataCache
from barnabas.broker.coordinators.transactions import requests
from barnabas.broker.coordinators.transactions.events import AddPartitions, PartitionsReply, VerifyPartitions
from barnabas.wire.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from barnabas.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse

TRANSACTIONS_PER_REQUEST: Final = 1024
"""The number of transactional ids in one request; others go with the next one."""

Send = Callable[[int, "AddPartitionsToTxnRequest", int], "Awaitable[AddPartitionsToTxnResponse]"]
"""Sends a request to a broker, in a version; raises OSError when the broker cannot be reached or does not respond."""


class _Waiting(NamedTuple):
    """An event that waits for its coordinator."""

    event: AddPartitions | VerifyPartitions
    reply: "asyncio.Future[PartitionsReply]"

    def answer(self, reply: PartitionsReply) -> None:
        if not self.reply.done():
            self.reply.set_result(reply)


class CoordinatorSender:
    """Sends events to the coordinators of transactional ids, according to the metadata.

    `partition_for` returns the partition of `__transaction_state` of a transactional id.
    """

    def __init__(self, metadata: MetadataCache, partition_for: Callable[[str], int], send: Send) -> None:
        self._metadata = metadata
        self._partition_for = partition_for
        self._send = send
        self._batches = BrokerBatches("Verification of transactions", self._deliver)
        metadata.listeners[self._leaders_changed] = None

    def ask(self, event: AddPartitions | VerifyPartitions) -> "asyncio.Future[PartitionsReply]":
        """Send an event to the coordinator. Errors: ApiError COORDINATOR_NOT_AVAILABLE, no coordinator is known; in the
        reply NETWORK_EXCEPTION, NOT_COORDINATOR, and the coordinator's errors.
        """
        coordinator = self._coordinator(event.transactional_id)
        if coordinator < 0:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        reply = asyncio.get_running_loop().create_future()
        self._batches.add(coordinator, _Waiting(event, reply))
        return reply

    async def close(self) -> None:
        """Send nothing more; events without a response yet are cancelled."""
        self._metadata.listeners.pop(self._leaders_changed, None)
        for item in self._batches.withdraw(lambda _broker_id, _item: True):
            item.reply.cancel()
        await self._batches.close()

    def _coordinator(self, transactional_id: str) -> int:
        """The broker that leads the id's partition; negative if there is none."""
        known = self._metadata.partition(TRANSACTION_STATE_TOPIC, self._partition_for(transactional_id))
        return -1 if known is None else known.leader

    def _leaders_changed(self) -> None:
        """Fail events with NOT_COORDINATOR that wait behind a request to an unresponsive broker, once another one is
        the coordinator."""
        for item in self._batches.withdraw(self._is_coordinated_elsewhere):
            item.answer(PartitionsReply(ErrorCode.NOT_COORDINATOR))

    def _is_coordinated_elsewhere(self, broker_id: int, item: _Waiting) -> bool:
        return self._coordinator(item.event.transactional_id) != broker_id

    async def _deliver(self, broker_id: int, waiting: deque[_Waiting]) -> None:
        items = _taken(waiting)
        try:
            request = requests.add_partitions_to_txn(item.event for item in items)
            response = await self._send(broker_id, request, requests.ADD_PARTITIONS_TO_TXN_VERSION)
            error = ErrorCode.of(response.error_code)
            told = requests.partitions_errors(response)
            self._batches.answered(broker_id)
        except asyncio.CancelledError:
            for item in items:
                item.reply.cancel()
            raise
        except Exception as failure:  # noqa: BLE001 - producers retry
            self._batches.failed(broker_id, failure)
            error, told = ErrorCode.NETWORK_EXCEPTION, {}
        if error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            error = ErrorCode.INVALID_TXN_STATE  # nothing was verified; the cause does not concern clients
        for item in items:
            errors = told.get(item.event.transactional_id, {})
            is_refused = error is not ErrorCode.NONE
            item.answer(PartitionsReply(error) if is_refused else requests.partitions_reply(item.event, errors))


def _taken(waiting: deque[_Waiting]) -> list[_Waiting]:
    """The events of the next request: one of each transactional id, since responses contain nothing but the id."""
    taken: dict[str, _Waiting] = {}
    left = []
    while waiting and len(taken) < TRANSACTIONS_PER_REQUEST:
        item = waiting.popleft()
        if item.event.transactional_id in taken:
            left.append(item)
        else:
            taken[item.event.transactional_id] = item
    waiting.extendleft(reversed(left))
    return list(taken.values())
