"""The two tiers of the tests, `make test` and `make test-full`: their parts are run, and told in one table.

`tiers.py` says which parts a tier has, `run.py` runs them, `recorder.py` is the pytest plugin that writes down what
became of each test, `outcomes.py` reads that, and `report.py` prints the table. The rule is in `tests/README.md`.
"""
