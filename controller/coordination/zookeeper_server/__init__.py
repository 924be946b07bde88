"""The embedded tree behind ZooKeeper's own protocol, for brokers and tools in other processes of the same machine."""
