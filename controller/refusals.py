"""The retry timer for replicas that a live broker could not open or create, and the requests that wait until those are
served. (The state of the cluster contains the replicas.)
"""

from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple, TypeVar

from barnabas.backoff import Backoff
from barnabas.controller.admin_request import AdminRequest
from barnabas.controller.state import NO_LEADER, ClusterState, TopicPartition
from barnabas.timers import ScheduledCall, Timers

Answer = TypeVar("Answer")

RETRY_DELAY_MS = 1_000
RETRY_DELAY_MS_MAX = 60_000
"""The initial and the maximum delay before a broker is asked again after a refusal: it may lack descriptors or disk
space, which may pass. The delay doubles each time.
"""


class _Waiter(NamedTuple):
    """A request that is completed, with `answer`, when the brokers serve these partitions."""

    partitions: frozenset[TopicPartition]
    request: AdminRequest[Any]
    answer: Any


class Refusals:
    """The time to retry refused replicas, and the requests that wait for them; the cluster's state contains the refused
    replicas. Owned by the controller's task.

    `retry` is called when it is time to ask again. `never_served` are partitions, by broker, that it refused when they
    were new, and has not served yet: they are sent as new again.
    """

    def __init__(self, timers: Timers, retry: Callable[[], None]) -> None:
        self.never_served: dict[int, frozenset[TopicPartition]] = {}
        self._timers = timers
        self._retry = retry
        self._timer: ScheduledCall | None = None
        self._backoff = Backoff(RETRY_DELAY_MS, RETRY_DELAY_MS_MAX)
        self._unconfirmed: set[TopicPartition] = set()
        """Partitions of which a broker refused a replica, and whose leader has not responded since: it may refuse, too.
        """
        self._waiters: list[_Waiter] = []
        self._expected: dict[AdminRequest[Any], frozenset[TopicPartition]] = {}
        """The partitions of requests that wait for the own broker first."""

    def note(self, broker_id: int, new: Iterable[TopicPartition]) -> None:
        """A broker has refused partitions, among them these `new` ones: it is asked again after a while."""
        self.never_served[broker_id] = self.never_served.get(broker_id, frozenset()).union(new)
        self.retry_later()

    def served(self, broker_id: int, partitions: Iterable[TopicPartition]) -> None:
        """A broker serves these partitions, now or for the first time."""
        self.never_served[broker_id] = self.never_served.get(broker_id, frozenset()).difference(partitions)

    def await_leaders(self, partitions: Iterable[TopicPartition]) -> None:
        """A broker has refused its replicas of these partitions; their leader is informed of it, and will respond."""
        self._unconfirmed.update(partitions)

    def confirm(self, broker_id: int, opened: Collection[TopicPartition], cluster: ClusterState) -> None:
        """A broker has opened its replicas of these partitions: it does not refuse those that it leads."""
        self._unconfirmed = {p for p in self._unconfirmed if p not in opened or _leader(cluster, p) != broker_id}

    def forget_topics(self, names: Collection[str]) -> None:
        """These topics are deleted: later ones of the same names are different."""
        for broker_id, partitions in self.never_served.items():
            self.never_served[broker_id] = frozenset(p for p in partitions if p[0] not in names)

    def retry_later(self) -> None:
        """Schedule a retry, as a broker has refused something."""
        if self._timer is None:
            self._timer = self._timers.call_later(self._backoff.next_ms(), self._time_is_over)

    def _time_is_over(self) -> None:
        self._timer = None  # also if nothing is retried, as this broker is not the controller now
        self._retry()

    def retry_ends(self) -> None:
        """Nothing is refused any more: the next delay is a short one, unless a timer is running."""
        if self._timer is None:
            self._backoff.reset()

    def forget(self) -> None:
        """The cluster was loaded again, and brokers are informed again. A broker may have served, and lost, a replica
        that it refused in an earlier term: sent as new, it would start empty while others rely on it. The current
        refusals are unknown, so the leader of each partition that a request waits for has to respond.
        """
        self.stop()
        self._timer = None
        self._backoff.reset()
        self.never_served.clear()
        self._unconfirmed = {p for partitions in self._expected.values() for p in partitions}
        self._unconfirmed.update(p for waiter in self._waiters for p in waiter.partitions)

    def stop(self) -> None:
        """Stop retrying refused replicas."""
        if self._timer is not None:
            self._timer.cancel()

    def give_up(self, cluster: ClusterState) -> None:
        """This broker is not the controller any more. Requests whose partitions may have no leader time out, as they do
        in Kafka, where they wait for the metadata of the next controller; the others are failed by who knows of the
        new controller.
        """
        refused = self._refused(cluster)
        for request, partitions in self._expected.items():
            if partitions & refused:
                request.time_out()
        for waiter in self._waiters:
            waiter.request.time_out()
        self._waiters.clear()
        self._expected.clear()

    def expect(self, partitions: Iterable[TopicPartition], request: AdminRequest[Any]) -> None:
        """A request will wait for these partitions (`finish_when_served`), about which brokers were informed."""
        self._expected[request] = frozenset(partitions)

    def finish_when_served(
        self,
        partitions: Iterable[TopicPartition],
        request: AdminRequest[Answer],
        answer: Answer,
        cluster: ClusterState,
    ) -> None:
        """Complete the request when each refused partition has a leader that did not refuse it: now, or at a later
        `finish_served`.
        """
        self._expected.pop(request, None)
        self._waiters.append(_Waiter(frozenset(partitions), request, answer))
        self.finish_served(cluster)

    def finish_served(self, cluster: ClusterState) -> None:
        """Complete the requests whose partitions are all served; each request's own timer handles a timeout."""
        refused = self._refused(cluster)
        for waiter in self._waiters:
            if not waiter.partitions & refused:
                waiter.request.finish(waiter.answer)
        self._waiters = [waiter for waiter in self._waiters if waiter.partitions & refused]

    def _refused(self, cluster: ClusterState) -> set[TopicPartition]:
        """The partitions without a leader of which a broker refused a replica, or whose leader may refuse."""
        self._unconfirmed = {p for p in self._unconfirmed if _leader(cluster, p) not in (None, NO_LEADER)}
        refused = {
            partition
            for partitions in cluster.offline_replicas.values()
            for partition in partitions
            if _leader(cluster, partition) == NO_LEADER
        }
        return refused | self._unconfirmed


def _leader(cluster: ClusterState, partition: TopicPartition) -> int | None:
    """The leader of a partition, or NO_LEADER; None if the partition does not exist."""
    name, index = partition
    topic = cluster.topics.get(name)
    state = None if topic is None else topic.partitions.get(index)
    return None if state is None else state.leader
