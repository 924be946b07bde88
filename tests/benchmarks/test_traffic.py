"""The client that writes and reads while something is done to a cluster."""

from typing import Any

import pytest
from confluent_kafka import KafkaException

from barnabas.testing import Broker
from benchmarks.traffic import Traffic
from tools.waiting import wait_until

pytestmark = pytest.mark.slow


class Stuck:
    """A consumer two of whose threads wait for each other after its first records."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._is_stuck = False

    def consume(self, *arguments: Any, **options: Any) -> list[Any]:
        if self._is_stuck:
            return []
        found: list[Any] = self._consumer.consume(*arguments, **options)
        self._is_stuck = any(message.error() is None for message in found)
        return found

    def list_topics(self, *arguments: Any, **options: Any) -> Any:
        if self._is_stuck:
            raise KafkaException("nothing was heard")
        return self._consumer.list_topics(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)


class StuckTraffic(Traffic):
    """Its first consumer holds itself up."""

    consumers = 0

    def _consumer(self) -> Any:
        self.consumers += 1
        consumer = super()._consumer()
        return Stuck(consumer) if self.consumers == 1 else consumer


def test_a_reader_that_holds_itself_up_is_replaced() -> None:
    with Broker() as broker:
        broker.create_topic("words", 2)
        with StuckTraffic(broker.bootstrap_servers, "words", stall_s=0.5) as traffic:
            traffic.wait_for(1000)
        assert traffic.consumers == 4, (
            "the first, one that looks whether others are better off, its successor, the last"
        )
        assert (traffic.errors, traffic.read_errors, traffic.lost, traffic.doubled) == ([], [], 0, 0)


def test_a_reader_for_which_there_is_nothing_is_not() -> None:
    """That is the broker's doing."""
    with Broker() as broker:
        broker.create_topic("words", 1)
        traffic = StuckTraffic(broker.bootstrap_servers, "words", stall_s=0.2)
        traffic.consumers = 1  # so that none is stuck
        with traffic:
            traffic.wait_for(100)
            with broker.faults.hold("Fetch"):
                written = traffic.acknowledged
                wait_until(lambda: traffic.acknowledged >= written + 500)
            traffic.wait_for(100)
        assert traffic.consumers == 3, "the first and the last"
        assert (traffic.read_errors, traffic.lost) == ([], 0)
