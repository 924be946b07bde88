"""Faults, clocks and measures that only tests use; what tools use, too, is in `tools/`.

- Time: `manual_timers.py`; for a client `standing_loop.py`; the functions that run in each turn of the event loop:
  `watched_calls.py`; the present speed of the machine, for bounds of time in the full tier: `reference_loop.py`.
- Faults of disks: `files.py`; the checks of a log after one: `log_history.py`. Of the metadata store:
  `refused_store.py`; of threads: `scarce_threads.py`; unforeseen errors: `bugs.py`.
- A broker's process that is changed: `failing_disk.py`, `smaller_limits.py`, `changed_paths.py`.
- Ctrl-C at each point of a command: `interrupted_command.py`.
- A whole broker under callbacks in random order: `broker_simulation.py`.
- What a client may do, for handlers: `fake_authorizer.py`.
- Each event loop in turn: `event_loops.py`.
- Values that the gate samples: `parameters.py`; the profiles of Hypothesis: `hypothesis_profiles.py`; tools that a
  machine lacks: `required.py`.

Other faults of disks: `FaultyFiles` in `tests/storage/conftest.py`, and power cuts in `tools/simulation/world/disk.py`.
A test patches nothing; bugs put in on purpose are listed in `tests/test_patches.py`.
"""
