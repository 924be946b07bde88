"""The embedded tree behind ZooKeeper's own protocol, for brokers and tools in other processes of the same machine.

- `server.py` has the ports, connections and sessions; `broker/cli/zookeeper_process.py` is its process.
- `connection.py` splits the bytes of a connection into frames, and frames into requests.
- `service.py` has the effect of each request on the tree, and its response.
- `authentication.py` has who the client of a connection is.
- As values: `messages.py` over `jute.py` (the encoding), `sessions.py`, `watches.py`.

A new request is an `OpCode` and its body in `messages`, and a case in `service`.
"""
