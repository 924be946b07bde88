"""Authentication, and the operations that clients may perform.

A broker shows its secret to another one when it connects (`network/peer_connection.py`); SaslHandshake and
SaslAuthenticate take it (`handlers/`). Its registration has the digest (`controller/operations/broker_changes.py`); the
secret that `serve --brokers` gives to its brokers lies in `cli/cluster_directory.py`.
"""
