"""Rules of kcl fake: whose requests they are for, and which of several answers."""

from collections.abc import Iterator
from typing import Any

import pytest

from barnabas.testing import Broker
from barnabas.testing.control import rules
from barnabas.testing.control.fields import Refused
from barnabas.testing.control.rules import Rules
from barnabas.wire.messages.describe_groups import DescribeGroupsRequest
from tests.testing.faults.test_faults import ask, codes, error, produce
from tools.attack.hostile import connect


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        broker.create_topic("t", partitions=2)
        yield broker


def make(broker: Broker, *given: dict[str, Any]) -> Rules:
    return rules.make(broker.faults, list(given), lambda nodes: None)


def list_groups(broker: Broker, count: int) -> list[int]:
    """The errors of so many requests without entries."""
    with connect(broker.bootstrap_servers) as connection:
        return [error(connection) for _ in range(count)]


@pytest.mark.parametrize("is_one_list", [True, False])
def test_rules_for_the_same_requests_come_one_after_the_other(broker: Broker, is_one_list: bool) -> None:
    first, second = {"keys": ["listgroups"], "error": 14, "count": 2}, {"keys": ["16"], "error": 15}
    made = [make(broker, first, second)] if is_one_list else [make(broker, first), make(broker, second)]
    assert list_groups(broker, 4) == [14, 14, 15, 0]
    assert sum(each.hits for each in made) == 3


def test_one_request_is_answered_by_the_rules_of_its_entries(broker: Broker) -> None:
    """The second one for a partition waits for the next request."""
    made = make(
        broker,
        {"topic": "t", "partitions": [0], "error": "INVALID_RECORD"},
        {"topic": "t", "partitions": [1], "error": "MESSAGE_TOO_LARGE"},
        {"topic": "t", "partitions": [0], "error": "CORRUPT_MESSAGE", "keys": ["produce"]},
    )
    with connect(broker.bootstrap_servers) as connection:
        told = [codes(ask(connection, produce(0, 1), 7)) for _ in range(3)]
    assert told == [{0: 87, 1: 10}, {0: 2, 1: 0}, {0: 0, 1: 0}]
    assert (made.hits, made.answer(1)["left"]) == (3, 0)


def test_a_rule_for_whole_answers_comes_first(broker: Broker) -> None:
    make(broker, {"keys": ["ListGroups"], "error": 14}, {"keys": ["ListGroups"], "error": 15, "top_level": True})
    assert list_groups(broker, 3) == [15, 14, 0]


def test_a_request_answered_by_a_rule_is_not_observed_by_others(broker: Broker) -> None:
    before = make(broker, {"keys": ["ListGroups"], "observe": True, "count": -1})
    make(broker, {"keys": ["ListGroups"], "error": 14})
    after = make(broker, {"keys": ["ListGroups"], "observe": True, "count": -1})
    assert list_groups(broker, 3) == [14, 0, 0]
    assert (before.hits, after.hits) == (3, 2)


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("NOT_LEADER_OR_FOLLOWER", 6),
        ("NOT_LEADER_FOR_PARTITION", 6),
        ("not_leader_for_partition", 6),
        ("Unknown_Topic_Id", 100),
        ("100", 100),
        (100, 100),
        ("-1", -1),
        (None, -1),
    ],
)
def test_an_error_is_said_in_any_way_that_kcl_takes(broker: Broker, said: str | int | None, code: int) -> None:
    make(broker, {"keys": ["DescribeGroups"], "group": "g", "error": said})
    with connect(broker.bootstrap_servers) as connection:
        [group] = ask(connection, DescribeGroupsRequest(groups=["g"]), 4).groups
    assert group.error_code == code


@pytest.mark.parametrize("said", ["0", "9999", "nope", "", "NONE", "none"])
def test_an_error_that_is_none_is_refused(broker: Broker, said: str) -> None:
    with pytest.raises(ValueError, match="error"):
        make(broker, {"error": said})
    assert len(broker.faults) == 0


def test_requests_between_brokers_are_no_rules(broker: Broker) -> None:
    """Rules have no field for that."""
    told = "^rules match requests of clients, and only brokers send LeaderAndIsr: use POST fail with"
    with pytest.raises(Refused, match=told):
        make(broker, {"keys": ["leaderandisr"]})
    assert len(broker.faults) == 0


def test_requests_have_the_names_that_franz_go_gives_them(broker: Broker) -> None:
    made = make(broker, {"keys": ["AlterPartitionAssignments", "SASLHandshake", "InitProducerID"]})
    assert repr(made.faults[0]).startswith("<rule: fail SaslHandshake, InitProducerId, AlterPartitionReassignments UNK")


def test_rules_tell_what_they_are_for(broker: Broker) -> None:
    made = make(broker, {"keys": ["produce"], "topic": "t", "error": "6"}, {"observe": True, "count": -1})
    first = "rule: fail Produce NOT_LEADER_OR_FOLLOWER (topic='t', times=1)"
    assert repr(made) == f"<{first}; rule: observe everything, 0 hits>"


@pytest.mark.parametrize(
    ("said", "count"),
    [("REQUEST_TIMED_OUT", 1), ("NOT_ENOUGH_REPLICAS_AFTER_APPEND", 1), ("NOT_ENOUGH_REPLICAS", 0)],
)
def test_errors_of_what_is_done_are_told_when_it_is_done(broker: Broker, said: str, count: int) -> None:
    make(broker, {"keys": ["produce"], "error": said})
    with connect(broker.bootstrap_servers) as connection:
        assert codes(ask(connection, produce(0), 7))[0] != 0
    assert len(broker.topic("t").records()) == count
