"""The two tiers of the tests, `make test` and `make test-full`: runs their parts and reports all results in one table.

- `__main__.py` is the command; `tiers.py` defines the parts of each tier, by markers, and `run.py` runs them;
  `without_uvloop/` hides uvloop from one of them.
- Plugins of pytest: `left_out.py` skips files without a selected test, `recorder.py` records the outcome of each test,
  `workers.py` orders the files that run in parallel.
- `outcomes.py` reads the record, and `report.py` prints the table.

The rule is in `tests/README.md`.
"""
