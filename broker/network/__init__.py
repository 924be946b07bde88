"""Sockets: listeners and their connections, requests in and responses out, and their limits.

A connection keeps the requests of one client in order, and reads nothing while it cannot serve; `outcome.py` has what
becomes of a request. A response leaves through the transport, or past it from log files. HTTP has connections of its
own (`broker/http/connections.py`), and so have links to other brokers (`peer_connection.py`).
"""
