"""The controller of a cluster: it registers its broker, is elected, creates and deletes topics, assigns partitions to
brokers and elects their leaders.

`operations/` has a file per operation, `coordination/` the metadata store. pyproject.toml has the order in which
modules may import each other, as a contract.

- `controller.py` has the requests, and the one task, which processes one event at a time.
- `controllership.py` is the role of the controller, which one broker of a cluster has at a time.
- `context.py` is what the operations share; `loading.py` reads the cluster from its znodes at a take-over.
- State: `partition_fsm.py` has the status of partitions, `deletions.py` the brokers that still have to delete replicas,
  `refusals.py` the retry timer of refused replicas, `configs.py` the dynamic configs, `acls.py` the ACLs,
  `tokens.py` the delegation tokens; `notifications.py` follows the changes of these three by other brokers.
- Commands: `requests.py` builds them, `broker_commands.py` has the `broker_queue.py` of each broker, which uses
  `command_merging.py` and `unsendable.py`; `channel.py` is the interface that delivers them.
- Events: `event_queue.py`; `admin_request.py` is an admin client's request, with its timeout.
- Membership: `registration.py` registers this broker; `sessions.py` has its sessions with the store;
  `controller_election.py` elects the controller, and fences its writes.
- Decisions: `plan.py` has the writes of one, `state.py` the cluster as values, `topics.py` the topics of requests.
- Znodes: `znodes.py` has their paths and payloads, `acl_znodes.py` those of Kafka's ACLs, `token_znodes.py` those of
  delegation tokens, `sanitizer.py` the encoding of names of users and clients, `znode_acls.py` their own ACLs;
  `bootstrap.py` creates those of every cluster.

A new module has to be in that contract. A new znode is a path and a codec in `znodes`, an entry in `PERSISTENT_PATHS`
if every cluster has it, and an entry in `docs/znodes.md`; what the controller decides by is read in `loading`, too. A
new command is a type in `channel` and in `VERSIONS` of `requests`, a case in `command_merging`, `operations/answers.py`
and `broker/cluster/local_channel.py`, and a handler in `broker/handlers/`.
"""
