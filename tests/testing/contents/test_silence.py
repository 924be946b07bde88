"""Topics to which nothing is written: `wait_silence`, and `records` of those that do not exist."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from barnabas.clock import ManualClock
from barnabas.testing import ApiError, Broker, Cluster, ErrorCode, Record
from tools.waiting import wait_until

Owner = Broker | Cluster
SECOND = timedelta(seconds=1)


@pytest.fixture(params=[Broker, Cluster])
def owner(request: pytest.FixtureRequest) -> Iterator[Owner]:
    """Its time stands still until a test moves it."""
    with request.param(clock=ManualClock()) as running:
        yield running


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def begin(pool: ThreadPoolExecutor, owner: Owner, topic: str = "t") -> "Future[list[Record]]":
    """A wait that has looked at the topic, so that the time of now counts."""
    before = alarms(owner)
    waiting = pool.submit(owner.topic(topic).wait_silence, SECOND)
    wait_until(lambda: alarms(owner) > before, "somebody who waits")
    return waiting


def alarms(owner: Owner) -> int:
    """How many listen to what brokers know of topics."""
    return sum(len(server.metadata.listeners) for server in owner.live_servers())


def look(owner: Owner) -> None:
    """Return when all who wait have seen what there is by now."""

    async def turns() -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    owner.call(turns())


def test_silence_is_measured_by_the_brokers_time(owner: Owner, pool: ThreadPoolExecutor) -> None:
    topic = owner.create_topic("t")
    first = topic.produce("1")
    waiting = begin(pool, owner)
    owner.clock.advance(999)
    second = topic.produce("2")
    look(owner)
    owner.clock.advance(999)
    look(owner)
    assert not waiting.done()
    owner.clock.advance(1)
    assert waiting.result() == [first, second]


def test_a_topic_that_is_not_there_is_silent(owner: Owner, pool: ThreadPoolExecutor) -> None:
    waiting = begin(pool, owner)
    owner.clock.advance(SECOND)
    assert waiting.result() == []


def test_a_record_in_a_new_topic_ends_the_silence(owner: Owner, pool: ThreadPoolExecutor) -> None:
    waiting = begin(pool, owner)
    record = owner.create_topic("t").produce("v")
    look(owner)
    owner.clock.advance(999)
    look(owner)
    assert not waiting.done()
    owner.clock.advance(1)
    assert waiting.result() == [record]


def test_a_reset_begins_the_silence_anew(pool: ThreadPoolExecutor) -> None:
    with Broker(clock=ManualClock()) as broker:
        broker.create_topic("t").produce("v")
        waiting = begin(pool, broker)
        broker.clock.advance(999)
        broker.reset()
        look(broker)
        broker.clock.advance(999)
        look(broker)
        assert not waiting.done()
        broker.clock.advance(1)
        assert waiting.result() == []


def test_a_topic_that_is_never_silent(owner: Owner) -> None:
    owner.create_topic("t").produce("v")
    with pytest.raises(
        TimeoutError, match=r"topic t was not silent for 1000 ms.*\n  t-0 offset 0: key None, value b'v'"
    ):
        owner.topic("t").wait_silence(1000, timeout=0.01)


def test_on_an_event_loop(owner: Owner) -> None:
    topic = owner.create_topic("t")

    async def use() -> None:
        with pytest.raises(RuntimeError, match="await wait_silence_async"):
            topic.wait_silence(SECOND)
        assert await topic.wait_silence_async(0) == []

    asyncio.run(use())


@pytest.mark.parametrize("duration", [-1, "1", None, True])
def test_a_duration_is_a_time(duration: Any) -> None:
    with Broker() as broker, pytest.raises((TypeError, ValueError), match="duration"):
        broker.topic("t").wait_silence(duration)


def test_silence_leaves_no_listeners(owner: Owner) -> None:
    before = alarms(owner)
    owner.topic("t").wait_silence(0)
    assert alarms(owner) == before


def test_a_missing_topic_holds_nothing_where_the_test_says_so(owner: Owner) -> None:
    topic = owner.topic("t")
    assert topic.records(missing_ok=True) == []
    with pytest.raises(ApiError) as missing:
        topic.records()
    assert missing.value.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    owner.create_topic("t")
    record = topic.produce("v")
    assert topic.records(missing_ok=True) == [record]
    with pytest.raises(ApiError, match="has the partitions 0 to 0, not 7"):
        topic.records(partition=7, missing_ok=True)
