"""Transactions: the coordinator of transactional producers, a pure machine and its shell.

- `service.py` is what handlers ask; `shard.py` is one partition of `__transaction_state` in memory.
- `machine.py` decides; `state.py` is one transactional id; `events.py` is what is asked, and the replies.
- `records.py` encodes states for the log; `settings.py` has keys and limits.
- `id_pattern.py` matches the ids of ListTransactions.

The end of a transaction:

- `endings.py` writes the markers of a prepared transaction, then the record that completes it (`retries.py`: what was
  refused). `markers.py` is the interface of those that write markers.
- `local_markers.py` writes to partitions of this broker, `marker_sender.py` to those of other brokers.

The first batch of a transaction in a partition:

- `verification.py` asks the coordinator before it, by `coordinator_sender.py` if that is in another broker.
- `requests.py` encodes the requests of both senders, which `broker/cluster/broker_batches.py` batches.

A new event has a line in `_DECIDERS` of the machine. What a partition knows of transactions:
`storage/producer_state.py`.
"""
