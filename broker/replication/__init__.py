"""Hosted partitions: appends, fetches, leaders and followers.

- Hosting: `replica_manager.py` (the controller's requests), `partition.py` (a log, its state, and its waits), `isr.py`
  (the state, pure).
- Appends: `append_operation.py` (one Produce request), `internal_topic_log.py` (of coordinators), `commit_waiters.py`,
  `delayed_reply.py` (waits for several partitions), `flusher.py`.
- Leading: `leadership.py` (where others follow), `followers.py` (their progress and the ISR, pure).
- Fetches: `fetch_operation.py` (one request), `read_policy.py` (what its reader may see), `replica_fetch.py` (of a
  follower), `replica_selector.py` (of a consumer in a rack), `waiting_fetches.py`; sessions: `fetch_sessions.py`,
  `fetch_partition.py`, `attention.py` (which partitions have changed).
- Following: `fetcher_manager.py` (whom), `fetcher_lane.py` (one connection to a leader), `fetcher.py` (its requests and
  decisions, pure), `fetcher_context.py`, `follower_truncations.py`, `follower_reads.py` (consumers that read here),
  `throttles.py` (of leaders, too).

`tests/broker/replication/walks.py` takes leaders, followers and the controller's decisions through random orders.
"""
