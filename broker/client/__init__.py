"""A small Kafka client for the command line.

- `client.py`: metadata, routing; `connection.py`: versions, requests; `patience.py`: retries; `errors.py`: what ends a
  command.
- `producer.py` and `consumer.py`: records; `places.py`: positions as users name them, and their offsets.
- `group.py`: a member of a consumer group; `configs.py`: describe and alter configs.

Security:

- `security.py` is how a client connects; `security_properties.py` reads that from Kafka's properties,
  `security_options.py` adds the options of a command, and `security_configs.py` is the same in the words of other
  clients. `permissions.py` says what a refused client lacks.
- `users.py`, `acls.py` and `quotas.py` describe and change these.
- `tls.py` is TLS; `login.py` is SASL, with `tokens.py` (OAUTHBEARER).

Moves of partitions:

- `placement.py` is where replicas are; `placement_plans.py` and `balance.py` plan where they should be (pure).
- `reassignments.py` starts the moves, throttles them and waits for them.

`benchmarks/consume_speed.py` measures the consumer.
"""
