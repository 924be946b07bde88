"""Load with failures against a running broker, a history of the responses to clients, and a checker of that history.

- `__main__.py` is the command (`make soak`), `run.py` one run: load, crashes, and the checks at the end.
- Clients: `workload.py` has most of them; `copier.py` copies topics exactly once, `keyed_workers.py` writes and reads
  a compacted topic, `java_producer.py` is Kafka's own producer, `delayed_commits.py` sends a commit too late. A new
  client is a `Worker`, and has a row in the `WORKERS` of the run.
- Checks: `history.py` has the requests and responses, `checker.py` finds what contradicts the guarantees in them;
  `compacted.py` does so for compacted topics, `commits.py` for committed offsets.
- Failures of a broker: `crashes.py`, and the stage of compaction at a crash: `compactions.py`; `proxy.py` loses
  responses; `fatal_append.py` is a broker that dies at one append, `planted.py` one with a bug. A new bug has a row in
  `BUGS`, and a test in `tests/soak/` that names it.
- Other programs: `cluster.py` has several brokers and faults of whole ones, `random_faults.py` the faults of
  `barnabas.testing` at random, `write_gap.py` the time without acknowledgements when a leader goes.
"""
