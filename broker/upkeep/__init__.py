"""The periodic background work of a broker."""
