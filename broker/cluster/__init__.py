"""This broker in its cluster: metadata, metadata store, other brokers, requests of the controller and to it.

- `metadata.py`: brokers, topics and leaders, as the controller has sent them; `features.py`: levels of features.
- `metadata_store.py`: the session with the store, opened again when it has expired; `former_session.py` ends that of a
  killed process, and finds out whether the machine has booted since.
- `zookeeper_security.py` protects the sessions with ZooKeeper: TLS, logins, ACLs; `login_file.py` reads JAAS files, and
  `zookeeper_kerberos.py` logs in by Kerberos.
- `peers.py`: the connections to other brokers; `broker_batches.py`: requests to them in batches.

The controller:

- `controller_commands.py` checks its requests and carries them out: LeaderAndIsr, UpdateMetadata, StopReplica.
- `cluster_channel.py` takes its requests to all brokers; `local_channel.py` to its own, without a socket.
- `controller_client.py` sends it requests of this broker, whichever broker it is: `alter_partitions.py` (ISRs),
  `auto_topics.py` and `controller_requests.py` (missing topics), `producer_ids.py` (blocks of ids).

A new request of the controller is a `Command` (`controller/channel.py`) with a method of `ControllerCommands`, a branch
in `LocalChannel`, and a handler (`broker/handlers/__init__.py`).
"""
