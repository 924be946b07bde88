"""The state of one log's producers: duplicates, sequences, transactions. Pure.

Source: org.apache.kafka.storage.internals.log.ProducerStateManager, ProducerAppendInfo, ProducerStateEntry (KIP-98,
KIP-360).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from barnabas.storage.txn_index import AbortedTransaction
from barnabas.storage.validation import AppendOrigin
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.primitives import new_tuple
from barnabas.wire.record_batch import TRANSACTIONAL_MASK, RecordBatchHeader

if TYPE_CHECKING:
    from barnabas.wire.control_records import EndTxnMarker

Log = TypeVar("Log", bound=Hashable)

BATCHES_RETAINED: Final = 5
"""The number of batches per producer for duplicate detection: the maximum that an idempotent producer may have in
flight.
"""

PRODUCERS_MAX: Final = 10_000
"""The maximum number of producers of one log, open transactions aside. Beyond it the least recent writers are removed
before they expire: a retry of theirs would then be appended twice, their other requests work.
"""

PRODUCERS_OF_ALL_LOGS_MAX: Final = 100_000
"""The maximum number of producers of all logs of a broker together, enforced every few seconds."""

VERIFICATIONS_MAX: Final = 10_000
"""The maximum number of verifications of one log: those without a subsequent transaction must not fill the memory."""

VERIFICATIONS_OF_ALL_LOGS_MAX: Final = 100_000
"""The same for all logs of a broker together, enforced every few seconds."""

NO_OFFSET: Final = -1
SEQUENCE_MASK: Final = 0x7FFFFFFF
_NO_EPOCH: Final = -1
_COMMIT: Final = 1
_EPOCH_MAX: Final = 0x7FFF
_EPOCH_BUMP_VERSION: Final = 2


class BatchMetadata(NamedTuple):
    """The metadata of one batch of a producer."""

    first_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class ProducerEntry:
    """One producer's state in this log. `batches` contains its last five batches, oldest first, all of `epoch`."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_timestamp", "producer_id", "transaction_first_offset")

    def __init__(
        self,
        producer_id: int,
        epoch: int = _NO_EPOCH,
        coordinator_epoch: int = -1,
        last_timestamp: int = -1,
        transaction_first_offset: int = NO_OFFSET,
    ) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.coordinator_epoch = coordinator_epoch
        self.last_timestamp = last_timestamp
        self.transaction_first_offset = transaction_first_offset
        self.batches: list[BatchMetadata] = []

    @property
    def last_sequence(self) -> int:
        """The last sequence of the newest batch; -1 if no batch is known."""
        return self.batches[-1].last_sequence if self.batches else -1

    @property
    def next_sequence(self) -> int:
        """The sequence that follows the last batch; 0 if no batch is known."""
        return (self.batches[-1].last_sequence + 1) & SEQUENCE_MASK if self.batches else 0

    def add(self, epoch: int, batch: BatchMetadata) -> None:
        """Add an appended batch."""
        batches = self.batches
        if epoch != self.epoch:
            batches.clear()
            self.epoch = epoch
        elif len(batches) == BATCHES_RETAINED:
            del batches[0]
        batches.append(batch)
        self.last_timestamp = batch.timestamp

    def find_duplicate(self, header: RecordBatchHeader) -> BatchMetadata | None:
        """The known batch with exactly the same epoch and sequences."""
        if header.producer_epoch != self.epoch:
            return None
        first, last = header.base_sequence, header.last_sequence
        for batch in self.batches:
            if batch.first_sequence == first and batch.last_sequence == last:
                return batch
        return None


class Verification:
    """A transactional batch is about to be appended to a log in which its producer has no open transaction: its
    coordinator is being asked whether the partition is part of the transaction (KIP-890).

    The append must present this very object, which a marker in between removes: a response from before the marker is
    outdated. `lowest_sequence` is that of the first batch; a later batch must not overtake it.

    Source: org.apache.kafka.storage.internals.log.VerificationStateEntry.
    """

    __slots__ = ("bumps_epoch", "epoch", "lowest_sequence", "started_ms")

    def __init__(self, epoch: int, sequence: int, started_ms: int, *, bumps_epoch: bool) -> None:
        self.epoch = epoch
        self.lowest_sequence = sequence
        self.started_ms = started_ms
        self.bumps_epoch = bumps_epoch

    def update(self, epoch: int, sequence: int) -> None:
        """Another batch arrived before the first was appended."""
        if epoch > self.epoch:
            self.epoch, self.lowest_sequence = epoch, sequence
        elif epoch == self.epoch and sequence < self.lowest_sequence:
            self.lowest_sequence = sequence


