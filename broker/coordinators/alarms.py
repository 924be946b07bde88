"""Named timers of one partition of a coordinator, for example the session of member M of group G. Restarting a timer is
cheap: every heartbeat restarts one, and most never run out. (The underlying clock calls: `Timers`,
`barnabas/timers.py`.)
"""

from collections.abc import Callable, Hashable

from barnabas.clock import Clock
from barnabas.timers import ScheduledCall, Timers

AlarmKey = tuple[str, Hashable]


class _Alarm:
    """A running timer: `call` checks it at `at_ms`. A restarted timer is due only at `due_ms`; then the check schedules
    another one. So a heartbeat, which postpones a session's end, costs one store.
    """

    __slots__ = ("at_ms", "call", "due_ms")

    def __init__(self, due_ms: int, call: ScheduledCall) -> None:
        self.at_ms = self.due_ms = due_ms
        self.call = call


class Alarms:
    """Timers by name: set, restarted and cancelled; `go_off` is called with the name of a timer that has run out, which
    is removed first. The length is the number of running timers. Owned by the event loop.
    """

    def __init__(self, timers: Timers, clock: Clock, go_off: Callable[[AlarmKey], None]) -> None:
        self._timers = timers
        self._clock = clock
        self._go_off = go_off
        self._alarms: dict[AlarmKey, _Alarm] = {}

    def __len__(self) -> int:
        return len(self._alarms)

    def set(self, key: AlarmKey, delay_ms: int) -> None:
        """Start or restart a timer: it runs out `delay_ms` from now."""
        due_ms = self._clock.monotonic_ms() + delay_ms
        alarm = self._alarms.get(key)
        if alarm is not None:
            alarm.due_ms = due_ms
            if alarm.at_ms <= due_ms:
                return
            alarm.call.cancel()
        self._alarms[key] = _Alarm(due_ms, self._timers.call_later(delay_ms, lambda: self._look(key)))

    def cancel(self, key: AlarmKey) -> None:
        """Stop a timer if it runs."""
        alarm = self._alarms.pop(key, None)
        if alarm is not None:
            alarm.call.cancel()

    def clear(self) -> None:
        """Stop all timers."""
        for alarm in self._alarms.values():
            alarm.call.cancel()
        self._alarms.clear()

    def _look(self, key: AlarmKey) -> None:
        alarm = self._alarms[key]
        left_ms = alarm.due_ms - self._clock.monotonic_ms()
        if left_ms > 0:
            alarm.at_ms = alarm.due_ms
            alarm.call = self._timers.call_later(left_ms, lambda: self._look(key))
            return
        del self._alarms[key]
        self._go_off(key)
