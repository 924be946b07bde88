"""The clock of a broker under test, which a test can move ahead."""

import math
from collections.abc import Callable

from barnabas.clock import OffsetClock
from barnabas.testing.waiting.durations import Duration, signed_ms


class BrokerClock:
    """The broker's time: the real time, plus the offset that `advance` added. Safe to use from any thread.

    Errors of all: RuntimeError when the broker was never started, or was stopped since.
    """

    def __init__(
        self, clock: OffsetClock, run: Callable[[Callable[[], None]], None], check_started: Callable[[], None]
    ) -> None:
        self._clock = clock
        self._run = run
        self._check_started = check_started

    def __repr__(self) -> str:
        return f"<BrokerClock at {self._clock.now_ms()} ms, moved ahead by {self._clock.offset_ms} ms>"

    def now_ms(self) -> int:
        """The broker's wall-clock time, in ms since the Unix epoch."""
        self._check_started()
        return self._clock.now_ms()

    def monotonic_ms(self) -> int:
        """The broker's monotonic time in ms, which its timers use."""
        self._check_started()
        return self._clock.monotonic_ms()

    def advance(self, duration: Duration) -> None:
        """Move the broker's time ahead by a timedelta or a number of ms; fractions of a ms count as a whole one.

        Everything that becomes due has happened on return: session, rebalance and transaction timeouts, rolling and
        deletion of files, and the due periodic jobs (retention every `log.retention.check.interval.ms`, expiry of
        offsets and producers), once, however often they would have run. Timeouts of sockets, timers of clients (their
        own ones, the wait of a fetch) and the timestamps that they write keep the real time.

        Errors: ValueError for a negative duration.
        """
        milliseconds = math.ceil(signed_ms(duration))
        self._check_started()
        self._run(lambda: self._clock.advance(milliseconds))
