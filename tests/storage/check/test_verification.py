"""The checks of transactional batches and of markers beyond sequence and epoch (KIP-890, KIP-1228)."""

import pytest

from barnabas.storage.producer_state import ProducerState
from barnabas.storage.validation import AppendOrigin
from barnabas.wire.control_records import ControlRecordType, EndTxnMarker, build_end_txn_marker
from barnabas.wire.errors import ApiError
from barnabas.wire.record_batch import RecordBatchHeader, parse_header
from barnabas.wire.records import Record, build_batch

PRODUCER_ID = 7
CLIENT, COORDINATOR = AppendOrigin.CLIENT, AppendOrigin.COORDINATOR


def header_of(epoch: int, sequence: int, *, transactional: bool = True) -> RecordBatchHeader:
    batch = build_batch(
        [Record(0, 1000, None, b"v")],
        producer_id=PRODUCER_ID,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
    return parse_header(batch)


class Log:
    """Producer state with offsets that count up."""

    def __init__(self) -> None:
        self.state = ProducerState()
        self.next_offset = 0

    def begin(self, epoch: int, sequence: int = 0, *, bumps_epoch: bool = False):
        return self.state.begin_verification(PRODUCER_ID, epoch, sequence, 1000, bumps_epoch=bumps_epoch)

    def append(self, epoch: int, sequence: int) -> None:
        header = header_of(epoch, sequence)
        assert self.state.check(header, CLIENT) is None
        self.state.record(header, self.next_offset)
        self.next_offset += 1

    def mark(self, epoch: int, coordinator_epoch: int = 0, version: int = 0) -> None:
        marker = EndTxnMarker(ControlRecordType.COMMIT, coordinator_epoch)
        batch = build_end_txn_marker(marker, producer_id=PRODUCER_ID, producer_epoch=epoch, timestamp_ms=1000)
        header = parse_header(batch)
        self.state.check_marker(header, marker, COORDINATOR, version)
        self.state.record_marker(header, self.next_offset, marker)
        self.next_offset += 1


def test_the_first_batch_is_verified_the_others_are_not() -> None:
    log = Log()
    verification = log.begin(0)
    assert verification is not None
    assert log.state.is_verified(PRODUCER_ID, 0, verification)
    log.append(0, 0)
    assert log.begin(0, 1) is None
    assert log.state.is_verified(PRODUCER_ID, 0, None)
    assert not log.state.is_verified(PRODUCER_ID, 1, None)
    log.mark(0)
    assert not log.state.is_verified(PRODUCER_ID, 0, None)
    assert log.begin(0, 1) is not None


def test_an_answer_from_before_a_marker_counts_no_more() -> None:
    log = Log()
    stale = log.begin(0)
    log.mark(0)
    assert not log.state.is_verified(PRODUCER_ID, 0, stale)
    fresh = log.begin(0)
    assert fresh is not stale
    assert log.state.is_verified(PRODUCER_ID, 0, fresh)


def test_version_2_ignores_the_marker_of_the_transaction_before() -> None:
    log = Log()
    log.begin(0, bumps_epoch=True)
    log.append(0, 0)
    following = log.begin(1, bumps_epoch=True)
    log.mark(1, version=2)
    assert log.state.is_verified(PRODUCER_ID, 1, following)
    log.mark(2, version=2)
    assert not log.state.is_verified(PRODUCER_ID, 1, following)


def test_an_older_epoch_is_refused_at_once() -> None:
    log = Log()
    log.begin(3)
    log.append(3, 0)
    with pytest.raises(ApiError, match="INVALID_PRODUCER_EPOCH"):
        log.begin(2)


def test_no_batch_overtakes_one_whose_verification_failed() -> None:
    log = Log()
    assert log.begin(0, 0) is log.begin(0, 5)
    with pytest.raises(ApiError, match="OUT_OF_ORDER_SEQUENCE_NUMBER"):
        log.append(0, 5)
    log.append(0, 0)


def test_a_later_epoch_starts_over() -> None:
    log = Log()
    log.begin(0, 0)
    verification = log.begin(1, 4)
    assert (verification.epoch, verification.lowest_sequence) == (1, 4)
    log.begin(0, 0)
    assert (verification.epoch, verification.lowest_sequence) == (1, 4)
    log.begin(1, 2)
    assert verification.lowest_sequence == 2


def test_with_version_2_unknown_producers_start_at_sequence_0() -> None:
    log = Log()
    log.begin(0, 3, bumps_epoch=True)
    with pytest.raises(ApiError, match="OUT_OF_ORDER_SEQUENCE_NUMBER"):
        log.append(0, 3)
    log = Log()
    log.begin(0, 3)
    log.append(0, 3)


def test_unused_verifications_expire() -> None:
    log = Log()
    log.begin(0)
    log.state.remove_expired(1000 + log.state.expiration_ms - 1)
    assert log.state.verifications
    log.state.remove_expired(1000 + log.state.expiration_ms)
    assert not log.state.verifications


@pytest.mark.parametrize(
    ("epoch", "version", "error"),
    [
        (1, 0, "INVALID_PRODUCER_EPOCH"),
        (2, 0, None),
        (2, 1, None),
        (3, 0, None),
        (1, 2, "INVALID_PRODUCER_EPOCH"),
        (2, 2, "INVALID_PRODUCER_EPOCH"),
        (3, 2, None),
    ],
)
def test_epochs_of_markers_for_an_open_transaction(epoch: int, version: int, error: str | None) -> None:
    log = Log()
    log.append(2, 0)
    if error is None:
        log.mark(epoch, version=version)
        assert log.state.first_unstable_offset == 0, "until the marker is replicated"
        log.state.forget_replicated(log.next_offset)
        assert log.state.first_unstable_offset is None
    else:
        with pytest.raises(ApiError, match=error):
            log.mark(epoch, version=version)
        assert log.state.first_unstable_offset == 0


def test_a_marker_may_be_written_twice() -> None:
    log = Log()
    log.append(2, 0)
    log.mark(3, version=2)
    log.mark(3, version=2)
    with pytest.raises(ApiError, match="INVALID_PRODUCER_EPOCH"):
        log.mark(2, version=2)


def test_the_last_epoch_ends_what_was_begun_under_it() -> None:
    log = Log()
    log.append(32_767, 0)
    log.mark(32_767, version=2)


def test_a_deposed_coordinator_is_fenced() -> None:
    log = Log()
    log.append(0, 0)
    log.mark(0, coordinator_epoch=5)
    log.append(0, 1)
    with pytest.raises(ApiError, match="TRANSACTION_COORDINATOR_FENCED"):
        log.mark(0, coordinator_epoch=4)
    log.mark(0, coordinator_epoch=5)


def test_a_batch_outside_the_open_transaction_is_refused() -> None:
    log = Log()
    log.append(0, 0)
    with pytest.raises(ApiError, match="INVALID_TXN_STATE"):
        log.state.check(header_of(0, 1, transactional=False), CLIENT)


def test_producers_that_never_begin_do_not_fill_the_memory() -> None:
    state = ProducerState(verifications_max=10)
    for producer_id in range(100):
        state.begin_verification(producer_id, 0, 0, 1000, bumps_epoch=False)
    assert sorted(state.verifications) == list(range(90, 100))
