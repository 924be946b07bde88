"""The controller of a cluster: it registers its broker, is elected, creates and deletes topics, assigns partitions to
brokers and elects their leaders. It uses the metadata store (`coordination/`), with Kafka's znodes (`znodes.py`).

From the top down: `controller` has the requests and the one task; `controllership` is the role, which one broker has at
a time; each operation is a file in `operations/`; `context` is what these share, and `loading` reads the cluster when
it is taken over. Below them are the commands to brokers (`broker_commands`: a queue for each broker), the election, and
the values that all decisions are made of (`state`, `topics`, `plan`). pyproject.toml has the order as a contract.
"""
