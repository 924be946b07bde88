"""Measurements of Barnabas beside Apache Kafka: `make bench`.

`workloads/` has a function per row of docs/benchmarks.md, `systems.py` what is compared (`kfake/` builds one of them),
`clusters.py` three brokers of each, and `leaders.py` what each of them knows of leaders. `traffic.py` is a client that
writes and reads while something is done to a cluster, and tells what was lost, also for `moves.py` (what a producer
notices of brokers that join and leave) and the recipes of docs/operations.md and docs/recovery.md. `scale.py` and
`active_clients.py` measure what partitions, connections and clients cost.
"""
