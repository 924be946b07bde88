"""The brokers that still have replicas of topics that are being deleted, and the requests that wait for the deletion.
They wait for live brokers only, as others may be absent for long, and clients do not see the topic meanwhile.
"""

from collections.abc import Callable, Collection, Container, Iterable
from typing import NamedTuple

from barnabas.controller.admin_request import AdminRequest, Results
from barnabas.wire.errors import ApiError, ErrorCode


class _Deletion:
    """One topic that is being deleted. `holders` are the brokers that have not confirmed the deletion of their
    replicas; `asked` are those of them that have been asked and have not responded.
    """

    __slots__ = ("asked", "holders")

    def __init__(self, holders: Iterable[int]) -> None:
        self.holders = set(holders)
        self.asked: set[int] = set()


class _Waiter(NamedTuple):
    """A request that is completed when each of its topics is deleted from the live brokers, or is known to remain."""

    results: Results
    waiting: set[str]
    request: AdminRequest[Results]
    finish: Callable[[Results], None]


class Deletions:
    """The pending deletions; owned by the controller's task."""

    def __init__(self) -> None:
        self._deletions: dict[str, _Deletion] = {}
        self._waiters: list[_Waiter] = []

    def begin_anew(self, names: Container[str]) -> None:
        """The cluster is taken over: all brokers are asked again about the queued topics in `names`; other topics that
        requests wait for are deleted.
        """
        self._deletions.clear()
        for name in {name for waiter in self._waiters for name in waiter.waiting if name not in names}:
            self._settle(name, None)

    def give_up(self) -> None:
        """This broker is not the controller any more: fail the waiting requests."""
        for waiter in self._waiters:
            waiter.request.fail(ApiError(ErrorCode.NOT_CONTROLLER))
        self._waiters.clear()

    def begin(self, name: str, holders: Iterable[int]) -> None:
        """Begin the deletion of a topic with replicas on these brokers; ignored if it has begun already."""
        if name not in self._deletions:
            self._deletions[name] = _Deletion(holders)

    def holders(self, name: str) -> set[int]:
        """The brokers that have not confirmed the deletion of their replicas of a topic."""
        return set(self._deletions[name].holders)

    def held_by(self, broker_id: int) -> list[str]:
        """The topics in deletion of which a broker has replicas."""
        return [name for name, deletion in self._deletions.items() if broker_id in deletion.holders]

    def to_ask(self, broker_id: int, names: Iterable[str]) -> list[str]:
        """The topics whose replicas a broker has to be asked to delete."""
        deletions = ((name, self._deletions[name]) for name in names)
        return [name for name, each in deletions if broker_id in each.holders and broker_id not in each.asked]

    def asked(self, broker_id: int, names: Iterable[str]) -> None:
        """Note that a broker was asked to delete topics' replicas, and has not responded yet."""
        for name in names:
            self._deletions[name].asked.add(broker_id)

    def confirmed(self, broker_id: int, name: str) -> bool:
        """A broker has deleted its replicas of a topic; returns whether it was the last one."""
        deletion = self._deletions.get(name)
        if deletion is None:
            return False
        deletion.asked.discard(broker_id)
        deletion.holders.discard(broker_id)
        return not deletion.holders

    def failed(self, broker_id: int, name: str, error: ApiError) -> None:
        """A broker cannot delete its replicas of a topic now: fail the topic in waiting requests."""
        deletion = self._deletions.get(name)
        if deletion is not None:
            deletion.asked.discard(broker_id)
            self._settle(name, error)

    def settle_held_by_absent(self, names: Iterable[str], live: Collection[int]) -> None:
        """Stop waiting for those of the topics of which no `live` broker has a replica."""
        for name in names:
            deletion = self._deletions.get(name)
            if deletion is not None and deletion.holders.isdisjoint(live):
                self._settle(name, None)

    def lost(self, broker_id: int, live: Collection[int]) -> None:
        """A broker has died: stop waiting for its replicas; it is asked again when it is back."""
        held = self.held_by(broker_id)
        for name in held:
            self._deletions[name].asked.discard(broker_id)
        self.settle_held_by_absent(held, live)

    def ended(self, names: Iterable[str]) -> None:
        """Remove deleted topics."""
        for name in names:
            self._deletions.pop(name, None)
            self._settle(name, None)

    def finish_when_settled(
        self,
        results: Results,
        waiting: Iterable[str],
        request: AdminRequest[Results],
        finish: Callable[[Results], None],
    ) -> None:
        """Call `finish`, with the results of all topics of a request, when the topics in `waiting` are deleted or known
        to remain; the request's own timer handles a timeout.
        """
        waiter = _Waiter(results, set(waiting), request, finish)
        if waiter.waiting:
            self._waiters.append(waiter)
        else:
            finish(results)

    def _settle(self, name: str, error: ApiError | None) -> None:
        for waiter in self._waiters:
            if name in waiter.waiting:
                waiter.waiting.discard(name)
                waiter.results[name] = error
                if not waiter.waiting:
                    waiter.finish(waiter.results)
        self._waiters = [waiter for waiter in self._waiters if waiter.waiting]
