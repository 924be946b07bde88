"""Measures how late the event loop runs a due timer: the minimum wait of every request."""

import asyncio
from typing import Final

from barnabas.broker.observability.request_metrics import RequestMetrics

CHECK_INTERVAL_S: Final = 1.0


class EventLoopLag:
    """Measures `loop` by its own time, and reports to `metrics`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, metrics: RequestMetrics) -> None:
        self._loop = loop
        self._metrics = metrics

    def start(self) -> None:
        """Measure from now on, once a second."""
        self._look(self._loop.time())

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self, due_s: float) -> None:
        now_s = self._loop.time()
        self._metrics.event_loop_lag_seconds = max(0.0, now_s - due_s)
        self._timer = self._loop.call_later(CHECK_INTERVAL_S, self._look, now_s + CHECK_INTERVAL_S)
