"""The records in `__transaction_state`: Kafka's schemas, at the versions that Kafka 4.3 writes.

    key    int16 type 0 | transactional id
    value  int16 version | fields at that version    null is a tombstone

Values are written at version 1, or 0 while `transaction.version` is 0; both can be read. Version 0 has neither the
client's transaction version nor the previous and next producer id. Source: Kafka's TransactionLog.
"""

from collections.abc import Iterable
from typing import Final

from barnabas.broker.coordinators.record_versions import INT16, leading_int16
from barnabas.broker.coordinators.transactions.state import (
    NO_PRODUCER_ID,
    Record,
    TopicPartition,
    Transaction,
    TransactionState,
    TransactionTombstone,
)
from barnabas.wire.codec import decode, encode
from barnabas.wire.errors import ProtocolError
from barnabas.wire.messages.transaction_log_key import TransactionLogKey
from barnabas.wire.messages.transaction_log_value import PartitionsSchema, TransactionLogValue

TRANSACTION_TYPE: Final = 0

_STATES: Final = (
    TransactionState.EMPTY,
    TransactionState.ONGOING,
    TransactionState.PREPARE_COMMIT,
    TransactionState.PREPARE_ABORT,
    TransactionState.COMPLETE_COMMIT,
    TransactionState.COMPLETE_ABORT,
)
"""By their number in the log. The two states after these are never written."""


def encode_record(record: Record, version: int) -> tuple[bytes, bytes | None]:
    """Key and value for the log, the value at `version`; no value for a tombstone."""
    key = INT16.pack(TRANSACTION_TYPE) + encode(TransactionLogKey(transactional_id=record.transactional_id), 0)
    if isinstance(record, TransactionTombstone):
        return key, None
    value = TransactionLogValue(
        producer_id=record.producer_id,
        producer_epoch=record.producer_epoch,
        transaction_timeout_ms=record.timeout_ms,
        transaction_status=_STATES.index(record.state),
        transaction_partitions=None if record.state is TransactionState.EMPTY else _by_topic(record.partitions),
        transaction_last_update_timestamp_ms=record.last_update_ms,
        transaction_start_timestamp_ms=record.start_ms,
    )
    if version >= 1:
        value.previous_producer_id = record.previous_producer_id
        value.next_producer_id = record.next_producer_id
        value.client_transaction_version = record.client_version
    return key, INT16.pack(version) + encode(value, version)


def decode_record(key: bytes, value: bytes | None) -> Record:
    """Decode a record of the log. Errors: ProtocolError when it is of another type or version, or invalid."""
    record_type = leading_int16(key)
    if record_type != TRANSACTION_TYPE:
        raise ProtocolError(f"record has type {record_type}, known is {TRANSACTION_TYPE}")
    transactional_id = decode(TransactionLogKey, 0, key, INT16.size).transactional_id
    if value is None:
        return TransactionTombstone(transactional_id)
    version = leading_int16(value)
    lowest, highest = TransactionLogValue.VALID_VERSIONS
    if not lowest <= version <= highest:
        raise ProtocolError(f"record value has version {version}, known are {lowest} to {highest}")
    fields = decode(TransactionLogValue, version, value, INT16.size)
    if not 0 <= fields.transaction_status < len(_STATES):
        raise ProtocolError(f"transaction has state {fields.transaction_status}")
    return Transaction(
        transactional_id,
        fields.producer_id,
        fields.producer_epoch,
        fields.transaction_timeout_ms,
        _STATES[fields.transaction_status],
        frozenset(
            (topic.topic, partition)
            for topic in fields.transaction_partitions or ()
            for partition in topic.partition_ids
        ),
        fields.transaction_start_timestamp_ms,
        fields.transaction_last_update_timestamp_ms,
        fields.previous_producer_id if version >= 1 else NO_PRODUCER_ID,
        fields.next_producer_id if version >= 1 else NO_PRODUCER_ID,
        client_version=fields.client_transaction_version if version >= 1 else 0,
    )


def _by_topic(partitions: Iterable[TopicPartition]) -> list[PartitionsSchema]:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return [PartitionsSchema(topic=topic, partition_ids=indexes) for topic, indexes in topics.items()]
