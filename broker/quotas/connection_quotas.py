"""The quota of new connections of an address, per second (KIP-612).

A connection beyond the quota is not served: it is closed after the throttle time, so that a client which connects again
at once is slowed down. It does not count for the rate.

Source: kafka 3.9.1 ConnectionQuotas.recordIpConnectionMaybeThrottle, Acceptor.closeThrottledConnections.
"""

from typing import Final

from barnabas.broker.quotas.entities import DEFAULT, Name, normal_address
from barnabas.broker.quotas.managers import SENSOR_EXPIRATION_MS, ThrottleCounter
from barnabas.broker.quotas.rates import QuotaWindow, Rate
from barnabas.clock import Clock

ADDRESSES_MAX: Final = 10_000
"""The limit of addresses whose rate is known; beyond it the one that connected last longest ago is forgotten."""


class ConnectionQuotas:
    """The rates of new connections by address. One throttle lasts one sample of the window at most."""

    def __init__(self, window: QuotaWindow, clock: Clock, addresses_max: int = ADDRESSES_MAX) -> None:
        self.throttles = ThrottleCounter()
        self._window = window
        self._clock = clock
        self._addresses_max = addresses_max
        self._bounds: dict[Name, float] = {}
        self._rates: dict[str, tuple[Rate, int]] = {}
        """Rates, and when they were used last; least recently used first."""

    def __len__(self) -> int:
        return len(self._rates)

    def set(self, address: Name, bound: float | None) -> None:
        """Set the quota of an address, or of all without one of their own; None removes it."""
        if bound is None:
            self._bounds.pop(address, None)
        else:
            self._bounds[address] = bound

    def record(self, host: str) -> int:
        """Count a new connection from `host`, an address as text; returns the time in milliseconds after which it is
        closed, 0 if it may be served."""
        if not self._bounds:
            return 0
        address = normal_address(host)
        if address is None:
            return 0
        bound = self._bounds.get(address, self._bounds.get(DEFAULT))
        if bound is None:
            return 0
        now_ms = self._clock.monotonic_ms()
        rate = self._rate(address, now_ms)
        rate.record(1, now_ms)
        throttle_time_ms = min(rate.throttle_time_ms(bound, now_ms), self._window.sample_ms)
        if throttle_time_ms:
            rate.record(-1, now_ms)
            self.throttles.note(throttle_time_ms)
        return throttle_time_ms

    def _rate(self, address: str, now_ms: int) -> Rate:
        while self._rates:
            oldest = next(iter(self._rates))
            if now_ms - self._rates[oldest][1] < SENSOR_EXPIRATION_MS:
                break
            del self._rates[oldest]
        known = self._rates.pop(address, None)
        if known is None and len(self._rates) >= self._addresses_max:
            del self._rates[next(iter(self._rates))]
        rate = Rate(self._window) if known is None else known[0]
        self._rates[address] = rate, now_ms
        return rate
