"""The membership machine of classic consumer groups.

- `group.py` decides on each request and timer; `rebalance.py` has the steps of a rebalance.
- `state.py` applies changes, and is the only code that does; `draft.py` is a group during a decision.
- `kind.py` is what offsets, shard and administrators need to know of such a group; `subscriptions.py` the topics that
  it reads.
"""
