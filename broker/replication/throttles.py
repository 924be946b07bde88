"""Limits the rate at which the replicas listed in a topic's configs are fetched, so that a reassignment leaves room for
clients (KIP-73): `leader.replication.throttled.rate` at leaders, `follower.replication.throttled.rate` at followers,
for the replicas that `leader.replication.throttled.replicas` and `follower.replication.throttled.replicas` list. A
leader never delays replicas that acknowledgements wait for, nor a follower partitions that lacked no committed records;
but their bytes count. The others take turns: the partition that received records last comes last.

A throttle is a bucket that fills at the rate. Bytes may pass while it is not empty; an excess has to be refilled before
others may pass. So the rate holds over any time that is long compared with one response (1 MiB, or
`replica.fetch.max.bytes`). Kafka compares samples of the last 11 seconds.

Source: kafka 3.9.1 ReplicationQuotaManager, ReplicaManager.shouldLeaderThrottle,
AbstractFetcherThread.shouldFollowerThrottle.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from math import ceil
from typing import Final

from barnabas.clock import Clock

UNLIMITED: Final = 2**63 - 1
"""The default of both rates."""

BURST_MS: Final = 250
"""The size of a burst after a pause, as the time in which the rate allows it."""

ALL_REPLICAS: Final = "*"
"""The list value that means all of the topic's replicas."""

LONGEST_WAIT_MS: Final = 1_000
"""The longest wait returned: with a small rate it would be long, with 0 infinite, and the rate may be changed."""


class Throttle:
    """Bounds the bytes per second of one broker's throttled replicas, either those that it leads or those that it
    follows; owned by the event loop.

    `rate` is in bytes per second, `is_limited` whether that is a limit; `replicas_of` returns a topic's list of
    throttled replicas, as text.
    """

    def __init__(self, broker_id: int, rate: int, replicas_of: Callable[[str], str], clock: Clock) -> None:
        self._broker_id = broker_id
        self._rate = rate
        self.is_limited = rate < UNLIMITED
        self._replicas_of = replicas_of
        self._clock = clock
        self._left = 0.0
        self._seen_ms = clock.monotonic_ms()

    def limit(self, rate: int) -> None:
        """Set another rate from now on."""
        self._fill()
        self._rate = rate
        self.is_limited = rate < UNLIMITED

    def applies_to(self, topic: str, partition: int) -> bool:
        """Whether this broker's replica of a partition is throttled."""
        return self.is_limited and is_listed(self._replicas_of(topic), partition, self._broker_id)

    def wait_ms(self) -> int:
        """The time until bytes may pass; 0 if they may now."""
        self._fill()
        if self._left > 0:
            return 0
        rate = self._rate
        return LONGEST_WAIT_MS if rate <= 0 else min(LONGEST_WAIT_MS, ceil((1 - self._left) * 1000 / rate))

    def record(self, size: int) -> None:
        """Count bytes that have passed; a negative number takes some of them back."""
        self._fill()
        self._left -= size

    def _fill(self) -> None:
        now_ms, rate = self._clock.monotonic_ms(), self._rate
        self._left = min(rate * BURST_MS / 1000, self._left + rate * (now_ms - self._seen_ms) / 1000)
        self._seen_ms = now_ms


def is_listed(replicas: str, partition: int, broker_id: int) -> bool:
    """Whether a list of throttled replicas, PARTITION:BROKER,... or *, has a broker's replica of a partition."""
    listed = _listed(replicas)
    return ALL_REPLICAS in listed or f"{partition}:{broker_id}" in listed


@lru_cache(maxsize=1024)
def _listed(replicas: str) -> frozenset[str]:
    """The entries of a list; called with each fetch, for each lagging partition."""
    return frozenset(each.strip() for each in replicas.split(","))


def listed_in(overrides: Callable[[str, str], Mapping[str, str]], key: str) -> Callable[[str], str]:
    """A function that returns a topic's list of throttled replicas, which is under `key` among its configs."""
    return lambda topic: overrides("topics", topic).get(key, "")
