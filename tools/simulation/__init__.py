"""A whole cluster in one process and in virtual time, with faults of everything, checked: `make simulate SEED=7`.

- `__main__.py` is the command, `run.py` one run, from the start of the brokers to the checks at the end, and
  `outcome.py` its result. `surroundings.py` is what all of it shares; `cluster.py` has the brokers, each in
  `broker.py`, and `links.py` the directions of the network that are cut or slow.
- `world/`: what the brokers run on: an event loop, processes that can be paused and killed, a network, disks, clocks
  and the metadata store.
- `load/`: the clients, which record the responses that they receive; `tools/soak/checker.py` checks these.
- `faults/`: at random moments, or at the worst ones: crashes, power cuts, a replaced disk, a flipped bit.
- `checks/`: what must hold at every moment, what brokers may log, and what must be there in the end.
- `bugs.py`: bugs that the checks must find (`make simulate PLANT=NAME`). A new bug is a function with a row in `BUGS`;
  `tests/broker/whole/test_planted_cluster_bugs.py` has the seeds.
"""
