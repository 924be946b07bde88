"""The two tiers of the tests, `make test` and `make test-full`: runs their parts and reports all results in one table.

`tiers.py` defines the parts of each tier and `run.py` runs them. There are two pytest plugins: `recorder.py` records
the outcome of each test, and `workers.py` orders the files that run in parallel. `outcomes.py` reads the record, and
`report.py` prints the table. The rule is in `tests/README.md`.
"""
