"""Brokers of a test: `Broker` in `broker.py`, and `Cluster` in `cluster.py` of several `ClusterBroker`s. Both are an
`Owner` of the parts in the rooms below, and run in a thread with an event loop (`broker_thread.py`,
`cluster_thread.py`).

A broker gets another state within a few ms (`reset`, `snapshot`, `restore`): `succession.py` ends it and starts the
next one on the same event loop, `kept_network.py` keeps ports and clients' connections meanwhile, `snapshot.py` its
files. `report.py` describes brokers for a failing test, each with its own lines of the log (`log_lines.py`).
"""
