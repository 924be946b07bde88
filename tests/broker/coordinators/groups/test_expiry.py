"""A broker looks by itself for offsets that are too old. (How short an interval may be is the housekeeping's matter:
`tests/broker/upkeep/test_housekeeping.py`.)
"""

import pytest
from confluent_kafka import Consumer, TopicPartition

from barnabas.testing import Broker

GROUP = "g"
OFFSETS = {("t", 0): 7}


@pytest.mark.parametrize(("interval_ms", "after_70_s"), [(1, {}), (45_000, OFFSETS)])
def test_offsets_expire_with_the_first_look_after_their_minute(
    interval_ms: int, after_70_s: dict[tuple[str, int], int]
) -> None:
    configs = {"offsets.retention.check.interval.ms": str(interval_ms), "offsets.retention.minutes": "1"}
    with Broker(configs=configs) as broker:
        broker.create_topic("t")
        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": GROUP})
        consumer.commit(offsets=[TopicPartition("t", 0, 7)], asynchronous=False)
        consumer.close()
        for later_ms, expected in ((50_000, OFFSETS), (20_000, after_70_s), (30_000, {})):
            broker.clock.advance(later_ms)
            assert broker.group(GROUP).offsets == expected
        assert broker.group(GROUP).state == "Dead"
