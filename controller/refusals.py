"""The retry timer for replicas that a live broker could not open or create, and the requests that are answered once
those are served. (Which replicas they are stands in the state of the cluster.)
"""

from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple, TypeVar

from barnabas.backoff import Backoff
from barnabas.controller.admin_request import AdminRequest
from barnabas.controller.state import NO_LEADER, ClusterState, TopicPartition
from barnabas.timers import ScheduledCall, Timers
from barnabas.wire.errors import ApiError, ErrorCode

Answer = TypeVar("Answer")

RETRY_DELAY_MS = 1_000
RETRY_DELAY_MS_MAX = 60_000
"""How long after a refusal a broker is asked again, at first and at most: it may lack descriptors or room, which may
pass. Each time it is twice as long."""


class _Waiter(NamedTuple):
    """A request that is answered, with `answer`, when the brokers serve these partitions."""

    partitions: frozenset[TopicPartition]
    request: AdminRequest[Any]
    answer: Any


class Refusals:
    """When to ask brokers again for what they refused, and which requests wait for that; which replicas they refused is
    in the cluster's state. Owned by the controller's task.

    `retry` is called when it is time to ask again. `never_served` are partitions, by broker, that it refused when they
    were new, and has not served yet: they are told as new again.
    """

    def __init__(self, timers: Timers, retry: Callable[[], None]) -> None:
        self.never_served: dict[int, frozenset[TopicPartition]] = {}
        self._timers = timers
        self._retry = retry
        self._timer: ScheduledCall | None = None
        self._backoff = Backoff(RETRY_DELAY_MS, RETRY_DELAY_MS_MAX)
        self._unconfirmed: set[TopicPartition] = set()
        """Of which a broker refused a replica, and whose leader has not answered since: it may refuse, too."""
        self._waiters: list[_Waiter] = []
        self._expected: dict[AdminRequest[Any], frozenset[TopicPartition]] = {}
        """The partitions of requests whose answer waits for the own broker first."""

    def note(self, broker_id: int, new: Iterable[TopicPartition]) -> None:
        """A broker has refused partitions, among them these `new` ones: it is asked again after a while."""
        self.never_served[broker_id] = self.never_served.get(broker_id, frozenset()).union(new)
        self.retry_later()

    def served(self, broker_id: int, partitions: Iterable[TopicPartition]) -> None:
        """A broker serves these partitions, now or for the first time."""
        self.never_served[broker_id] = self.never_served.get(broker_id, frozenset()).difference(partitions)

    def await_leaders(self, partitions: Iterable[TopicPartition]) -> None:
        """A broker has refused its replicas of these partitions; who leads them now is told of it, and will answer."""
        self._unconfirmed.update(partitions)

    def confirm(self, broker_id: int, opened: Collection[TopicPartition], cluster: ClusterState) -> None:
        """A broker has opened its replicas of these partitions: it does not refuse those that it leads."""
        self._unconfirmed = {p for p in self._unconfirmed if p not in opened or _leader(cluster, p) != broker_id}

    def forget_topics(self, names: Collection[str]) -> None:
        """These topics are gone: later ones of their names are others."""
        for broker_id, partitions in self.never_served.items():
            self.never_served[broker_id] = frozenset(p for p in partitions if p[0] not in names)

    def retry_later(self) -> None:
        """Have brokers asked again after a while, as one has refused something."""
        if self._timer is None:
            self._timer = self._timers.call_later(self._backoff.next_ms(), self._time_is_over)

    def _time_is_over(self) -> None:
        self._timer = None  # also where nobody asks again, as this broker is not the controller now
        self._retry()

    def retry_ends(self) -> None:
        """Nothing is refused any more: the next delay is a short one, unless one runs already."""
        if self._timer is None:
            self._backoff.reset()

    def forget(self) -> None:
        """The cluster was read again, and brokers are told everything anew. What one refused in an earlier term it may
        have served since, and lost: told as new, it would begin empty where others count on it. Who refuses by now is
        not known, so that the leader of each partition that a request waits for has to answer."""
        self.stop()
        self._timer = None
        self._backoff.reset()
        self.never_served.clear()
        self._unconfirmed = {p for partitions in self._expected.values() for p in partitions}
        self._unconfirmed.update(p for waiter in self._waiters for p in waiter.partitions)

    def stop(self) -> None:
        """Ask brokers no more for what they refused."""
        if self._timer is not None:
            self._timer.cancel()

    def give_up(self) -> None:
        """This broker is not the controller any more: whoever waits is told so."""
        for waiter in self._waiters:
            waiter.request.fail(ApiError(ErrorCode.NOT_CONTROLLER))
        self._waiters.clear()
        self._expected.clear()

    def expect(self, partitions: Iterable[TopicPartition], request: AdminRequest[Any]) -> None:
        """A request will wait for these partitions (`finish_when_served`), which brokers were told of."""
        self._expected[request] = frozenset(partitions)

    def finish_when_served(
        self,
        partitions: Iterable[TopicPartition],
        request: AdminRequest[Answer],
        answer: Answer,
        cluster: ClusterState,
    ) -> None:
        """Answer the request when each of the partitions that was refused has a leader that did not refuse it: now, or
        at a later `finish_served`."""
        self._expected.pop(request, None)
        self._waiters.append(_Waiter(frozenset(partitions), request, answer))
        self.finish_served(cluster)

    def finish_served(self, cluster: ClusterState) -> None:
        """Answer the requests whose partitions are all served; one that waits for too long is answered by its own
        timer.
        """
        self._unconfirmed = {p for p in self._unconfirmed if _leader(cluster, p) not in (None, NO_LEADER)}
        refused = {
            partition
            for partitions in cluster.offline_replicas.values()
            for partition in partitions
            if _leader(cluster, partition) == NO_LEADER
        }
        refused |= self._unconfirmed
        for waiter in self._waiters:
            if not waiter.partitions & refused:
                waiter.request.finish(waiter.answer)
        self._waiters = [waiter for waiter in self._waiters if waiter.partitions & refused]


def _leader(cluster: ClusterState, partition: TopicPartition) -> int | None:
    """The leader of a partition, or NO_LEADER; None if there is no such partition."""
    name, index = partition
    topic = cluster.topics.get(name)
    state = None if topic is None else topic.partitions.get(index)
    return None if state is None else state.leader
