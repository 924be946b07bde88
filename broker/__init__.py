"""The broker: its parts, from the sockets to the coordinators, the order in which they start, and the command line.

- `server.py` starts and stops the parts in their order; `stops.py` has the functions that stop them.
- `foundation.py` is what a broker has before it starts: configuration, clocks, timers, metadata, connections.
- `parts.py` makes what comes next: replicas, coordinators, controller; `other_brokers.py` the parts that deal with
  other brokers, each when it is first needed.
- `services.py` lists the parts that handlers may use.
- `welcome.py` holds or refuses clients until the broker knows its cluster.
- `environment.py` is what a test or a simulation replaces: clocks, files, network, threads, randomness
  (`tests/test_seams.py` finds what reaches past it).
- `timers.py` follows the broker's clock; `event_loops.py` makes uvloop's event loop, or asyncio's.

A new part is made in `Parts`, has a field in `Services` if handlers use it, and starts and stops in `Broker`. The
folders are rooms, and a room imports only from those below it (`pyproject.toml`, "rooms of the broker").
"""
