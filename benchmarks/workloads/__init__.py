"""All workloads, in the order of the table."""

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
)
