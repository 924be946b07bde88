"""Settings: what a part of the broker obeys, out of the configuration."""

from dataclasses import fields

import pytest

from barnabas.broker.configuration import config
from barnabas.broker.configuration.settings import settings_of
from barnabas.broker.coordinators.groups.settings import GroupSettings
from barnabas.broker.coordinators.transactions.settings import TransactionSettings


@pytest.mark.parametrize("kind", [GroupSettings, TransactionSettings])
def test_each_key_has_its_own_field(kind: type[GroupSettings | TransactionSettings]) -> None:
    keys = [each.metadata["key"] for each in fields(kind) if "key" in each.metadata]
    numbers = {key.name: str(1 if key.name == "offsets.topic.compression.codec" else 100 + place)
               for place, key in enumerate(keys)}  # fmt: skip
    made = settings_of(kind, config.load(overrides=numbers))
    assert {key.name: str(getattr(made, key.attribute)) for key in keys} == numbers
    assert [each.name for each in fields(kind) if "key" in each.metadata] == [key.attribute for key in keys]


@pytest.mark.parametrize("kind", [GroupSettings, TransactionSettings])
def test_defaults_are_those_of_a_broker_that_is_told_nothing(kind: type[GroupSettings | TransactionSettings]) -> None:
    assert settings_of(kind, config.load()) == kind()
