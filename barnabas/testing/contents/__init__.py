"""Contents of brokers as a test sees them: topics and their records, groups, and the roles of brokers.

- `Broker` and `Cluster` share the operations on topics and groups (`contents.py`), and on leaders, coordinators and the
  controller (`roles.py`). `settled.py` tells whether all brokers have applied the controller's decisions.
- A topic is in `topic.py`, and reads its records by `records.py`; `topic_changes.py` wakes the waits for its records. A
  consumer group is in `group.py`.
- `partitions.py` is the port by which topics find the leaders of their partitions; `requests.py` sends requests to a
  broker's own handlers, without a socket.
"""
