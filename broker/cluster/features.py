"""Features of the cluster: the levels that every broker supports, on which clients may therefore rely (KIP-584).

In a cluster of Apache Kafka's KRaft mode an operator sets the levels. Here the level follows from the brokers'
registrations: it falls when a broker joins that does not support the feature, and rises when that broker leaves.
"""

import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

from barnabas.controller.state import BrokerRegistration, Registrations, SupportedFeature

logger = logging.getLogger(__name__)

LATEST_TRANSACTION_VERSION = 2
"""The highest level of the feature `transaction.version` (KIP-890 part 2)."""

TRANSACTION_VERSION = SupportedFeature("transaction.version", 0, LATEST_TRANSACTION_VERSION)
"""The protocol of transactions; level 2 is KIP-890 part 2."""

SUPPORTED_FEATURES = (TRANSACTION_VERSION,)


class FinalizedFeatures(NamedTuple):
    """The levels of features in the ApiVersions response: those that all brokers support; a level 0 is not sent.
    Clients ignore levels of an older `epoch` than they know.
    """

    transaction_version: int
    epoch: int


def transaction_version(brokers: Iterable[BrokerRegistration]) -> int:
    """The latest level while every broker supports it, else 0."""
    for broker in brokers:
        known = [each for each in broker.features if each.name == TRANSACTION_VERSION.name]
        if not any(each.min_version <= LATEST_TRANSACTION_VERSION <= each.max_version for each in known):
            return 0
    return LATEST_TRANSACTION_VERSION


class ClusterFeatures:
    """The current levels of this broker's cluster: `finalized` is sent to clients.

    `on_transaction_version` is called with each changed level; the initial one is the latest.
    """

    def __init__(self, on_transaction_version: Callable[[int], None]) -> None:
        self.finalized = FinalizedFeatures(LATEST_TRANSACTION_VERSION, -1)
        self._on_transaction_version = on_transaction_version

    def finalize(self, registrations: Registrations) -> None:
        """Compute the levels that all brokers of the cluster support."""
        before, level = self.finalized.transaction_version, transaction_version(registrations.brokers)
        self.finalized = FinalizedFeatures(level, registrations.zxid)
        if level != before:
            ids = ", ".join(str(broker.broker_id) for broker in registrations.brokers)
            logger.info("transaction.version is %d now, with brokers %s", level, ids)
            self._on_transaction_version(level)
