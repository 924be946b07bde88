"""Brokers of a test: `Broker` in `broker.py`, and `Cluster` in `cluster.py` of several `ClusterBroker`s
(`cluster_broker.py`).

- `owner.py` is the base class of `Broker` and `Cluster`: start and stop, calls on their event loop, clock, faults,
  recordings and snapshots. One run has a thread with an event loop: `broker_thread.py`, `cluster_thread.py`.
- A broker gets another state within a few ms (`reset`, `snapshot`, `restore`): `succession.py` ends it and starts the
  next one on the same event loop, `kept_network.py` keeps ports and clients' connections meanwhile, `snapshot.py` its
  files.
- `security.py` has TLS, users, and the configurations of clients (`Broker(security="sasl_ssl")`).
- `coordinators.py` has coordinators ready at a client's first request; `sessions.py` tells whether the expiry of a
  session with the metadata store has had its effect.
- `report.py` describes brokers for a failed test, each with its own lines of the log (`log_lines.py`).
"""
