"""The simulated world: one event loop in virtual time with processes, a network, disks, clocks and a metadata store."""
