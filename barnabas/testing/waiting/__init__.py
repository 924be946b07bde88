"""Time and waits: durations, timeouts, conditions that a broker fulfils, coroutines that other threads wait for, and
the clock that a test moves. `conditions.py` waits on the event loop of the brokers, `calls.py` in other threads and on
other loops, as long as the caller has `patience.py`.
"""
