"""The events of the transaction machine, and its replies: plain values without API versions or connections."""

from typing import NamedTuple

from barnabas.broker.coordinators.effects import Effects as CoordinatorEffects
from barnabas.broker.coordinators.effects import Token
from barnabas.broker.coordinators.transactions.state import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Change, TopicPartition
from barnabas.wire.errors import ErrorCode

EPOCH_BUMP_VERSION = 2
"""From this transaction version on, every end of a transaction bumps the producer's epoch."""


class ProducerIdAndEpoch(NamedTuple):
    """The identity of a producer."""

    producer_id: int
    producer_epoch: int


class InitProducerId(NamedTuple):
    """A producer requests an id and an epoch that fence all other producers of this transactional id.

    `expected` is the producer's present id and epoch, sent to continue after an error (KIP-360). `fresh_producer_id` is
    an unused id if the caller has one; the reply NeedsProducerId requests it.
    """

    transactional_id: str
    token: Token
    timeout_ms: int
    expected: ProducerIdAndEpoch | None = None
    fresh_producer_id: int = NO_PRODUCER_ID


class AddPartitions(NamedTuple):
    """A producer will write to these partitions. `client_version` is the transaction version it uses."""

    transactional_id: str
    token: Token
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]
    client_version: int


class VerifyPartitions(NamedTuple):
    """Verify that these partitions are part of the producer's transaction (KIP-890 part 1)."""

    transactional_id: str
    token: Token
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]


class EndTransaction(NamedTuple):
    """A producer commits or aborts."""

    transactional_id: str
    token: Token
    producer_id: int
    producer_epoch: int
    is_commit: bool
    client_version: int
    fresh_producer_id: int = NO_PRODUCER_ID


class TimeOut(NamedTuple):
    """The transaction of this producer seems to have timed out. The decision checks it."""

    transactional_id: str
    token: Token
    producer_id: int
    producer_epoch: int
    fresh_producer_id: int = NO_PRODUCER_ID


Request = InitProducerId | AddPartitions | VerifyPartitions | EndTransaction | TimeOut
"""Events with a reply, if only to the coordinator's own job."""


class Loaded(NamedTuple):
    """The prepared transaction was loaded from the log: its markers, or the record of its completion,
    may be missing."""

    transactional_id: str


class MarkersWritten(NamedTuple):
    """These partitions of the prepared transaction have their markers."""

    transactional_id: str
    partitions: frozenset[TopicPartition]


class Expire(NamedTuple):
    """Delete those of the transactional ids that have not been used for `transactional.id.expiration.ms`. The
    tombstones are one batch, so the event's key belongs to none of them.
    """

    key: str
    transactional_ids: tuple[str, ...]


Event = Request | Loaded | MarkersWritten | Expire


class ProducerReply(NamedTuple):
    """The reply to InitProducerId and EndTransaction: the producer's id and epoch from now on.

    They are -1 in case of an error, and for an EndTransaction that bumps no epoch.
    """

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class PartitionsReply(NamedTuple):
    """The reply to AddPartitions and VerifyPartitions: one error for all, or the partitions that are not part of the
    transaction.
    """

    error: ErrorCode
    unverified: frozenset[TopicPartition] = frozenset()

    def error_of(self, partition: TopicPartition) -> ErrorCode:
        if self.error is ErrorCode.NONE and partition in self.unverified:
            return ErrorCode.TRANSACTION_ABORTABLE
        return self.error


class NeedsProducerId(NamedTuple):
    """Nothing was decided: ask again with a new producer id."""


Reply = ProducerReply | PartitionsReply | NeedsProducerId


class Effects(CoordinatorEffects[Change, Reply]):
    """The effects of a decision about a transaction. `is_followed_up` means that markers of a prepared one have to be
    written."""

    __slots__ = ()
