"""Logs, counters of requests, and unexpected errors.

- `logs.py`: the set-up and the formats of logs, and the levels of loggers under Kafka's names.
- `request_metrics.py`: counters of requests; `event_loop_lag.py`: how late the event loop runs timers.
- `unforeseen.py`: an unexpected exception in one entry of a request, whose other entries are served.

A new metric: `broker/http/__init__.py`.
"""
