"""Power cuts: the broker runs on a separate file system, which stops suddenly and loses unsynced data.

`__main__.py` cuts the power of a single broker (`make power-cuts`), `cluster.py` that of one of three; both use the
load of `tools/soak/`. `disk.py` is the file system, and `boot.py` a broker with another boot id.

Power cuts in virtual time are in `tools/simulation/faults/power.py`.
"""
