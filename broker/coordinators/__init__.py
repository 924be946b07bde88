"""Coordinators over internal topics: groups and transactions.

They share the shell of one partition (`runner`: decide, append, apply, timers, replies once that is committed), the
partitions that come and go (`runtime`), and the form of a machine and its answers (`shard`, `effects`). A new
coordinator is a `Shard`, its records, and a service.
"""
