"""The checks of a simulated cluster: `invariants.py` at every moment, `end.py` when it has recovered from all faults,
`logged.py` of the errors that brokers log. `guarantee.py` tells whether records may be lost by now, which ends a run.
"""
