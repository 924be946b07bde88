"""TLS of a listener: its key, the certificates that it trusts, and the principals of client certificates.

- `stores.py` reads the content of key stores and trust stores, PEM and PKCS12, also for `broker/client/`.
- `key_stores.py` loads those of a listener, from files or from the configuration.
- `contexts.py` makes `ssl.SSLContext` objects from Kafka's `ssl.` keys, for servers and for clients.
- `principal_mapping.py` turns the subject of a certificate into a principal (`ssl.principal.mapping.rules`, KIP-371).
- `passwords.py` encodes passwords for the metadata store as Kafka does (`password.encoder.`).
- `errors.py` has the error of a configuration that cannot be used.

A broker imports none of it unless a listener has TLS, or a password is to be stored.
`broker/network/listener_tls.py` keeps the contexts of all listeners and replaces them,
`broker/network/tls_handshakes.py` uses them.
"""
