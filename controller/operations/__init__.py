"""The operations of the controller, a file each: its decision (`plan_*`, checks: pure functions of the cluster's state)
and its execution in the controller's task (a class, or a function that takes the `ControllerContext`).

- Take-over: `take_over.py` loads the cluster, repairs it and continues interrupted work.
- Topics: `creation.py`, `expansion.py` and `deletion.py`; `topic_changes.py` follows changes of znodes by others.
- Leaders: `elections.py` (partitions without one), `preferred_election.py` (the periodic balance), `elect_leaders.py`
  (for an admin client), `controlled_shutdown.py` (moves them off a broker that is about to stop).
- ISRs: `alter_partition.py` (requests of leaders), `last_to_leave.py` (a replica that may lack committed records),
  `lost_states.py` (partitions whose state is lost: their replicas report what they have).
- Brokers: `broker_changes.py` follows the registrations; `broker_lives.py` handles brokers that register, die, return.
- Reassignments: `reassignment.py`; `reassignment_znode.py` and `znode_requests.py` serve old tools.
- Commands: `announcement.py` informs brokers of decisions; `answers.py` processes their responses; `retries.py` retries
  replicas that brokers refused.
- Producer ids: `producer_ids.py` allocates blocks; `producer_id_grants.py` serves other brokers.
- Pure functions that several operations use: `topic_checks.py`, `placement.py`, `leadership.py`.

A new operation is a file here, and a line in `Controller.__init__` or a method of `Controller` that imports it on first
use (`controller/controller.py`). If it reads or watches znodes from the beginning, it has a line in `TakeOver.run`. Its
API has a handler in `broker/handlers/`; if brokers request it of the controller, it has an entry in the `answers` of
`broker/other_brokers.py`.
"""
