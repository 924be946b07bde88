"""The state of one transactional id at its coordinator. Pure; every value is replaced, never altered.

Source: Kafka's TransactionState, TransactionMetadata (KIP-98, KIP-360, KIP-890).
"""

from collections.abc import Mapping, MutableMapping
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple

TopicPartition = tuple[str, int]

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_TIMESTAMP: Final = -1

EPOCH_MAX: Final = 32_767
"""The largest producer epoch. Clients get at most one less, so that the producer with the last one can
still be fenced."""


class TransactionState(Enum):
    """The state of a transaction; the values are the names in DescribeTransactions and ListTransactions."""

    EMPTY = "Empty"
    """A producer has been initialised; it has not begun a transaction."""
    ONGOING = "Ongoing"
    """Partitions were added."""
    PREPARE_COMMIT = "PrepareCommit"
    """Decided: the markers are being written."""
    PREPARE_ABORT = "PrepareAbort"
    """Decided: the markers are being written."""
    COMPLETE_COMMIT = "CompleteCommit"
    """Every partition has its marker."""
    COMPLETE_ABORT = "CompleteAbort"
    """Every partition has its marker."""
    DEAD = "Dead"
    """Expired. An expired transaction has no state; the name is known to filters only."""
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"
    """A producer is being fenced. Here that is one step with the abort; the name is known to filters only."""

    @property
    def is_prepared(self) -> bool:
        """Whether the outcome is decided, and not every partition is known to have its marker."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_commit(self) -> bool:
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)

    @property
    def may_expire(self) -> bool:
        return self in (TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)


TRANSITIONS: Mapping[TransactionState, frozenset[TransactionState]] = MappingProxyType(
    {
        TransactionState.EMPTY: frozenset(
            {TransactionState.EMPTY, TransactionState.ONGOING, TransactionState.PREPARE_ABORT, TransactionState.DEAD}
        ),
        TransactionState.ONGOING: frozenset(
            {TransactionState.ONGOING, TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT}
        ),
        TransactionState.PREPARE_COMMIT: frozenset({TransactionState.COMPLETE_COMMIT}),
        TransactionState.PREPARE_ABORT: frozenset({TransactionState.COMPLETE_ABORT}),
        TransactionState.COMPLETE_COMMIT: frozenset(
            {TransactionState.EMPTY, TransactionState.ONGOING, TransactionState.PREPARE_ABORT, TransactionState.DEAD}
        ),
        TransactionState.COMPLETE_ABORT: frozenset(
            {TransactionState.EMPTY, TransactionState.ONGOING, TransactionState.PREPARE_ABORT, TransactionState.DEAD}
        ),
        TransactionState.DEAD: frozenset(),
        TransactionState.PREPARE_EPOCH_FENCE: frozenset(),
    }
)
"""The permitted next states of each state. With transaction version 2 a client may abort without a transaction to be
sure of the producer's state.
"""


class Transaction(NamedTuple):
    """A transactional id, and at the same time the record that sets this state.

    `producer_epoch` of a prepared transaction is that of its markers. `previous_producer_id` is the id before the last
    transition. `next_producer_id` replaces a producer id with exhausted epochs, once the markers are written.
    `last_producer_epoch` is the epoch before the last bump that the producer itself requested: a retry of that request
    is recognised by it. It is not written to the log. `client_version` is the transaction version that the client used
    for the last transition. `start_ms` is NO_TIMESTAMP between transactions.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_TIMESTAMP
    last_update_ms: int = NO_TIMESTAMP
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    client_version: int = 0

    @property
    def is_epoch_exhausted(self) -> bool:
        """Whether the next epoch must not be given to a client."""
        return self.producer_epoch >= EPOCH_MAX - 1


TRANSACTION_BYTES: Final = 550
PARTITION_BYTES: Final = 250
"""The memory of a transactional id, and of a partition of its transaction, besides the id."""


def held_bytes(transaction: Transaction | None) -> int:
    """An estimate of the memory of a transactional id; 0 for none."""
    if transaction is None:
        return 0
    return id_bytes(transaction.transactional_id) + PARTITION_BYTES * len(transaction.partitions)


def id_bytes(transactional_id: str) -> int:
    """An estimate of the memory of a transactional id without a transaction."""
    return TRANSACTION_BYTES + len(transactional_id) * (1 if transactional_id.isascii() else 4)


class TransactionTombstone(NamedTuple):
    """The transactional id has expired."""

    transactional_id: str


class PartitionsEnded(NamedTuple):
    """These partitions have their markers. Not written to the log: after a crash they get another one."""

    transactional_id: str
    partitions: frozenset[TopicPartition]


Record = Transaction | TransactionTombstone
Change = Transaction | TransactionTombstone | PartitionsEnded


def apply(transactions: MutableMapping[str, Transaction], change: Change) -> None:
    """Apply one change; the only mutator of a shard's transactions, and their loader."""
    if isinstance(change, Transaction):
        transactions[change.transactional_id] = change
    elif isinstance(change, TransactionTombstone):
        transactions.pop(change.transactional_id, None)
    else:
        known = transactions[change.transactional_id]
        assert known.state.is_prepared, known
        transactions[change.transactional_id] = known._replace(partitions=known.partitions - change.partitions)
