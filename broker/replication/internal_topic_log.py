"""`__consumer_offsets` or `__transaction_state` for its coordinator: appends, commits, and reading a whole partition
when a shard is loaded (the `CoordinatorLog` of broker/coordinators/log.py)."""

import asyncio
from collections.abc import Callable
from typing import Final

from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.storage.files import Buffer
from barnabas.storage.segment_reader import ColdRead, FetchData
from barnabas.storage.validation import AppendOrigin
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.record_batch import iter_headers

LOAD_CHUNK_BYTES: Final = 1024 * 1024

_ACKS_ALL: Final = -1
_NO_PRODUCE_VERSION: Final = 0

_COORDINATOR_ERRORS: Final = {
    # Maps errors of the log to errors that the coordinator's clients understand, as GroupCoordinator does
    # (CoordinatorRuntime, GroupMetadataManager.storeGroup).
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}


class InternalTopicLog:
    """The partitions of one internal topic; owned by the event loop."""

    def __init__(self, replicas: ReplicaManager, topic: str) -> None:
        self._replicas = replicas
        self._topic = topic

    def append(self, partition: int, batch: bytearray, transaction_version: int = 0) -> int:
        """Append a batch of records; returns the end offset after it. Raises ApiError NOT_COORDINATOR or
        COORDINATOR_NOT_AVAILABLE."""
        try:
            _, info = self._replicas.append(
                self._topic,
                partition,
                batch,
                _ACKS_ALL,
                _NO_PRODUCE_VERSION,
                AppendOrigin.COORDINATOR,
                transaction_version=transaction_version,
            )
        except ApiError as error:
            raise ApiError(_COORDINATOR_ERRORS.get(error.error, error.error), error.message) from error
        return info.last_offset + 1

    def committed(self, partition: int, end_offset: int) -> "asyncio.Future[None] | None":
        """None when everything below `end_offset` is committed, else a future. It outlasts a flush that fails and is
        repeated, since the coordinator's state depends on its records. Raises ApiError NOT_COORDINATOR."""
        hosted = self._replicas.partition(self._topic, partition)
        if hosted is None:
            raise ApiError(ErrorCode.NOT_COORDINATOR)
        return hosted.committed(end_offset, outlasts_setbacks=True)

    async def read_all(self, partition: int, take: Callable[[Buffer], bool]) -> None:
        """Pass chunks of whole batches, from log start to log end, to `take` in a thread, one after the other, until it
        returns False. Raises ApiError, or the exceptions of `take`."""
        offset: int | None = None
        while True:
            log = self._replicas.partition_or_error(self._topic, partition).log
            found: FetchData | ColdRead
            try:
                found = log.read(log.log_start_offset if offset is None else offset, LOAD_CHUNK_BYTES)
            except ColdRead as cold:
                found = cold
            else:
                if not found.records:
                    return
            offset = await self._replicas.threads.call(_hand_over, found, take)
            if offset is None:
                return


def _hand_over(found: FetchData | ColdRead, take: Callable[[Buffer], bool]) -> int | None:
    """Load a chunk and pass it to `take`; returns the offset of the next chunk, None if there is none or `take`
    returned False. Any thread."""
    data = found.load() if isinstance(found, ColdRead) else found
    if not data.records or not take(data.records):
        return None
    return max(header.next_offset for header in iter_headers(data.records))
