"""Kafka's configuration keys: defined, read, checked, changed at run time."""
