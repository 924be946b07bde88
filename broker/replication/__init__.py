"""Hosted partitions: appends, fetches, leaders and followers.

- Hosting: `replica_manager.py` (all partitions, the controller's requests), `partition.py` (one: its log, its state and
  its waits), `isr.py` (what the state allows; pure).
- Appends: `append_operation.py` (one Produce request), `internal_topic_log.py` (of coordinators), `commit_waiters.py`
  (waits in one partition), `delayed_reply.py` (waits in several), `flusher.py` (flushes before responses, and by time).
- Leading: `leadership.py` (a partition that others follow), `followers.py` (their progress and the ISR; pure).
- Fetches: `fetch_operation.py` (one request), `read_policy.py` (what its reader may see), `replica_fetch.py` (of a
  follower), `replica_selector.py` (of a consumer in a rack), `waiting_fetches.py` (their limit).
- With an authorizer: `authorized.py` (appends and fetches of clients, topic by topic).
- Fetch sessions: `fetch_sessions.py`, `fetch_partition.py` (one partition in them), `attention.py` (which of their
  partitions have changed, as only those are looked at).
- Following: `fetcher_manager.py` (which partitions, at which leader), `fetcher_lane.py` (one connection to a leader),
  `fetcher.py` (its requests and decisions; pure), `fetcher_context.py` (what lanes share), `follower_truncations.py`
  (where logs diverge), `follower_reads.py` (consumers that read here), `throttles.py` (rates, of leaders, too).

A leader proposes ISRs by `broker/cluster/alter_partitions.py`. `tests/broker/replication/walks.py` takes leaders,
followers and the controller's decisions through random orders.
"""
