"""The features of the cluster, by the brokers' registrations; and the features that clients are told."""

import pytest

from barnabas.broker.cluster.features import SUPPORTED_FEATURES, transaction_version
from barnabas.controller.state import BrokerRegistration, SupportedFeature


def broker(*features: SupportedFeature) -> BrokerRegistration:
    return BrokerRegistration(1, (), features=features)


OURS = broker(*SUPPORTED_FEATURES)
KAFKA_3_9 = broker(SupportedFeature("metadata.version", 1, 21))


@pytest.mark.parametrize(
    ("brokers", "level"),
    [
        ([OURS], 2),
        ([OURS, OURS], 2),
        ([OURS, KAFKA_3_9], 0),
        ([KAFKA_3_9, OURS], 0),
        ([OURS, broker()], 0),
        ([OURS, broker(SupportedFeature("transaction.version", 0, 1))], 0),
        ([OURS, broker(SupportedFeature("transaction.version", 3, 4))], 0),
        ([OURS, broker(SupportedFeature("transaction.version", 1, 3))], 2),
        ([broker(SupportedFeature("another", 0, 2))], 0),
    ],
)
def test_level_2_takes_every_broker(brokers: list[BrokerRegistration], level: int) -> None:
    assert transaction_version(brokers) == level
