"""What only tests use.

- Time: `manual_timers.py`; for a client `standing_loop.py`; which function runs in which turn of the event loop:
  `watched_calls.py`; the present speed of the machine, for bounds of time in the full tier: `reference_loop.py`.
- Faults of disks: `files.py`, `log_history.py`; of the metadata store: `refused_store.py`; of
  threads: `scarce_threads.py`; errors that nobody foresaw: `bugs.py`.
- A broker's process that is changed: `failing_disk.py`, `smaller_limits.py`, `changed_paths.py`.
- Ctrl-C at each point of a command: `interrupted_command.py`.
- A whole broker under callbacks in random order: `broker_simulation.py`.
- Values that the gate samples: `parameters.py`; tools that a machine lacks: `required.py`.
"""
