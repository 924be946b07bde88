"""The metadata store behind one interface: ZooKeeper, or a file with ZooKeeper's semantics.

- `interface.py` is the protocol that both implement: znodes, sessions, watches, errors.
- ZooKeeper: `zookeeper.py` is a session, through kazoo; `loop_handler.py` brings kazoo's responses to the event loop in
  order; `multi_read.py` is a request that kazoo lacks; `zookeeper_errors.py` has the errors.
- Its protection: `session_security.py` has what a session is told of it, `digest_md5.py` the mechanism of logins (pure,
  both sides).
- ACLs of znodes: `acl.py` has their entries, `access.py` what they permit to the clients of our own server (pure).
- The file: `embedded.py` is the store of one process; `owner_thread.py` is the thread that owns it; `stored_tree.py`
  keeps the tree in SQLite, `tree.py` in memory and `sorted_paths.py` its paths in order (pure); `reserve.py` reserves
  disk space for it.
- `zookeeper_server/` serves the file to other processes.

A new operation of the store is a method in `interface`, in `ZooKeeperSession` and in `EmbeddedSession`.
"""
