"""Faults of brokers: `faults.py` has the verbs of a test, `state_faults.py` those that change the state of a broker;
`fault.py` is what they add and `fault_list.py` where it is until it is removed. `effects.py` says what becomes of a
request, with `error_responses.py` for errors, and `cuts.py` what becomes of the connections between brokers.
"""
