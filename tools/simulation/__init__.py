"""A whole cluster in one process and in virtual time, with faults of everything, checked: `make simulate SEED=7`.

- `world/`: what the cluster runs on: an event loop, processes that can be paused and killed, a network, disks, clocks
  and the metadata store.
- `load/`: the clients, which record the responses that they receive.
- `faults/`: faults that wait for their moment, power cuts, a replaced disk.
- `checks/`: what must hold at every moment.
- `bugs.py`: bugs that the checks must find (`make simulate PLANT=NAME`).
"""
