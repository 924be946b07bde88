"""Faults of brokers that a test adds: `faults.py` has the verbs for requests, disks and whole brokers.

- `state_faults.py` has the verbs that change the state of a broker, such as its groups and transactions; `elections.py`
  has the elections of leaders that some of them request.
- `security_faults.py` has the verbs for logins, certificates, permissions and quotas.
- `fault.py` is what a verb returns, and `fault_list.py` keeps it until it is removed.
- `effects.py` is what becomes of a request, with `error_responses.py` and `error_codes.py` for errors; `cuts.py` is
  what becomes of the connections between brokers.

A new fault of requests is a verb and an effect. Each verb is also one of `barnabas/testing/control/verbs.py`, and is
described in docs/testing/faults-reference.md.
"""
