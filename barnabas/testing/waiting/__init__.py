"""Time and waits of a test.

- Waits for conditions that a broker fulfils: `conditions.py` on the event loop of the brokers; `calls.py` in other
  threads and on other loops, for as long as the caller is interested (`patience.py`).
- `broker_clock.py` is the clock that a test moves, `durations.py` reads timedeltas and ms, and `timeouts.py` has the
  timeouts of waits.
"""
