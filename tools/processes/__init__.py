"""Servers and commands in processes of their own.

`children.py` waits for a process and shows the stacks of one that hangs. `server.py` is what all servers share,
`barnabas.py` is the command `barnabas serve` as one or several of them, and `settled.py` tells whether all brokers of a
cluster have received their controller's decisions.
"""
