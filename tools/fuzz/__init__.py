"""Broken bytes for every reader of foreign bytes: `make fuzz`."""
