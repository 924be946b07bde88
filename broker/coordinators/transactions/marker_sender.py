"""Transaction markers in partitions of other brokers, with WriteTxnMarkers: batched per broker, one request in flight
at a time.

Retries are up to the caller (`endings.py`), and each time the leader is looked up anew. Source: Kafka's
TransactionMarkerChannelManager and TransactionMarkerRequestCompletionHandler.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.broker.cluster.broker_batches import BrokerBatches
from barnabas.broker.cluster.metadata import MetadataCache
from barnabas.broker.coordinators.transactions import requests
from barnabas.broker.coordinators.transactions.markers import MarkerWriter, TransactionMarker
from barnabas.broker.coordinators.transactions.state import TopicPartition
from barnabas.wire.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from barnabas.wire.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse

log = logging.getLogger(__name__)

MARKERS_PER_REQUEST: Final = 4096
"""The number of markers in one request, to which the leader responds once all of them are replicated; others wait."""

Send = Callable[[int, "WriteTxnMarkersRequest", int], "Awaitable[WriteTxnMarkersResponse]"]
"""Sends a request to a broker, in a version; raises OSError when the broker cannot be reached or does not respond."""


class _Waiting(NamedTuple):
    """A marker that waits for its partition's leader."""

    topic_partition: TopicPartition
    marker: TransactionMarker
    written: "asyncio.Future[None]"

    def fail(self, error: ErrorCode) -> None:
        if not self.written.done():
            self.written.set_exception(ApiError(error))


class MarkerSender:
    """A MarkerWriter for partitions with any leader: `local` writes those that this broker, `node_id`, leads itself."""

    def __init__(self, node_id: int, local: MarkerWriter, metadata: MetadataCache, send: Send) -> None:
        self._node_id = node_id
        self._local = local
        self._metadata = metadata
        self._send = send
        self._refused: set[TopicPartition] = set()
        self._batches = BrokerBatches("Transaction markers", self._deliver)
        metadata.listeners[self._leaders_changed] = None

    def write(self, topic: str, partition: int, marker: TransactionMarker) -> "asyncio.Future[None] | None":
        """See MarkerWriter. Errors: ApiError, raised: UNKNOWN_TOPIC_OR_PARTITION (the present controller has sent all
        topics and this partition is not among them), COORDINATOR_LOAD_IN_PROGRESS (it has not yet, or could not read
        the topic, and this partition is not known), LEADER_NOT_AVAILABLE, and those of `local`; in the future:
        NETWORK_EXCEPTION, NOT_LEADER_OR_FOLLOWER, the leader's errors.
        """
        leader = self._leader(topic, partition)
        if leader == self._node_id:
            return self._local.write(topic, partition, marker)
        written = asyncio.get_running_loop().create_future()
        self._batches.add(leader, _Waiting((topic, partition), marker, written))
        return written

    async def close(self) -> None:
        """Send nothing more; markers without a response yet are cancelled."""
        self._metadata.listeners.pop(self._leaders_changed, None)
        for item in self._batches.withdraw(lambda _broker_id, _item: True):
            item.written.cancel()
        await self._batches.close()

    def _leader(self, name: str, partition: int) -> int:
        """The present leader of a partition. Errors: ApiError, see `write`."""
        topic = self._metadata.topic(name)
        if topic is None or partition >= topic.partition_count:
            is_gone = self._metadata.is_gone(name)
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_gone else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        known = topic.partitions.get(partition)
        if known is None or known.leader < 0:
            raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE)
        return known.leader

    def _leaders_changed(self) -> None:
        """Fail markers that wait behind a request to an unresponsive broker, once another one leads. Partitions that no
        longer exist are removed from `_refused`."""
        self._refused = {found for found in self._refused if self._metadata.has_partition(*found)}
        for item in self._batches.withdraw(self._is_led_elsewhere):
            item.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _is_led_elsewhere(self, broker_id: int, item: _Waiting) -> bool:
        known = self._metadata.partition(*item.topic_partition)
        return known is None or known.leader != broker_id

    async def _deliver(self, broker_id: int, waiting: deque[_Waiting]) -> None:
        items = _taken(waiting)
        try:
            request = requests.write_txn_markers((item.marker, item.topic_partition) for item in items)
            errors = requests.marker_errors(await self._send(broker_id, request, requests.WRITE_TXN_MARKERS_VERSION))
        except asyncio.CancelledError:
            for item in items:
                item.written.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - the callers retry
            self._batches.failed(broker_id, error)
            for item in items:
                item.fail(ErrorCode.NETWORK_EXCEPTION)
            return
        self._batches.answered(broker_id)
        for item in items:
            key = (item.marker.producer_id, item.topic_partition)
            self._settle(broker_id, item, errors.get(key, ErrorCode.UNKNOWN_SERVER_ERROR))

    def _settle(self, broker_id: int, item: _Waiting, error: ErrorCode) -> None:
        """Pass on the leader's result; an error is logged once, until the partition accepts a marker.

        UNKNOWN_TOPIC_OR_PARTITION comes from a broker that does not host the partition, not yet or no longer: it never
        means that the topic was deleted, which only metadata shows.
        """
        if error is ErrorCode.NONE:
            self._refused.discard(item.topic_partition)
            if not item.written.done():
                item.written.set_result(None)
            return
        if item.topic_partition not in self._refused:
            self._refused.add(item.topic_partition)
            log.info(
                "Broker %d takes no transaction marker for %s-%d: %s", broker_id, *item.topic_partition, error.name
            )
        unknown = error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        item.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER if unknown else error)


def _taken(waiting: deque[_Waiting]) -> list[_Waiting]:
    """The markers of the next request: no more than the limit, and at most one of a producer for one partition, since
    the results of two could not be distinguished.
    """
    taken: dict[requests.ProducerPartition, _Waiting] = {}
    left = []
    while waiting and len(taken) < MARKERS_PER_REQUEST:
        item = waiting.popleft()
        key = (item.marker.producer_id, item.topic_partition)
        if key in taken:
            left.append(item)
        else:
            taken[key] = item
    waiting.extendleft(reversed(left))
    return list(taken.values())
