"""Programs of others that tests need: Apache Kafka, ZooKeeper, clients in other languages, a container engine.

`tools/prepare.py` (`make prepare`) installs all of it beforehand, so that no test downloads anything. `kafka.py` has
Kafka's jars, command-line tools and a KRaft broker, `zookeeper.py` a server, `languages.py` packages and programs of
Node.js and Go, `kerberos.py` a realm. `container_engine.py` runs a command with an engine, and starts one where none
answers.
"""
