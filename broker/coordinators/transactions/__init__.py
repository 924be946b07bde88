"""Transactions: the coordinator of transactional producers, a pure machine and its shell.

`machine` decides, `state` applies, `records` has their form in `__transaction_state`, `service` is what handlers ask.
`endings` writes the markers of a prepared transaction, and the record that completes it: `local_markers` to partitions
of this broker, `marker_sender` to other brokers. `verification` is what a partition asks before a producer's first
append, of other brokers by `coordinator_sender`. What a partition knows of transactions: `storage/producer_state.py`.
"""
