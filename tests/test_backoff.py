"""Delays before the next try."""

from barnabas.backoff import Backoff


def test_delays_double_up_to_the_longest_until_it_worked() -> None:
    backoff = Backoff(100, 1_000)
    assert [backoff.next_ms() for _ in range(6)] == [100, 200, 400, 800, 1_000, 1_000]
    backoff.reset()
    assert [backoff.next_ms() for _ in range(2)] == [100, 200]


def test_no_delay_stays_none() -> None:
    backoff = Backoff(0, 1_000)
    assert [backoff.next_ms() for _ in range(3)] == [0, 0, 0]
