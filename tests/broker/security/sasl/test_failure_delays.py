"""The delays of failed logins: how long they grow, and how many addresses they are kept for."""

from barnabas.broker.security.sasl.failure_delays import (
    ADDRESSES_MAX,
    DELAY_MAX_MS,
    FORGOTTEN_AFTER_MS,
    FailureDelays,
)


def test_delays_double_up_to_the_longest() -> None:
    delays = FailureDelays()
    told = [delays.failed("10.0.0.1", 100, 0) for _ in range(100)]
    assert told[:4] == [100, 200, 400, 800]
    assert max(told) == told[-1] == DELAY_MAX_MS
    assert delays.failed("10.0.0.1", 20_000, 0) == 20_000, "the configured delay is longer"


def test_failures_are_forgotten() -> None:
    """Some time after the last one, and after a success."""
    delays = FailureDelays()
    assert [delays.failed("10.0.0.1", 100, at_ms) for at_ms in (0, FORGOTTEN_AFTER_MS - 1)] == [100, 200]
    assert delays.failed("10.0.0.1", 100, 2 * FORGOTTEN_AFTER_MS - 1) == 100
    delays.succeeded("10.0.0.1")
    assert delays.failed("10.0.0.1", 100, 2 * FORGOTTEN_AFTER_MS) == 100


def test_the_address_that_failed_least_recently_is_forgotten() -> None:
    delays = FailureDelays()
    for number in range(ADDRESSES_MAX):
        delays.failed(f"address {number}", 100, 0)
    assert delays.failed("address 0", 100, 1) == 200
    assert delays.failed("one more", 100, 2) == 100
    assert delays.failed("address 0", 100, 3) == 400
    assert delays.failed("address 1", 100, 3) == 100, "it was the oldest"
