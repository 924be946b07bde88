"""The membership machine of classic consumer groups: `group` has the meaning of each request and timer, `rebalance` the
steps of a rebalance, `state` what applies changes, `draft` a group during a decision. `kind` is what offsets, the shard
and administrators need to know of such a group, among it the topics that it reads (`subscriptions`).
"""
