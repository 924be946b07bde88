"""Sockets: listeners and their connections, requests in and responses out, and their limits.

- `socket_server.py` listens; `listener.py` is what a connection knows of its listener.
- `listener_tls.py` keeps the keys and certificates of listeners with TLS, and replaces them, `port_tls.py` those of
  a port that belongs to no broker; `tls_handshakes.py` encrypts accepted connections.
- `listener_sasl.py` makes the SASL of the listeners at the start.
- `connection.py` is one connection: it keeps its requests in order, and reads nothing while it cannot serve.
- `connections.py` has all of them: limits of their number, and the end of idle ones.
- `session.py` is the client: address, software, principal. Clients that are brokers are exempt from limits.
- `turns.py` gives each connection its turn to have requests served.
- `outcome.py` has the results of a request: a response, a wait for one, or the end of its connection.
- `reply_queue.py` sends responses in order, through the transport or past it from log files: `file_sender.py`.
- `peer_connection.py` is a connection to another broker (`broker/cluster/peers.py` has all of them).

The bytes of unfinished requests are limited by `barnabas/inflight_budget.py`. HTTP has connections of its own:
`broker/http/connections.py`.
"""
