"""Coordinators over internal topics: groups (`groups/`) and transactions (`transactions/`), and what they share.

- `shard.py`: one partition in memory, a pure machine; `effects.py`: the result of its decision.
- `runner.py`: the shell of a shard: decide, append, apply, set timers, reply once the records are committed.
- `runtime.py`: the shards of a topic, loaded and unloaded with leadership; `memory_budget.py`: their limit of memory.
- `log.py`: the topic as its coordinator uses it (`broker/replication/internal_topic_log.py` implements it).
- `alarms.py`: timers by name; `record_versions.py`: the first fields of records.
- `internal_topics.py`: the sizes of the topics; it tells coordinators which partitions this broker leads.

A new coordinator is a `Shard`, the encoding of its records, and a service for handlers; its topic has a size in
`InternalTopics`, and a `Coordinator` in `broker/parts.py`.
"""
