"""The configuration keys themselves, as plain rows. A file's head says what a row means.

- `broker.py`: broker keys with an effect, each an attribute of `BrokerConfig`.
- `topics.py`: topic keys; the marked ones delete records.
- `other.py`: broker keys without an effect, listed with Kafka's defaults.
- `security.py`: keys of TLS, stored passwords and authorizers; `sasl.py`: those of SASL.
"""
