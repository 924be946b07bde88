"""All workloads, in the order of the table.

- Writes and reads: `produce.py` (one Java producer), `requests.py` (one record a request), `fetch.py` (a topic from its
  start), `latency.py`, `round_trip.py` (codecs and transactions), `spark.py`.
- Amounts: `partitions.py`, `groups.py` (200 consumers). Starts and memory: `start.py`.
- Security: `secured.py` (TLS, logins).
- Clusters of three: `replicated.py`, and with thousands of partitions `replicated_partitions.py`.
"""

from benchmarks.model import Workload
from benchmarks.workloads import (
    fetch,
    groups,
    latency,
    partitions,
    produce,
    replicated,
    replicated_partitions,
    requests,
    round_trip,
    secured,
    spark,
    start,
)

WORKLOADS: tuple[Workload, ...] = (
    produce.ONE_PRODUCER,
    produce.DEFAULTS,
    requests.UNBATCHED_REQUESTS,
    fetch.CATCH_UP,
    latency.END_TO_END,
    partitions.MANY_WRITTEN,
    partitions.MANY_HOSTED,
    start.FIRST_ACK_AND_MEMORY,
    round_trip.CODECS,
    requests.FLUSHED_REQUESTS,
    round_trip.TRANSACTIONS,
    groups.JOIN_AND_LEAVE,
    latency.IDLE_CONNECTIONS,
    start.AFTER_A_CRASH,
    spark.READ,
    replicated.LARGE,
    replicated.DEFAULTS,
    replicated.ONE_AT_A_TIME,
    replicated.CATCHING_UP,
    replicated_partitions.IDLE,
    replicated_partitions.BROKER_DIES,
    replicated_partitions.MADE_AND_RESTARTED,
    secured.LARGE_BATCHES_OVER_TLS,
    secured.ONE_AT_A_TIME,
    secured.LOGINS,
)
