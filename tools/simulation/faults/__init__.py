"""The faults of a simulated cluster.

- `faults.py` has all faults of a run: those at random moments (`random_faults.py`, at the rates of `rates.py`), and
  those at specific moments (`ambushes.py`).
- `crashes.py` kills processes and machines, `power.py` decides which machines may lose power, `replacement.py` empties
  a disk, and `damage.py` flips a bit. Clocks and failing disks are in `tools/simulation/world/machine.py`.
"""
