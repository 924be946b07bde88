"""The delays before failed logins are answered, by the client's address.

Kafka delays every failure by `connection.failed.authentication.delay.ms`. Here the delay doubles with each further
failure from an address, up to DELAY_MAX_MS, and is the first one again after a success.
"""

from __future__ import annotations

from typing import Final

DELAY_MAX_MS: Final = 10_000
"""The longest delay, unless the configured one is longer."""

FORGOTTEN_AFTER_MS: Final = 10 * 60_000
"""The time after which the failures of an address no longer count."""

ADDRESSES_MAX: Final = 10_000
"""The number of addresses whose failures are counted; the ones without a failure for longest are left out."""


class FailureDelays:
    """Counts the failures of addresses; owned by the event loop."""

    def __init__(self) -> None:
        self._failures: dict[str, tuple[int, int]] = {}
        """Address -> number of failures, time of the last one; in the order of those times."""

    def failed(self, host: str, first_delay_ms: int, now_ms: int) -> int:
        """Count a failure; returns how long its answer is delayed, in ms. `now_ms` is a monotonic time."""
        count, last_ms = self._failures.pop(host, (0, now_ms))
        if now_ms - last_ms >= FORGOTTEN_AFTER_MS:
            count = 0
        self._failures[host] = (count + 1, now_ms)
        if len(self._failures) > ADDRESSES_MAX:
            del self._failures[next(iter(self._failures))]
        doubled_ms = first_delay_ms << min(count, 32)
        return max(first_delay_ms, min(doubled_ms, DELAY_MAX_MS))

    def succeeded(self, host: str) -> None:
        """Forget the failures of an address."""
        self._failures.pop(host, None)
