"""The settings of transactions: the operator's keys, and limits."""

from dataclasses import dataclass
from typing import Final

from barnabas.broker.cluster.features import LATEST_TRANSACTION_VERSION
from barnabas.broker.configuration.settings import from_key
from barnabas.broker.configuration.tables.broker import BrokerKeys

HELD_BYTES_MAX: Final = 192 * 1024 * 1024
"""The approximate limit of memory of all transactional ids and the partitions of their transactions."""

HELD_BYTES_OF_KNOWN_IDS_MAX: Final = 256 * 1024 * 1024
"""The limit when a transaction of a known id grows: new ids are refused earlier."""


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """Kafka's `transaction.*` and `transactional.*` keys that the coordinator supports.

    `transaction_version` is the finalised level of the feature of that name: at level 0 value version 0 is written to
    the log, and from level 2 on the coordinator's own aborts bump epochs as clients of that version expect. The limits
    are constants, which only tests change.
    """

    transaction_max_timeout_ms: int = from_key(BrokerKeys.transaction_max_timeout_ms)
    transactional_id_expiration_ms: int = from_key(BrokerKeys.transactional_id_expiration_ms)
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = from_key(
        BrokerKeys.transaction_abort_timed_out_transaction_cleanup_interval_ms
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = from_key(
        BrokerKeys.transaction_remove_expired_transaction_cleanup_interval_ms
    )
    transaction_version: int = LATEST_TRANSACTION_VERSION
    held_bytes_max: int = HELD_BYTES_MAX
    held_bytes_of_known_ids_max: int = HELD_BYTES_OF_KNOWN_IDS_MAX

    @property
    def log_value_version(self) -> int:
        """The version of the values written to `__transaction_state`."""
        return 1 if self.transaction_version >= 1 else 0
