"""Replication throttles: the bytes that pass in ten seconds, and the replicas that are delayed."""

import random

import pytest

from barnabas.broker.replication.throttles import UNLIMITED, Throttle, is_listed
from barnabas.clock import ManualClock

RATE = 1_000_000


def throttle(clock: ManualClock, rate: int = RATE, replicas: str = "*") -> Throttle:
    return Throttle(1, rate, lambda _topic: replicas, clock)


@pytest.mark.slow
@pytest.mark.parametrize("size", [5_000, 100_000, 400_000])
@pytest.mark.parametrize("seed", range(5))
def test_bytes_in_any_ten_seconds_keep_to_the_rate(size: int, seed: int) -> None:
    clock, rng = ManualClock(), random.Random(seed)
    of = throttle(clock)
    passed: list[tuple[int, int]] = []
    while clock.monotonic_ms() < 60_000:
        wait_ms = of.wait_ms()
        if wait_ms:
            clock.advance(wait_ms + rng.randrange(20))  # who waits may come a little later
            continue
        taken = rng.randrange(size // 2, size + 1)
        of.record(taken)
        passed.append((clock.monotonic_ms(), taken))
    for begin_ms in range(0, 50_000, 1_000):
        total = sum(taken for at_ms, taken in passed if begin_ms <= at_ms < begin_ms + 10_000)
        assert total == pytest.approx(RATE * 10, rel=0.1), f"from {begin_ms} ms on"


def test_unused_bytes_are_lost() -> None:
    clock = ManualClock()
    of = throttle(clock)
    clock.advance(3_600_000)
    assert of.wait_ms() == 0
    of.record(RATE)
    assert of.wait_ms() == 751, "all but a quarter of a second's"


def test_returned_bytes_may_pass() -> None:
    clock = ManualClock()
    of = throttle(clock)
    clock.advance(100)
    of.record(500_000)
    assert of.wait_ms() > 0
    of.record(-500_000)
    assert of.wait_ms() == 0


def test_nothing_passes_at_a_rate_of_0() -> None:
    clock = ManualClock()
    of = throttle(clock, rate=0)
    clock.advance(10_000)
    assert of.wait_ms() == 1_000, "looked at again then"


def test_without_a_rate_nothing_is_throttled() -> None:
    of = throttle(ManualClock(), rate=UNLIMITED)
    assert not of.is_limited
    assert not of.applies_to("t", 0)
    of.limit(RATE)
    assert of.is_limited
    assert of.applies_to("t", 0)


@pytest.mark.parametrize(
    ("replicas", "is_in_it"),
    [("", False), ("*", True), (" * ", True), ("0:1", True), ("0:2", False), ("1:1", False), ("1:2, 0:1 ,10:1", True)],
)
def test_which_replicas_are_listed(replicas: str, is_in_it: bool) -> None:
    assert is_listed(replicas, 0, 1) is is_in_it
    assert throttle(ManualClock(), replicas=replicas).applies_to("t", 0) is is_in_it
