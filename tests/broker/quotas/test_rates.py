"""Rates and token buckets, and the throttle times that follow from them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.quotas.rates import THROTTLE_TIME_MS_MAX, QuotaWindow, Rate, TokenBucket

WINDOW = QuotaWindow(11, 1_000)
"""Kafka's defaults."""


def test_a_new_rate_spans_all_complete_samples() -> None:
    """A burst does not count as if it went on: it is divided by ten seconds, not by the millisecond that it took."""
    rate = Rate(WINDOW)
    rate.record(10_000, 0)
    assert rate.span_ms(0) == 10_000
    assert rate.measure(0) == 1_000
    assert rate.span_ms(500) == 10_500
    assert rate.throttle_time_ms(1_000, 0) == 0
    assert rate.throttle_time_ms(500, 0) == 10_000


def test_samples_expire_with_the_window() -> None:
    rate = Rate(WINDOW)
    for second in range(11):
        rate.record(100, second * 1_000)
    assert rate.measure(10_000) == 110
    assert rate.measure(11_000) == pytest.approx(1_000 / 10)
    assert rate.measure(30_000) == 0


def test_the_throttle_time_brings_the_rate_to_the_bound() -> None:
    """Once it has passed, the rate is the bound, if no sample has expired meanwhile."""
    rate = Rate(WINDOW)
    rate.record(10_500, 0)
    throttle_time_ms = rate.throttle_time_ms(1_000, 0)
    assert throttle_time_ms == 500
    assert rate.measure(throttle_time_ms) == 1_000


def test_a_negative_quantity_takes_some_back() -> None:
    rate = Rate(WINDOW)
    rate.record(300, 0)
    rate.record(-100, 10)
    assert rate.measure(10) * rate.span_ms(10) == pytest.approx(200 * 1_000)


@pytest.mark.parametrize("bound", [0, 1e-9])
def test_a_throttle_time_that_no_response_can_carry(bound: float) -> None:
    rate, bucket = Rate(WINDOW), TokenBucket(WINDOW)
    rate.record(1_000_000, 0)
    bucket.take(1_000_000, bound, 0)
    assert rate.throttle_time_ms(bound, 0) == bucket.throttle_time_ms(bound, 0) == THROTTLE_TIME_MS_MAX


@given(
    st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 10_000)), max_size=60),
    st.integers(1, 12),
    st.integers(1, 3),
)
def test_a_rate_is_never_that_of_more_than_its_window(
    uses: list[tuple[int, int]], samples: int, sample_seconds: int
) -> None:
    """No more counts than was recorded in the window and in the sample that overlaps its beginning; and no more samples
    are kept than the window has, and that one."""
    window = QuotaWindow(samples, sample_seconds * 1_000)
    rate, now_ms, recorded = Rate(window), 0, []
    for pause_ms, value in uses:
        now_ms += pause_ms
        rate.record(value, now_ms)
        recorded.append((now_ms, value))
        seen_ms = now_ms - (window.samples + 1) * window.sample_ms
        counted = rate.measure(now_ms) * rate.span_ms(now_ms) / 1_000
        assert counted <= sum(value for at_ms, value in recorded if at_ms >= seen_ms) + 1e-6
        assert len(rate._samples) <= samples + 1


def test_a_bucket_is_full_at_first_and_refilled_at_its_rate() -> None:
    bucket = TokenBucket(WINDOW)
    assert bucket.tokens(5, 1_000) == 55
    bucket.take(60, 5, 1_000)
    assert bucket.tokens(5, 1_000) == -5
    assert bucket.throttle_time_ms(5, 1_000) == 1_000
    assert bucket.throttle_time_ms(5, 2_000) == 0
    assert bucket.tokens(5, 60_000) == 55


def test_a_bucket_follows_another_rate() -> None:
    """A lower rate holds fewer tokens; a higher one refills faster, and does not fill the bucket at once."""
    bucket = TokenBucket(WINDOW)
    assert bucket.tokens(5, 0) == 55
    assert bucket.tokens(1, 0) == 11
    assert bucket.tokens(10, 1_000) == 21
