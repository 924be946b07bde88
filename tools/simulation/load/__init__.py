"""The clients of a simulated cluster, which record the responses that they receive.

`clients.py` has the base class `Worker`, producers, readers and commits; `groups.py` has members of groups. `topics.py`
creates and deletes a topic, `moves.py` reassigns partitions, and `settings.py` changes `min.insync.replicas`.
`events.py` is the topic that most of them use. `tools/simulation/run.py` starts them.
"""
