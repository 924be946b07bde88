"""SASL: how clients and brokers prove their names.

- `mechanism.py`: the interface of a mechanism, on both sides.
- `plain.py`: PLAIN. `scram.py`: SCRAM-SHA-256 and SCRAM-SHA-512, with `scram_credentials.py`. `oauthbearer.py`:
  OAUTHBEARER, whose tokens `jwt.py` validates with the keys of `jwks.py`, or `unsecured_jwt.py` without any.
- `kerberos.py`: GSSAPI, where the package gssapi is installed; `kerberos_client.py` is the side of a broker that logs
  in to others. `kerberos_names.py` makes short names of principals.
- `jaas.py`: the lines of `sasl.jaas.config`. `making.py` makes mechanisms from the configuration, `making_clients.py`
  that by which this broker logs in to others; its tokens for OAUTHBEARER come from `token_endpoint.py`, and
  `token_keeper.py` renews them. `urls.py` reads files and pages of an issuer.
- `listeners.py`: the SASL of each listener. `login.py`: that of one connection. `failure_delays.py`: the delays of
  failed logins.

Only `jwt.py` and `jwks.py` import joserfc, and with it cryptography; only `kerberos.py` imports gssapi.
"""
