"""A whole cluster in one process and in virtual time, with faults of everything, checked: `make simulate SEED=7`.

- `run.py`: one run, from the start of the brokers to the checks at the end; `surroundings.py`: what all of it shares;
  `cluster.py`: the brokers, each in `broker.py`, and the links between them.
- `world/`: what the brokers run on: an event loop, processes that can be paused and killed, a network, disks, clocks
  and the metadata store.
- `load/`: the clients, which record the responses that they receive.
- `faults/`: at random moments, or at the worst ones: crashes, power cuts, a replaced disk, a flipped bit.
- `checks/`: what must hold at every moment, what brokers may log, and what must be there in the end.
- `bugs.py`: bugs that the checks must find (`make simulate PLANT=NAME`).
"""
