"""Counters of the broker's requests: plain integers on the hot path, read by /metrics.

Nothing here depends on Prometheus; `metrics_page` turns these numbers, and other figures of the broker, into text.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

DURATION_BOUNDS_NS: Final = tuple(
    int(seconds * 1e9)
    for seconds in (
        *(0.000_05, 0.000_1, 0.000_25, 0.000_5),
        *(0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05),
        *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
    )
)
"""Upper bounds of the latency histogram's buckets, inclusive, in nanoseconds; one more bucket counts
longer requests."""


class ApiMetrics:
    """The requests of one API since the broker started."""

    __slots__ = ("buckets", "bytes_in", "bytes_out", "count", "duration_ns")

    def __init__(self) -> None:
        self.count = 0
        self.duration_ns = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.buckets = [0] * (len(DURATION_BOUNDS_NS) + 1)


class RequestMetrics:
    """Counters of one broker, owned by the event loop.

    `errors` has the error codes of responses, one for each entry, by API key and code (Kafka's ErrorsPerSec, without
    NONE).
    """

    __slots__ = ("apis", "errors", "event_loop_lag_seconds")

    def __init__(self) -> None:
        self.apis: dict[int, ApiMetrics] = {}
        self.errors: dict[tuple[int, int], int] = {}
        self.event_loop_lag_seconds = 0.0

    def record(self, api_key: int, duration_ns: int, bytes_in: int, bytes_out: int) -> None:
        """Count one request, from its decoding to its encoded response; sizes are those of frames. Well under 1 us."""
        api = self.apis.get(api_key)
        if api is None:
            api = self.apis[api_key] = ApiMetrics()
        api.count += 1
        api.duration_ns += duration_ns
        api.bytes_in += bytes_in
        api.bytes_out += bytes_out
        api.buckets[bisect_left(DURATION_BOUNDS_NS, duration_ns)] += 1

    def count_error(self, api_key: int, code: int) -> None:
        """Count an error of an entry in a response."""
        self.errors[api_key, code] = self.errors.get((api_key, code), 0) + 1
