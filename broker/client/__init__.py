"""A small Kafka client for the command line.

- `client.py`: connections, versions, metadata, routing; `patience.py`: retries; `errors.py`: what ends a command.
- `producer.py` and `consumer.py`: records; `places.py`: positions as users name them, and their offsets.
- `group.py`: a member of a consumer group; `configs.py`: describe and alter configs.

Moves of partitions:

- `placement.py` is where replicas are; `placement_plans.py` and `balance.py` plan where they should be (pure).
- `reassignments.py` starts the moves, throttles them and waits for them.

`benchmarks/consume_speed.py` measures the consumer.
"""
