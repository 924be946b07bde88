"""Authentication, and the operations that clients may perform.

- `sasl/`: the mechanisms by which clients and brokers log in.
- `broker_secrets.py`: the secrets that brokers of a cluster send each other, by the mechanism PLAIN.
- `authorizer.py`: what an authorizer decides; `acls/` is the one that decides by ACLs.
- `delegation_tokens.py`: delegation tokens, which users get for others (KIP-48).
- `java_patterns.py`: regular expressions that were written for Java, in the rules by which principals are named.
- `operations.py`: the operations on each type of resource, and their bit fields in responses (KIP-430).

`tls/` has keys, certificates and the contexts of TLS.

`broker/network/peer_connection.py` sends the secret, SaslHandshake and SaslAuthenticate (`broker/handlers/`) check it.
A broker's registration has the digest (`controller/operations/broker_changes.py`). `broker/cli/cluster_directory.py`
keeps the secret that `serve --brokers` gives to its brokers.
"""
