"""Rates and token buckets: how much of something a client has used, and for how long it has to wait. Pure.

A rate is the sum of some samples, divided by the time that they span. A sample covers `quota.window.size.seconds`, and
`quota.window.num` of them count, the last of which is not over. A client that has paused may use the whole window at
once; then the rate falls only as the samples expire. A token bucket (KIP-599) is refilled continuously, so that its
client never waits longer than the excess takes at the rate of the quota.

Source: kafka 3.9.1 Rate, SampledStat, WindowedSum, TokenBucket, QuotaUtils.throttleTime,
ControllerMutationQuotaManager.throttleTimeMs.
"""

from math import floor
from typing import Final, NamedTuple

THROTTLE_TIME_MS_MAX: Final = 2**31 - 1
"""The limit of `throttle_time_ms` in responses. Kafka's conversion would let a longer time become a negative one."""


class QuotaWindow(NamedTuple):
    """The samples that count: their number, and the length of each."""

    samples: int
    sample_ms: int

    @property
    def seconds(self) -> float:
        """The length of all samples."""
        return self.samples * self.sample_ms / 1000


class _Sample:
    __slots__ = ("last_ms", "start_ms", "value")

    def __init__(self, now_ms: int) -> None:
        self.reset(now_ms)

    def reset(self, now_ms: int) -> None:
        self.start_ms = self.last_ms = now_ms
        self.value = 0.0


class Rate:
    """A quantity per second, over a window of samples. Times are those of one monotonic clock, in milliseconds."""

    __slots__ = ("_current", "_samples", "_window")

    def __init__(self, window: QuotaWindow) -> None:
        self._window = window
        self._samples: list[_Sample] = []
        self._current = 0

    def record(self, value: float, now_ms: int) -> None:
        """Count a quantity; a negative one takes some of the sample in progress back."""
        if not self._samples:
            self._samples.append(_Sample(now_ms))
        sample = self._samples[self._current]
        if now_ms - sample.start_ms >= self._window.sample_ms:
            sample = self._next_sample(now_ms)
        sample.value += value
        sample.last_ms = now_ms

    def _next_sample(self, now_ms: int) -> _Sample:
        """Begin a sample: one more than the window has, because the oldest may overlap the window's beginning."""
        self._current = (self._current + 1) % (self._window.samples + 1)
        if self._current == len(self._samples):
            self._samples.append(_Sample(now_ms))
        else:
            self._samples[self._current].reset(now_ms)
        return self._samples[self._current]

    def measure(self, now_ms: int) -> float:
        """The quantity per second."""
        span_ms = self.span_ms(now_ms)
        return sum(sample.value for sample in self._samples) * 1000 / span_ms

    def span_ms(self, now_ms: int) -> int:
        """The time that the samples span: at least all samples of the window but the one in progress."""
        samples, sample_ms = self._window
        for sample in self._samples:
            if now_ms - sample.last_ms >= samples * sample_ms:
                sample.reset(now_ms)
        elapsed_ms = now_ms - min((sample.start_ms for sample in self._samples), default=now_ms)
        missing = samples - 1 - elapsed_ms // sample_ms
        return max(1, elapsed_ms + max(0, missing) * sample_ms)

    def throttle_time_ms(self, bound: float, now_ms: int) -> int:
        """The time after which the rate has fallen to `bound` if nothing more is counted; 0 if it is not above."""
        rate = self.measure(now_ms)
        if rate <= bound:
            return 0
        if bound <= 0:
            return THROTTLE_TIME_MS_MAX
        return _milliseconds((rate - bound) / bound * self.span_ms(now_ms))


class TokenBucket:
    """Tokens that are refilled at the rate of a quota, up to what the quota allows in a whole window. It is full at
    first, and may fall below zero: the client waits until it no longer is.

    The quota, `bound` in tokens per second, is passed with each call: it may change. Times are as in `Rate`.
    """

    __slots__ = ("_seen_ms", "_tokens", "_window")

    def __init__(self, window: QuotaWindow) -> None:
        self._window = window
        self._tokens: float | None = None
        self._seen_ms = 0

    def tokens(self, bound: float, now_ms: int) -> float:
        """The tokens that are left; below zero the quota is exhausted."""
        burst = self._window.seconds * bound
        if self._tokens is None:
            self._tokens = burst
        else:
            self._tokens = min(burst, self._tokens + bound * (now_ms - self._seen_ms) / 1000)
        self._seen_ms = now_ms
        return self._tokens

    def take(self, count: float, bound: float, now_ms: int) -> None:
        """Take tokens, even if fewer are left."""
        self._tokens = self.tokens(bound, now_ms) - count

    def throttle_time_ms(self, bound: float, now_ms: int) -> int:
        """The time until no token is missing; 0 if none is."""
        tokens = self.tokens(bound, now_ms)
        if tokens >= 0:
            return 0
        return THROTTLE_TIME_MS_MAX if bound <= 0 else _milliseconds(-tokens / bound * 1000)


def _milliseconds(time_ms: float) -> int:
    """A time, rounded as Java's Math.round does, and limited to what responses can carry."""
    return min(THROTTLE_TIME_MS_MAX, floor(time_ms + 0.5))
