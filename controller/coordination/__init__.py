"""Coordination stores with ZooKeeper's semantics."""
