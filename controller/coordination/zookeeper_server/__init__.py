"""The embedded tree behind ZooKeeper's own protocol, for brokers and tools in other processes of one machine."""
