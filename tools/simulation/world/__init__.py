"""The simulated world: one event loop in virtual time with processes, a network, disks, clocks and a metadata store.

`loop.py` is the event loop, whose order of callbacks a seed decides, and `processes.py` has several processes on it.
`network.py` and `store.py` are the network and the metadata store. `disk.py` is a disk with every state that a crash
can leave, also for tests of storage; `machine.py` has clocks that differ, and disks that are full or fail.
"""
