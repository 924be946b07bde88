"""What an operator may set about transactions."""

from dataclasses import dataclass, field

from barnabas.broker.cluster.features import LATEST_TRANSACTION_VERSION


def _key(name: str, default: int) -> int:
    value: int = field(default=default, metadata={"key": name})
    return value


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """Kafka's `transaction.*` and `transactional.*` keys that the coordinator obeys, with Kafka's defaults; the key is
    in each field's metadata.

    `transaction_version` is the finalised level of the feature of that name: level 0 writes value version 0 into the
    log, and from level 2 on the coordinator's own aborts bump epochs as clients of that version expect.
    """

    transaction_max_timeout_ms: int = _key("transaction.max.timeout.ms", 900_000)
    transactional_id_expiration_ms: int = _key("transactional.id.expiration.ms", 604_800_000)
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = _key(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms", 10_000
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = _key(
        "transaction.remove.expired.transaction.cleanup.interval.ms", 3_600_000
    )
    transaction_version: int = LATEST_TRANSACTION_VERSION

    @property
    def log_value_version(self) -> int:
        """Version of the values written to `__transaction_state`."""
        return 1 if self.transaction_version >= 1 else 0
