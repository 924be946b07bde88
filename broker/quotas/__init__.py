"""Quotas: how much clients may produce, fetch, work and connect, and for how long they are throttled (KIP-13, KIP-124,
KIP-257, KIP-599, KIP-612). Nothing of it is imported before the first quota is configured.

- `rates.py`: rates over samples, token buckets, and the throttle times that follow from them. Pure.
- `entities.py`: users, client ids and addresses, their quotas' names, and which quota of several applies. Pure.
- `managers.py`: the usage of each client, for each type of quota.
- `meter.py`: what one request counts for them, and the throttle that follows.
- `connection_quotas.py`: the rate of new connections of an address.
- `client_quotas.py`: the managers together, as the configs under /config say.
- `alterations.py`, `filters.py`: what AlterClientQuotas changes and DescribeClientQuotas asks for. Pure.

A broker obeys quotas in `broker/api/metering.py` (requests) and `Connections.admit` (connections).
"""
