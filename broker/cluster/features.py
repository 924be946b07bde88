"""Features of the cluster: the levels that every broker supports, and what clients may therefore rely on (KIP-584).

A cluster of Apache Kafka's KRaft mode is told its levels by an operator. Here, as nobody can be asked, the level is
what the brokers' registrations allow: it falls when a broker joins that does not know the feature, and rises when that
broker leaves.
"""

from collections.abc import Iterable
from typing import NamedTuple

from barnabas.broker.coordinators.transactions.settings import LATEST_TRANSACTION_VERSION
from barnabas.controller.state import BrokerRegistration, SupportedFeature

TRANSACTION_VERSION = SupportedFeature("transaction.version", 0, LATEST_TRANSACTION_VERSION)
"""How transactions work; level 2 is KIP-890 part 2."""

SUPPORTED_FEATURES = (TRANSACTION_VERSION,)


class FinalizedFeatures(NamedTuple):
    """What all brokers agree on; level 0 is not advertised. Clients ignore levels of an older epoch than they know."""

    transaction_version: int
    epoch: int


def transaction_version(brokers: Iterable[BrokerRegistration]) -> int:
    """The latest level while every broker supports it, else 0."""
    for broker in brokers:
        known = [each for each in broker.features if each.name == TRANSACTION_VERSION.name]
        if not any(each.min_version <= LATEST_TRANSACTION_VERSION <= each.max_version for each in known):
            return 0
    return LATEST_TRANSACTION_VERSION
