"""How late a loop is, by a loop of the test's own."""

from collections.abc import Callable
from typing import Any

from barnabas.broker.observability.event_loop_lag import CHECK_INTERVAL_S, EventLoopLag
from barnabas.broker.observability.request_metrics import RequestMetrics


class Loop:
    """Runs the one timer that it has, and late if it is told so."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.is_cancelled = False
        self._due: Callable[[], None] = lambda: None

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, callback: Callable[..., None], *arguments: Any) -> "Loop":
        self._due = lambda: callback(*arguments)
        self._due_s = self.now_s + delay_s
        return self

    def cancel(self) -> None:
        self.is_cancelled = True

    def run(self, *, late_s: float) -> None:
        self.now_s = self._due_s + late_s
        self._due()


def test_the_last_timer_tells_how_late_it_was() -> None:
    loop: Any = Loop()
    metrics = RequestMetrics()
    lag = EventLoopLag(loop, metrics)
    lag.start()
    assert metrics.event_loop_lag_seconds == 0
    for late_s in (0.25, 3.0, 0.0):
        loop.run(late_s=late_s)
        assert metrics.event_loop_lag_seconds == late_s
    assert loop.now_s == 100 + 3 * CHECK_INTERVAL_S + 3.25
    lag.stop()
    assert loop.is_cancelled
