"""The refusals of `serve --brokers N` for numbers of replicas that so many brokers cannot keep."""

import re
from typing import Final

import pytest

from barnabas.broker.cli.broker_plans import replicas_beyond
from barnabas.broker.configuration.config import load
from barnabas.broker.configuration.keys import OBEYED_KEYS

BEYOND: Final = {
    "default.replication.factor": "only topics with a replication factor of their own can be created",
    "min.insync.replicas": "acks=all needs every replica of a topic, and is refused while one of them is out of sync",
    "offsets.topic.replication.factor": "consumer groups wait for more brokers",
    "transaction.state.log.replication.factor": "transactions wait for more brokers",
    "transaction.state.log.min.isr": (
        "transactions need every replica of __transaction_state, and wait while one of them is out of sync"
    ),
}
"""The consequence of each key, in the order in which they are told."""
COUNTS_OF_REPLICAS: Final = re.compile(r".*(replication\.factor|min\.isr|min\.insync\.replicas)")


def told(count: int, **configs: str) -> list[str]:
    return list(replicas_beyond(load(options={key.replace("_", "."): value for key, value in configs.items()}), count))


def all_set_to(number: int) -> dict[str, str]:
    return dict.fromkeys((key.replace(".", "_") for key in BEYOND), str(number))


@pytest.mark.parametrize("key", BEYOND)
def test_a_count_above_the_brokers_is_told_with_its_consequence(key: str) -> None:
    configs = {**all_set_to(2), key.replace(".", "_"): "3"}
    assert told(2, **configs) == [f"{key} is 3, but there are only 2 brokers: {BEYOND[key]}"]


def test_a_count_equal_to_the_brokers_is_not_told() -> None:
    assert told(3, **all_set_to(3)) == []


def test_every_count_above_the_brokers_is_told() -> None:
    assert [line.partition(" is 4, ")[0] for line in told(3, **all_set_to(4))] == list(BEYOND)


def test_no_key_is_left_out() -> None:
    """Of all that the broker obeys and that counts replicas."""
    assert {key.name for key in OBEYED_KEYS if COUNTS_OF_REPLICAS.fullmatch(key.name)} == set(BEYOND)
