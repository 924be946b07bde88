"""A test that waits for something impossible gets an error at once, with the reason."""

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest

from barnabas.testing import Broker
from barnabas.testing.waiting.timeouts import TIMEOUT_VARIABLE, default_timeout_s

VAIN: list[tuple[Callable[[Broker], Any], type[Exception], str]] = [
    (lambda broker: broker.wait_request(count=20_000), ValueError, "a recording keeps the last 10000 requests"),
    (lambda broker: broker.wait_request(count=0), ValueError, "count is 1 or more, not 0"),
    (lambda broker: broker.wait_request(timeout="3"), TypeError, "timeout is a number of seconds, not '3'"),
    (lambda broker: broker.wait_request(timeout=-1), ValueError, "timeout is in seconds, 0 or more, not -1"),
    (lambda broker: asyncio.run(broker.wait_request_async(count=0)), ValueError, "count is 1 or more, not 0"),
    (lambda broker: broker.wait_group("g", "Dead", members=2), ValueError, "a group that is Dead has no members"),
    (lambda broker: broker.wait_group("g", "Empty", members=2), ValueError, "a group that is Empty has no members"),
    (lambda broker: broker.wait_group("g", members=0), ValueError, "a group that is Stable has members"),
    (lambda broker: broker.wait_group("g", members=-1), ValueError, "members is 0 or more, not -1"),
    (lambda broker: broker.wait_group("g", members="2"), TypeError, "members is a whole number, not '2'"),
    (lambda broker: broker.wait_group("g", "Gone"), ValueError, "groups have the states CompletingRebalance, Dead,"),
    (lambda broker: broker.wait_group("g", timeout="3"), TypeError, "timeout is a number of seconds, not '3'"),
    (lambda broker: asyncio.run(broker.wait_group_async("g", members=-1)), ValueError, "members is 0 or more, not -1"),
    (lambda broker: broker.topic("t").wait_records(-1), ValueError, "count is 0 or more, not -1"),
    (lambda broker: broker.topic("t").wait_records("1"), TypeError, "count is a whole number, not '1'"),
    (lambda broker: broker.topic("t").wait_records(1, timeout="3"), TypeError, "timeout is a number of seconds"),
    (lambda broker: asyncio.run(broker.topic("t").wait_records_async(-1)), ValueError, "count is 0 or more, not -1"),
    (lambda broker: broker.leader("t", timeout="3"), TypeError, "timeout is a number of seconds, not '3'"),
    (lambda broker: broker.wait_in_sync(timeout=-1), ValueError, "timeout is in seconds, 0 or more, not -1"),
    (lambda broker: broker.faults.hold().wait_hits(-1), ValueError, "count is 1 or more, not -1"),
    (lambda broker: broker.faults.hold().wait_hits("1"), TypeError, "count is a whole number, not '1'"),
    (lambda broker: broker.faults.hold().wait_hits(timeout="3"), TypeError, "timeout is a number of seconds"),
    (lambda broker: asyncio.run(broker.faults.hold().wait_hits_async(0)), ValueError, "count is 1 or more, not 0"),
    (lambda broker: broker.faults.hold().wait_held(0), ValueError, "count is 1 or more, not 0"),
    (lambda broker: asyncio.run(broker.faults.hold().wait_held_async(0)), ValueError, "count is 1 or more, not 0"),
    (lambda broker: broker.faults.hold(probability=0), ValueError, "a probability above 0"),
    (lambda broker: broker.faults.hold(probability=True), TypeError, "probability is a number above 0"),
]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("wait", "kind", "told"), VAIN)
def test_a_vain_wait_is_refused_at_once(
    broker: Broker, wait: Callable[[Broker], Any], kind: type[Exception], told: str
) -> None:
    with broker.recorded(), pytest.raises(kind, match=f"^.*{re.escape(told)}"):
        wait(broker)


def test_a_topic_may_be_waited_for(broker: Broker) -> None:
    """No records, of a topic that is to be there."""
    broker.create_topic("t")
    assert broker.topic("t").wait_records(0) == []


def test_the_environment_says_how_long_tests_wait() -> None:
    assert [default_timeout_s(each) for each in ({}, {TIMEOUT_VARIABLE: "7"}, {TIMEOUT_VARIABLE: "0.5"})] == [
        30,
        7,
        0.5,
    ]
    for wrong in ("soon", "-1", "inf", ""):
        with pytest.raises(ValueError, match=f"^BARNABAS_TESTING_TIMEOUT_S is a number of seconds, not '{wrong}'$"):
            default_timeout_s({TIMEOUT_VARIABLE: wrong})