class ProducerState:
    """All producers of one log, its open transactions, and the transactions that ended above the high watermark.

    The two steps of an append: `check` and `check_marker` only validate, `record` and `record_marker` change the state.
    `end_offset` is the offset up to which the state covers the log.

    `ongoing` maps the first offset of each open transaction to its producer, in offset order. `unreplicated` contains
    (first offset, offset of the marker) of transactions whose markers may not be replicated yet, in the order of both:
    one that began after another, and ends before it, holds nothing back.

    Ownership: the event loop (or the one thread that recovers the log).

    Args:
        end_offset: the offset that the state begins at.
        expiration_ms: `producer.id.expiration.ms`.
        producers_max: the maximum number of producers without an open transaction.
        verifications_max: the maximum number of verifications.
    """

    __slots__ = (
        "_producers_max",
        "_verifications_max",
        "end_offset",
        "expiration_ms",
        "ongoing",
        "producers",
        "unreplicated",
        "verifications",
    )

    def __init__(
        self,
        end_offset: int = 0,
        expiration_ms: int = 86_400_000,
        *,
        producers_max: int = PRODUCERS_MAX,
        verifications_max: int = VERIFICATIONS_MAX,
    ) -> None:
        self._producers_max = producers_max
        self._verifications_max = verifications_max
        self.end_offset = end_offset
        self.expiration_ms = expiration_ms
        self.producers: dict[int, ProducerEntry] = {}
        # A plain dict finds its first key by skipping all keys that were removed before it.
        self.ongoing: OrderedDict[int, int] = OrderedDict()
        self.unreplicated: list[tuple[int, int]] = []
        self.verifications: dict[int, Verification] = {}

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, now_ms: int, *, bumps_epoch: bool
    ) -> Verification | None:
        """The verification needed before a transactional batch may be appended; None if its transaction is open here.

        `bumps_epoch` says that the client uses transaction version 2.

        Raises:
            ApiError: INVALID_PRODUCER_EPOCH.
        """
        entry = self.producers.get(producer_id)
        if entry is not None:
            self._check_epoch(entry, epoch, AppendOrigin.CLIENT)
            if entry.transaction_first_offset != NO_OFFSET and entry.epoch == epoch:
                return None
        verification = self.verifications.get(producer_id)
        if verification is None:
            if len(self.verifications) >= self._verifications_max:
                del self.verifications[next(iter(self.verifications))]  # the oldest; the producer will resend its batch
            verification = Verification(epoch, sequence, now_ms, bumps_epoch=bumps_epoch)
            self.verifications[producer_id] = verification
        verification.update(epoch, sequence)
        return verification

    def is_verified(self, producer_id: int, epoch: int, verification: Verification | None) -> bool:
        """Whether a transactional batch may be appended: its transaction is open here, or its verification is still
        valid.
        """
        if verification is not None and self.verifications.get(producer_id) is verification:
            return True
        entry = self.producers.get(producer_id)
        return entry is not None and entry.transaction_first_offset != NO_OFFSET and entry.epoch == epoch

    def check(self, header: RecordBatchHeader, origin: AppendOrigin) -> BatchMetadata | None:
        """Check whether a data batch may be appended; returns the known batch if it is a duplicate.

        Raises:
            ApiError: INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER or INVALID_TXN_STATE.
        """
        entry = self.producers.get(header.producer_id)
        if entry is None:
            # Its records may have been deleted or have expired: any sequence is valid.
            if self.verifications and origin is AppendOrigin.CLIENT:
                self._check_verified_sequence(None, header)
            return None
        is_next = header.producer_epoch == entry.epoch and header.base_sequence == entry.next_sequence
        if not is_next:
            if origin is AppendOrigin.CLIENT and (duplicate := entry.find_duplicate(header)) is not None:
                return duplicate
            self._check_epoch(entry, header.producer_epoch, origin)
        if origin is AppendOrigin.CLIENT:
            if self.verifications:
                self._check_verified_sequence(entry, header)
            if not is_next:
                self._check_sequence(entry, header)
        if entry.transaction_first_offset != NO_OFFSET and not header.attributes & TRANSACTIONAL_MASK:
            raise ApiError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} has an open transaction but sent a batch outside it",
            )
        return None

    def _check_epoch(self, entry: ProducerEntry, epoch: int, origin: AppendOrigin) -> None:
        if epoch < entry.epoch and origin is not AppendOrigin.REPLICATION:
            raise ApiError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"epoch {epoch} of producer {entry.producer_id} is older than the last one seen, {entry.epoch}",
            )

    def _check_verified_sequence(self, entry: ProducerEntry | None, header: RecordBatchHeader) -> None:
        """Check the sequence of a transaction's first batch: with transaction version 2 every epoch starts at sequence
        0, and before it, no batch may overtake an earlier one whose verification failed.
        """
        verification = self.verifications.get(header.producer_id)
        if verification is None:
            return
        first = header.base_sequence
        if (verification.bumps_epoch and first != 0 and entry is None) or first > verification.lowest_sequence:
            expected = 0 if verification.bumps_epoch and entry is None else verification.lowest_sequence
            raise ApiError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} sent sequence {first} where {expected} follows",
            )

    def _check_sequence(self, entry: ProducerEntry, header: RecordBatchHeader) -> None:
        first = header.base_sequence
        if header.producer_epoch != entry.epoch:
            if first != 0 and entry.epoch != _NO_EPOCH:
                raise ApiError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"producer {header.producer_id} starts epoch {header.producer_epoch} with sequence {first}, not 0",
                )
            return
        expected = entry.next_sequence
        if first != expected and entry.epoch != _NO_EPOCH:
            raise ApiError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} sent sequence {first} where {expected} follows",
            )

    def record(self, header: RecordBatchHeader, base_offset: int) -> None:
        """Add a data batch that was appended at `base_offset`; the header has its final timestamp."""
        producer_id = header.producer_id
        entry = self.producers.get(producer_id)
        if entry is None:
            if len(self.producers) - len(self.ongoing) >= self._producers_max:
                self.forget_oldest(self._producers_max // 10)
            entry = self.producers[producer_id] = ProducerEntry(producer_id)
        delta = header.last_offset_delta
        last_offset = base_offset + delta
        entry.add(
            header.producer_epoch,
            new_tuple(
                BatchMetadata, (header.base_sequence, header.last_sequence, last_offset, delta, header.max_timestamp)
            ),
        )
        if header.attributes & TRANSACTIONAL_MASK:
            if entry.transaction_first_offset == NO_OFFSET:
                entry.transaction_first_offset = base_offset
                self.ongoing[base_offset] = producer_id
            self.verifications.pop(producer_id, None)
        self.end_offset = last_offset + 1

    def check_marker(
        self, header: RecordBatchHeader, marker: EndTxnMarker, origin: AppendOrigin, transaction_version: int = 0
    ) -> None:
        """Check whether a transaction marker may be appended.

        From transaction version 2 on a marker's epoch is one more than that of the data, so one with the same epoch is
        late (KIP-1228), unless no transaction is open: then it is a retry, and harmless.

        Raises:
            ApiError: INVALID_PRODUCER_EPOCH or TRANSACTION_COORDINATOR_FENCED.
        """
        entry = self.producers.get(header.producer_id)
        if entry is None or origin is AppendOrigin.REPLICATION:
            return
        self._check_epoch(entry, header.producer_epoch, origin)
        if (
            transaction_version >= _EPOCH_BUMP_VERSION
            and header.producer_epoch == entry.epoch
            and entry.transaction_first_offset != NO_OFFSET
            and header.producer_epoch != _EPOCH_MAX
        ):
            raise ApiError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"a marker of epoch {header.producer_epoch} does not end the transaction of the same epoch of "
                f"producer {entry.producer_id}",
            )
        if entry.coordinator_epoch > marker.coordinator_epoch:
            raise ApiError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"coordinator epoch {marker.coordinator_epoch} is older than {entry.coordinator_epoch}",
            )

    def record_marker(
        self, header: RecordBatchHeader, base_offset: int, marker: EndTxnMarker
    ) -> AbortedTransaction | None:
        """Add a marker that was appended at `base_offset`; returns an aborted transaction with data here for the
        transaction index.
        """
        aborted = self.aborted_by(header.producer_id, base_offset, marker)
        entry = self.producers.get(header.producer_id)
        if entry is None:
            entry = self.producers[header.producer_id] = ProducerEntry(header.producer_id)
        first_offset, entry.transaction_first_offset = entry.transaction_first_offset, NO_OFFSET
        if header.producer_epoch != entry.epoch:
            entry.batches.clear()
            entry.epoch = header.producer_epoch
        entry.coordinator_epoch = marker.coordinator_epoch
        verification = self.verifications.get(header.producer_id)
        if verification is not None and not (verification.bumps_epoch and verification.epoch == header.producer_epoch):
            # With version 2 and equal epochs, the marker ends the transaction before the one that begins.
            del self.verifications[header.producer_id]
        entry.last_timestamp = header.max_timestamp
        self.end_offset = base_offset + header.last_offset_delta + 1
        if first_offset != NO_OFFSET:
            self.ongoing.pop(first_offset, None)
            while self.unreplicated and self.unreplicated[-1][0] >= first_offset:
                self.unreplicated.pop()
            self.unreplicated.append((first_offset, base_offset))
        return aborted

    def aborted_by(self, producer_id: int, base_offset: int, marker: EndTxnMarker) -> AbortedTransaction | None:
        """The transaction that a marker at `base_offset` aborts, if it has data here."""
        entry = self.producers.get(producer_id)
        if entry is None or entry.transaction_first_offset == NO_OFFSET or marker.control_type == _COMMIT:
            return None
        others = (offset for offset, owner in self.ongoing.items() if owner != producer_id)
        last_stable_offset = next(others, base_offset + 1)
        return AbortedTransaction(producer_id, entry.transaction_first_offset, base_offset, last_stable_offset)

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of a transaction that is open, or whose marker may not be replicated yet."""
        undecided = next(iter(self.ongoing), None)
        if not self.unreplicated:
            return undecided
        unreplicated = self.unreplicated[0][0]
        return unreplicated if undecided is None else min(undecided, unreplicated)

    def forget_replicated(self, high_watermark: int) -> None:
        """Release the last stable offset from transactions whose marker is below the high watermark."""
        replicated = bisect_left(self.unreplicated, high_watermark, key=itemgetter(1))
        del self.unreplicated[:replicated]

    def remove_expired(self, now_ms: int) -> None:
        """Remove producers without an open transaction that have not written for `producer.id.expiration.ms`."""
        for producer_id in [entry.producer_id for entry in self.producers.values() if self._is_expired(entry, now_ms)]:
            del self.producers[producer_id]
        for producer_id, verification in list(self.verifications.items()):
            if now_ms - verification.started_ms >= self.expiration_ms:
                del self.verifications[producer_id]

    def forget_oldest(self, count: int) -> None:
        """Remove the least recent writers, by offset, because clients choose the timestamps."""
        idle = [entry for entry in self.producers.values() if entry.transaction_first_offset == NO_OFFSET]
        idle.sort(key=lambda entry: entry.batches[-1].last_offset if entry.batches else NO_OFFSET)
        for entry in idle[:count]:
            del self.producers[entry.producer_id]

    def forget_oldest_verifications(self, count: int) -> None:
        """Remove the oldest verifications; the producers will resend their batches."""
        for producer_id in list(islice(self.verifications, count)):
            del self.verifications[producer_id]

    def _is_expired(self, entry: ProducerEntry, now_ms: int) -> bool:
        return entry.transaction_first_offset == NO_OFFSET and now_ms - entry.last_timestamp >= self.expiration_ms

    def load(self, entries: Iterable[ProducerEntry], end_offset: int, now_ms: int) -> None:
        """Initialise the state from a snapshot's entries."""
        for entry in sorted(entries, key=lambda entry: entry.transaction_first_offset):
            if self._is_expired(entry, now_ms):
                continue
            self.producers[entry.producer_id] = entry
            if entry.transaction_first_offset != NO_OFFSET:
                self.ongoing[entry.transaction_first_offset] = entry.producer_id
        self.end_offset = end_offset

    def restore_batches(self, headers: Iterable[RecordBatchHeader]) -> bool:
        """Add older batches of the log to the known ones: a snapshot contains only the last batch of each producer.

        `headers` come newest first. Returns whether older ones would add nothing.
        """
        for header in headers:
            entry = self.producers.get(header.producer_id)
            if entry is None or header.is_control or header.producer_epoch != entry.epoch:
                continue
            batches = entry.batches
            if not batches or len(batches) == BATCHES_RETAINED:
                continue
            last_offset = header.base_offset + header.last_offset_delta
            is_next = (header.last_sequence + 1) & SEQUENCE_MASK == batches[0].first_sequence
            if is_next and last_offset < batches[0].first_offset:
                batches.insert(
                    0,
                    BatchMetadata(
                        header.base_sequence,
                        header.last_sequence,
                        last_offset,
                        header.last_offset_delta,
                        header.max_timestamp,
                    ),
                )
        return all(
            len(entry.batches) in (0, BATCHES_RETAINED) or entry.batches[0].first_sequence == 0
            for entry in self.producers.values()
        )


def beyond_their_share(counts: Mapping[Log, int], most: int = PRODUCERS_OF_ALL_LOGS_MAX) -> dict[Log, int]:
    """The number of producers that each log has to remove, so that all together have `most`: the logs with more than an
    equal share lose the surplus.

    A log with few producers loses none, however many write to other logs.
    """
    surpluses = {}
    by_size = sorted(counts.items(), key=lambda each: each[1])
    for index, (log, count) in enumerate(by_size):
        share = most // (len(by_size) - index)
        if count > share:
            surpluses[log] = count - share
        most -= min(share, count)
    return surpluses
