"""The `barnabas` command: a file for each noun, and what they share.

- `app.py` has the list of commands and imports the module of the one that runs; a new command has an example in its
  help, which a test runs (`tests/broker/cli/test_examples.py`). `make docs` writes docs/command-line.md.
- Topics: `topics.py`, `contents.py` (offsets, sizes, deleting records), `ill_partitions.py` (filters of `topics list`),
  `reassignment.py` (reassign, elect).
- Brokers: `cluster.py` (describe), `brokers.py` (list, drain, rebalance).
- Moves of partitions: `move_plan.py` shows a plan; `moves.py` asks, starts it and waits.
- Records: `produce.py`, `consume.py`, `records.py` (lines to records and back).
- Security: `users.py`, `acls.py`, `quotas.py`; `certificates.py`, with a CA of one's own (`authority.py`).
- Others: `groups.py`, `transactions.py`, `configs.py`, `check.py` (a log directory), `zookeeper.py`,
  `version.py`.
- Shared: `command.py` (help), `connection_options.py` (TLS, user), `completion.py`, `output.py`, `values.py` (parses
  options), `interrupts.py` (Ctrl-C).

Commands talk to brokers by `broker/client/`. `serve` does not import typer and rich, so that it starts fast:

- `serve.py` has its options, `serve_help.py` its help; `one_broker.py` reads the configuration and runs a broker;
  `process.py` is the process around it, to the exit status; `ready.py` prints that clients may connect.
- `secure.py` sets up `serve --secure`, and `secure_clients.py` has what its clients need.
- `several_brokers.py` is the parent of `serve --brokers N`, with `broker_plans.py` (their configuration),
  `free_ports.py`, `cluster_directory.py` (directories, secret), and `supervisor.py` (starts, restarts, stops).
- `zookeeper_process.py` serves ZooKeeper's protocol, for `barnabas zookeeper` and for that parent;
  `zookeeper_config.py` reads the file of its port with TLS and its users.
"""
