"""`__consumer_offsets` or `__transaction_state` as its coordinator sees it: appends, commits, and everything read again
when a shard is loaded (the `CoordinatorLog` of broker/coordinators/runtime.py)."""

import asyncio
from collections.abc import Iterator
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
    # GroupCoordinator turns what happens to its log into what its clients understand (CoordinatorRuntime,
    # GroupMetadataManager.storeGroup).
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}


class InternalTopicLog:
    """The partitions of one internal topic; to be made on the event loop that owns them."""

    def __init__(self, replicas: ReplicaManager, topic: str) -> None:
        self._replicas = replicas
        self._topic = topic
        self._loop = asyncio.get_running_loop()

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
        """None when everything below `end_offset` is committed, else a future, which outlasts a flush that fails and is
        repeated: the coordinator has built on what it wrote. Raises ApiError NOT_COORDINATOR."""
        hosted = self._replicas.partition(self._topic, partition)
        if hosted is None:
            raise ApiError(ErrorCode.NOT_COORDINATOR)
        return hosted.committed(end_offset, outlasts_failed_flush=True)

    def read_all(self, partition: int) -> Iterator[Buffer]:
        """Chunks of whole batches from log start to log end; blocks, so it runs in a thread while the shard loads."""
        offset = None
        while True:
            found = asyncio.run_coroutine_threadsafe(self._read(partition, offset), self._loop).result()
            data = found.load() if isinstance(found, ColdRead) else found
            if not data.records:
                return
            yield data.records
            offset = max(header.next_offset for header in iter_headers(data.records))

    async def _read(self, partition: int, offset: int | None) -> FetchData | ColdRead:
        """One chunk, or what it takes to load it: logs belong to the event loop."""
        log = self._replicas.partition_or_error(self._topic, partition).log
        try:
            return log.read(log.log_start_offset if offset is None else offset, LOAD_CHUNK_BYTES)
        except ColdRead as cold:
            return cold
