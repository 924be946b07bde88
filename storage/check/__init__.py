"""The offline check of a log directory, for `barnabas check` (`broker/cli/check.py`).

- `directory.py` checks each file against its format, and the files against each other. It lists the names and suffixes
  that it knows: a new file of a log goes there.
- `segment.py` checks the batches and indexes of a segment in one pass.
- `report.py` has the findings, for people and programs.
"""
