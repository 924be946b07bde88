"""The markers that end a transaction, and the interface for writing them into its partitions."""

import asyncio
from typing import Final, NamedTuple, Protocol

from barnabas.wire.errors import ErrorCode


class TransactionMarker(NamedTuple):
    """The outcome of one producer's transaction.

    `coordinator_epoch` is the leader epoch of the coordinator's partition, which fences former coordinators. With
    `transaction_version` 2 the epoch is one more than that of the transaction's data (KIP-1228).
    """

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool
    transaction_version: int


class MarkerWriter(Protocol):
    """Writes markers to partitions of this broker, or of others over a connection."""

    def write(self, topic: str, partition: int, marker: TransactionMarker) -> "asyncio.Future[None] | None":
        """Append a marker; None when it is committed, else a future that is done when it is.

        Errors: ApiError, raised or in the future. UNKNOWN_TOPIC_OR_PARTITION, raised, means that the partition no
        longer exists, the errors in SUPERSEDED that a newer producer or coordinator has taken over; all others may
        pass.
        """
        ...


SUPERSEDED: Final = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})
