"""What comes from elsewhere: Apache Kafka, ZooKeeper, clients in other languages, a container engine.

`prepare.py` installs all of it beforehand, so that no test downloads anything.
"""
