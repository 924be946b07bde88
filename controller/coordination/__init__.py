"""The metadata store behind one interface: ZooKeeper, or a file with ZooKeeper's semantics."""
