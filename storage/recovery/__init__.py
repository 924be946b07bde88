"""Loading existing logs, after a clean shutdown and after a crash.

- `opening.py` opens all logs that a start finds, in parallel, and retries those that could not be opened.
- `log_loader.py` loads one log, in a thread: it cuts off torn writes, and refuses a log with any other damage.
- `swaps.py` first finishes or undoes compactions and deletions that a crash interrupted.

`tests/storage/recovery/test_crash_points.py` tries every order of the syncs and renames.
"""
