"""The controller of a cluster: it registers its broker, is elected, creates and deletes topics, assigns partitions to
brokers and elects their leaders. It uses the metadata store (`coordination/`), with Kafka's znodes (`znodes.py`).
"""
