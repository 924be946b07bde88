"""A proxy between the connections of clients and the brokers of a test, while there are faults or recordings.

- `interception.py` reads each request (`request.py`), and hands it and its response (`answer.py`) to the faults and
  recordings for which `selection.py` selects it.
- `entries.py` finds the topics, groups and so on that a request is about, by the table of `api_entries.py`; a new API
  needs its row there (`tests/testing/interception/test_api_entries.py`).
- `faulty_disk.py` is in front of a disk.
"""
