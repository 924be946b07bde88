"""Measurements of Barnabas beside Apache Kafka: `make bench`.

- `__main__.py` is the command: `runner.py` runs the workloads on the systems in turn, and `report.py` makes the table.
  `model.py` has workloads, figures and goals, `spread.py` the statistics, `environment.py` the machine and versions.
- Systems: `systems.py` has those that are compared (`kfake/` builds one of them), by the interface in `system.py`;
  `clusters.py` has three brokers of each, `secured.py` one with TLS and logins, `floor.py` a process that only moves
  the bytes. `leaders.py` asks each broker of a cluster for leaders.
- Loads: `clients.py` uses librdkafka, `java_tools.py` Kafka's own tools; `processes.py` has the kernel's figures of a
  broker. `traffic.py` writes and reads while a cluster changes, and finds lost records, also for the recipes of
  docs/operations.md and docs/recovery.md (`tests/test_operations.py`).
- Programs of their own: `scale.py` and `active_clients.py` (partitions, connections, clients), `moves.py` (brokers that
  join and leave), `recovery.py`, `compaction.py`, `consume_speed.py` (`barnabas consume`), `embedding.py` (brokers in
  tests), `spark_pipelines.py`.

A new workload is a function and a `Workload` in `workloads/`, and an entry of `WORKLOADS` there; `python -m
benchmarks.report` writes its section of the page in docs/benchmarks/results/ whose mark names it.
"""
