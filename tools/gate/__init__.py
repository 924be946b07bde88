"""The two tiers of the tests, `make test` and `make test-full`: their parts are run, and told in one table.

`tiers.py` says which parts a tier has and `run.py` runs them. Two pytest plugins: `recorder.py` writes down what became
of each test, `workers.py` puts files that run beside each other into their order. `outcomes.py` reads the record, and
`report.py` prints the table. The rule is in `tests/README.md`.
"""
