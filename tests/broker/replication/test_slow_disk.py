"""A disk that is slow for one log: requests for other logs do not wait."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from barnabas.testing import Broker
from tests.support.files import SlowDisk
from tools.waiting import PATIENCE_S

RECORDS = 50


@pytest.fixture
def slow() -> Iterator[SlowDisk]:
    slow = SlowDisk("slow-0")
    yield slow
    slow.go_on.set()


@pytest.mark.parametrize("flushed", ["before the acknowledgement", "after each record"])
def test_only_requests_for_a_slow_log_wait(slow: SlowDisk, tmp_path: Path, flushed: str) -> None:
    """All requests are served while one sync is under way, so that none of them waits for it."""
    is_flushed_first = flushed == "before the acknowledgement"
    settings = {"barnabas.flush.before.ack": "true"} if is_flushed_first else {"log.flush.interval.messages": "1"}
    settings |= {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "1"}
    with Broker(data_dir=tmp_path, files=slow, configs=settings) as broker:
        for name in ("slow", "other"):
            broker.create_topic(name)
        producer, waiting = (  # answers of one connection come in the order of its requests
            Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0, "acks": "all"}) for _ in range(2)
        )
        member = Consumer(
            {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest",
             "heartbeat.interval.ms": 100, "enable.auto.commit": False}
        )  # fmt: skip
        member.subscribe(["other"])
        producer.produce("other", b"first")
        assert producer.flush(PATIENCE_S) == 0
        assert member.consume(1, timeout=PATIENCE_S)
        members = broker.group("g").members
        acknowledged: list[bytes] = []
        waiting.produce("slow", b"slow")
        try:
            slow.wait_until_reached()
            for number in range(RECORDS):
                producer.produce("other", b"%d" % number, on_delivery=lambda error, message: (
                    acknowledged.append(message.value()) if error is None else None
                ))  # fmt: skip
                while len(acknowledged) <= number:
                    assert producer.poll(PATIENCE_S)
                (found,) = member.consume(1, timeout=PATIENCE_S)
                assert found.value() == b"%d" % number
                member.commit(message=found, asynchronous=False)
            assert acknowledged == [b"%d" % number for number in range(RECORDS)]
            assert broker.group("g").members == members
            assert member.committed([TopicPartition("other", 0)], timeout=PATIENCE_S)[0].offset == RECORDS + 1
            assert waiting.flush(0) == 1
        finally:
            slow.go_on.set()
        assert waiting.flush(PATIENCE_S) == 0
        member.close()
