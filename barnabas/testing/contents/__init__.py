"""Contents of brokers as a test sees them: topics and their records, groups, and the roles of brokers. `contents.py`
and `roles.py` are what `Broker` and `Cluster` have in common of these; `partitions.py` is the port by which topics find
the leaders of their partitions; `requests.py` sends requests to a broker's own handlers, without a socket.
"""
