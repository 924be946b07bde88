"""Features of the cluster: the levels that every broker supports, and what clients may therefore rely on (KIP-584).

A cluster of Apache Kafka's KRaft mode is told its levels by an operator. Here, as nobody can be asked, the level is
what the brokers' registrations allow: it falls when a broker joins that does not know the feature, and rises when that
broker leaves.
"""

import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

from barnabas.controller.operations.broker_changes import Registrations
from barnabas.controller.state import BrokerRegistration, SupportedFeature

logger = logging.getLogger(__name__)

LATEST_TRANSACTION_VERSION = 2
"""Highest level of the feature `transaction.version` (KIP-890 part 2)."""

TRANSACTION_VERSION = SupportedFeature("transaction.version", 0, LATEST_TRANSACTION_VERSION)
"""How transactions work; level 2 is KIP-890 part 2."""

SUPPORTED_FEATURES = (TRANSACTION_VERSION,)


class FinalizedFeatures(NamedTuple):
    """The levels of features that clients may rely on, as ApiVersions tells them: those that all brokers support; a
    level 0 is not told. Clients ignore levels of an older `epoch` than they know.
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
    """The levels that this broker's cluster has now: `finalized` is what clients are told.

    `on_transaction_version` is told each level, at first the latest, that differs from the one before.
    """

    def __init__(self, on_transaction_version: Callable[[int], None]) -> None:
        self.finalized = FinalizedFeatures(LATEST_TRANSACTION_VERSION, -1)
        self._on_transaction_version = on_transaction_version

    def finalize(self, registrations: Registrations) -> None:
        """Go by what all brokers of the cluster support."""
        before, level = self.finalized.transaction_version, transaction_version(registrations.brokers)
        self.finalized = FinalizedFeatures(level, registrations.zxid)
        if level != before:
            ids = ", ".join(str(broker.broker_id) for broker in registrations.brokers)
            logger.info("transaction.version is %d now, with brokers %s", level, ids)
            self._on_transaction_version(level)
