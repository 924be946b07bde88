"""What live brokers refused to do: when it is asked of them again, and which requests wait for it."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from barnabas.controller.state import ClusterState, TopicPartition
from barnabas.timers import ScheduledCall, Timers

RETRY_DELAY_MS = 1_000
RETRY_DELAY_MS_MAX = 60_000
"""When what a broker could not do is asked of it again (it lacks descriptors or room, which may pass); each time after
twice as long, up to the latter."""


class _Waiter(NamedTuple):
    """A request that is answered when the brokers serve these partitions."""

    partitions: frozenset[TopicPartition]
    finish: Callable[[], None]


class Refusals:
    """Owned by the controller's task. Which replicas are offline is in the cluster's state; here is what else is known
    of them.

    `retry` is called when it is time to ask again. `never_served` are partitions, refused when they were new, that no
    broker has served yet: they are told as new again.
    """

    def __init__(self, timers: Timers, retry: Callable[[], None]) -> None:
        self.never_served: frozenset[TopicPartition] = frozenset()
        self._timers = timers
        self._retry = retry
        self._timer: ScheduledCall | None = None
        self._delay_ms = RETRY_DELAY_MS
        self._waiters: list[_Waiter] = []

    def retry_later(self) -> None:
        """Something was refused: ask again after a while."""
        if self._timer is None:
            self._timer = self._timers.call_later(self._delay_ms, self._retry)

    def retry_begins(self) -> None:
        """It is asked again now; what is refused again comes later."""
        self._timer = None
        self._delay_ms = min(2 * self._delay_ms, RETRY_DELAY_MS_MAX)

    def retry_ends(self) -> None:
        """All was asked again; if nothing was refused, what is refused next is asked again soon."""
        if self._timer is None:
            self._delay_ms = RETRY_DELAY_MS

    def stop(self) -> None:
        """Ask no more."""
        if self._timer is not None:
            self._timer.cancel()

    def finish_when_served(
        self, partitions: Iterable[TopicPartition], finish: Callable[[], None], cluster: ClusterState
    ) -> None:
        """Call `finish` when none of the partitions is refused any more: now, or at a later `finish_served`."""
        self._waiters.append(_Waiter(frozenset(partitions), finish))
        self.finish_served(cluster)

    def finish_served(self, cluster: ClusterState) -> None:
        """Answer whose partitions are all served; whoever waits for too long is answered by his own timer."""
        refused = {partition for partitions in cluster.offline_replicas.values() for partition in partitions}
        for waiter in self._waiters:
            if not waiter.partitions & refused:
                waiter.finish()
        self._waiters = [waiter for waiter in self._waiters if waiter.partitions & refused]
