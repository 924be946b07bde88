"""The measurements of the benchmark's clients, where they have little time for it."""

import time

from barnabas.testing import Broker
from benchmarks.clients import OneByOne
from tools.waiting import wait_until


def test_a_window_too_short_for_any_record_has_the_next_one() -> None:
    """A broker that has little to fetch has caught up before anybody looks."""
    with Broker() as broker:
        broker.create_topic("t", 2)
        with OneByOne(broker, "t", 2, 100) as one_by_one:
            now_s = time.monotonic()
            found = one_by_one.latencies_ms(now_s, now_s)
            assert len(found) == 1
            wait_until(lambda: len(one_by_one.latencies_ms(now_s, time.monotonic())) >= 2, "more records")
        assert one_by_one.latencies_ms(now_s, now_s) == found, "when it is over, too"
        assert one_by_one.latencies_ms(time.monotonic(), time.monotonic()) == []
