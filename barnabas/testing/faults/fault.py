"""Faults that last until a test removes them, and count their hits: of any kind, and in groups."""

from __future__ import annotations

import errno
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Iterator
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar

from barnabas.testing.faults.effects import Disconnect, Park
from barnabas.testing.interception.answer import Effect
from barnabas.testing.interception.faulty_disk import Refusing
from barnabas.testing.interception.selection import Limits, Matcher
from barnabas.testing.waiting.conditions import NothingMoreComes, wait_until
from barnabas.testing.waiting.timeouts import TIMEOUT_S, check_may_block, check_wait, with_timeout

if TYPE_CHECKING:
    from barnabas.testing.interception.request import Request
    from barnabas.testing.waiting.conditions import Listeners

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Registry(Protocol):
    """The list that has a fault from its addition until its removal."""

    @property
    def _is_of_another_process(self) -> bool:
        """Whether its faults belong to the process from which this one was forked."""
        ...

    def __iter__(self) -> Iterator[Fault]:
        """The faults that are not removed."""
        ...

    def _remove(self, fault: Fault) -> None:
        """Remove one fault without undoing it; does nothing when it has ended."""
        ...

    def _on_loop(self, action: Callable[[], None]) -> None:
        """Call a function on the broker's event loop, and return when it is done."""
        ...

    def _tell_loop(self, action: Callable[[], None]) -> None:
        """Have a function called on the broker's event loop, later."""
        ...

    def _wait(self, waiting: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of a wait on the broker's event loop, also while brokers are restarted. Raises RuntimeError when
        no broker runs.
        """
        ...

    async def _wait_async(self, waiting: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Like `wait`, from a coroutine on another event loop."""
        ...


class Lasting(ABC):
    """A fault, or group, that lasts until `remove()`, or until its `with` block ends. Thread-safe, as the broker is.

    Errors: RuntimeError of a `with` block after the end.
    """

    @property
    @abstractmethod
    def hits(self) -> int:
        """The number of hits: of requests, unless the subclass says otherwise."""

    @property
    @abstractmethod
    def matches(self) -> int:
        """The number of matching requests, hit or not; after the last allowed hit none are counted."""

    @property
    @abstractmethod
    def asked(self) -> int:
        """The number of requests of its APIs meanwhile, whatever their subject: more than `matches` if keywords of the
        fault exclude some of them, or, as with a misspelt topic, all.
        """

    @property
    @abstractmethod
    def times(self) -> int | None:
        """The maximum number of hits; None for any number."""

    @abstractmethod
    def remove(self) -> None:
        """End it: later requests pass, held ones continue. Does nothing when it has ended."""

    @abstractmethod
    def _parts(self) -> Collection[Fault]:
        """The faults that it consists of."""

    def wait_hits(self, count: int = 1, *, timeout: float = TIMEOUT_S) -> None:
        """Wait for this number of hits; `timeout` is in seconds of real time.

        Errors: TimeoutError; ValueError for more than its `times`; RuntimeError when it has ended before, and inside a
        running event loop: await `wait_hits_async` there.
        """
        check_may_block("wait_hits_async")
        self._check_comes(count, timeout)
        self._among()._wait(partial(self._hits, count, timeout))

    async def wait_hits_async(self, count: int = 1, *, timeout: float = TIMEOUT_S) -> None:
        """Like `wait_hits`, without blocking the event loop that it is awaited on."""
        self._check_comes(count, timeout)
        await self._among()._wait_async(partial(self._hits, count, timeout))

    async def _hits(self, count: int, timeout_s: float) -> None:
        await self._reached(lambda: self.hits >= count, timeout_s, lambda: f"{self!r}: not {count} hits")

    def _check_comes(self, count: int, timeout: float) -> None:
        """Refuse to wait for an impossible number. Errors: ValueError, TypeError."""
        check_wait(timeout, count)
        if self.times is not None and count > self.times:
            raise ValueError(f"{self!r} has {self.times} hits at most: do not wait for {count}")

    def _among(self) -> Registry:
        return next(iter(self._parts()))._registry

    def _described(self, what: str) -> str:
        """Its description, with its hits and the number of requests that it might have hit."""
        of_all = f" of {self.asked} requests" if self.asked > self.hits else ""
        return f"<{what}, {self.hits} hits{of_all}>"

    async def _reached(self, is_reached: Callable[[], bool], timeout_s: float, found: Callable[[], str]) -> None:
        parts = self._parts()

        def reached() -> bool | None:
            if is_reached():
                return True
            if not any(part in part._registry for part in parts):
                how = "remove(), reset() or the end of its `with` block"
                raise NothingMoreComes(
                    f"{found()}, and no more can come: the fault has ended by {how}. Wait before that"
                )
            return None

        await with_timeout(wait_until(reached, lambda: [part._listeners for part in parts]), timeout_s, found)

    def __enter__(self) -> Self:
        if not any(part in part._registry for part in self._parts()):
            raise RuntimeError(f"{self!r} has ended: make another fault for this block")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not any(part._registry._is_of_another_process for part in self._parts()):  # there it continues
            self.remove()


class Fault(Lasting):
    """One fault, from its creation until `remove()`, or until its `with` block ends."""

    _meets_requests: ClassVar[bool] = True
    """Whether it affects requests."""

    def __init__(
        self, among: Registry, name: str, matcher: Matcher, limits: Limits, new_effect: Callable[[Fault], Effect]
    ) -> None:
        self._registry = among
        self._name = name
        self._matcher = matcher
        self._limits = limits
        self._asked = 0
        self._listeners: Listeners = set()
        self._effect = new_effect(self)

    def _belongs_to(self, name: str) -> None:
        """Be described as a part of the group with that name."""
        self._name = f"{name}: {self._name}"

    def __repr__(self) -> str:
        return self._described(self._what)

    @property
    def _what(self) -> str:
        """Its effect, and its targets."""
        told = ", ".join([*self._for(), *self._limits.described()])
        return f"{self._name} ({told})" if told else self._name

    def _for(self) -> list[str]:
        """Its targets, as the test gave them: a misspelt name should be visible."""
        return self._matcher.described()

    @property
    def hits(self) -> int:
        return self._limits.hits

    @property
    def matches(self) -> int:
        return self._limits.matches

    @property
    def asked(self) -> int:
        return self._asked

    @property
    def times(self) -> int | None:
        return self._limits.times

    def _hinders_brokers(self) -> bool:
        """Whether it may hinder the communication between brokers of a cluster, or access to their data."""
        return self._matcher.is_of_brokers

    @property
    def _random(self) -> random.Random:
        """The random numbers that decide about hits, from its seed."""
        return self._limits.random

    def _is_hit(self, request: Request) -> bool:
        """Whether the fault hits this request; counts. A predicate that raises counts as false. Broker's loop only."""
        return self._is_for(request) and self._counts()

    def _is_for(self, request: Request) -> bool:
        if not self._limits.is_over and self._matcher.is_asked(request):
            self._asked += 1
        try:
            return self._matcher.matches(request)
        except Exception:
            logger.exception("the predicate of %r failed", self)
            return False

    def _counts(self) -> bool:
        """Count one more match, and return whether it is hit. Broker's loop only."""
        if not self._limits.is_hit():
            return False
        self._changed()
        return True

    def _begun(self) -> None:
        """Take effect, beyond the effects on requests, connections and disks. Broker's loop only."""

    def _ended(self) -> None:
        """Release everything that it holds: it has ended. Broker's loop only."""
        self._effect.end()

    def _changed(self) -> None:
        """Notify everything that waits for hits. Broker's loop only."""
        for listener in list(self._listeners):
            listener()

    def _parts(self) -> Collection[Fault]:
        return (self,)

    def remove(self) -> None:
        self._registry._remove(self)


class Hold(Fault):
    """A fault that holds requests until they are released."""

    _effect: Park

    @property
    def held(self) -> int:
        """The number of currently held requests."""
        return len(self._effect.parked)

    def wait_held(self, count: int = 1, *, timeout: float = TIMEOUT_S) -> None:
        """Wait until this number of requests is held; `timeout` is in seconds of real time.

        Errors: TimeoutError; ValueError for more than its `times`; RuntimeError when the fault has ended before, and
        inside a running event loop: await `wait_held_async` there.
        """
        check_may_block("wait_held_async")
        self._check_comes(count, timeout)
        self._registry._wait(partial(self._holds, count, timeout))

    async def wait_held_async(self, count: int = 1, *, timeout: float = TIMEOUT_S) -> None:
        """Like `wait_held`, without blocking the event loop that it is awaited on."""
        self._check_comes(count, timeout)
        await self._registry._wait_async(partial(self._holds, count, timeout))

    async def _holds(self, count: int, timeout_s: float) -> None:
        await self._reached(
            lambda: self.held >= count, timeout_s, lambda: f"{self.held} requests are held, not {count}"
        )

    def release(self, count: int | None = None) -> None:
        """Release the first `count` requests, or all that are held now; later ones are held again."""
        self._registry._on_loop(partial(self._effect.release, count))


class Refusal(Fault):
    """A fault of new connections; its hits are the refused ones."""

    _meets_requests = False

    def _refuses(self, broker: int) -> bool:
        """Whether a new connection at a broker is refused; counts. Broker's loop only."""
        return self._matcher.is_at(broker) and self._counts()

    def _hinders_brokers(self) -> bool:
        return True


class DiskFault(Fault):
    """A fault of a disk; its hits are the refused calls."""

    _meets_requests = False
    _error_number = errno.ENOSPC

    def _refusing(self, broker: int) -> Refusing | None:
        """The effect on a broker's disk; None if the broker is not meant."""
        return Refusing(self._error_number, self._refuses) if self._matcher.is_at(broker) else None

    def _hinders_brokers(self) -> bool:
        return True

    def _refuses(self) -> bool:
        """Also called by the threads that write."""
        is_hit = self._limits.is_hit()
        if is_hit:
            self._registry._tell_loop(self._changed)
        return is_hit


class AnswerFault(Fault):
    """A fault of responses; its hits are those that it could change, which its effect counts."""

    def _is_hit(self, request: Request) -> bool:
        return not self._limits.is_over and self._is_for(request)


class StateFault(Fault):
    """A fault of the broker's state, which is undone when it is removed (`undo`, in the thread that removes it). The
    broker responds by itself: hits are the requests of clients that encounter the wrong state.
    """

    def __init__(self, among: Registry, name: str, matcher: Matcher, undo: Callable[[], None]) -> None:
        super().__init__(among, name, matcher, Limits(), no_effect)
        self._undo = undo
        self._is_being_undone = False

    @property
    def asked(self) -> int:
        return self.hits  # its matches are its hits

    def _for(self) -> list[str]:
        return []  # its name says everything

    def _is_hit(self, request: Request) -> bool:
        super()._is_hit(request)
        return False

    def _is_undone(self) -> bool:
        """Whether another action has undone it already. Broker's loop only."""
        return False

    def remove(self) -> None:
        if self._is_being_undone or self not in self._registry:
            return
        self._is_being_undone = True
        try:
            self._undo()
        finally:
            self._is_being_undone = False
        super().remove()


class FaultGroup(Lasting):
    """Several faults that belong together, and end together; `hits` and `matches` are those of all."""

    def __init__(self, name: str, *faults: Fault) -> None:
        self.faults = faults
        self._name = name
        for fault in faults:
            fault._belongs_to(name)

    def __repr__(self) -> str:
        return self._described(self._name)

    @property
    def hits(self) -> int:
        return sum(fault.hits for fault in self.faults)

    @property
    def matches(self) -> int:
        return sum(fault.matches for fault in self.faults)

    @property
    def asked(self) -> int:
        # Parts that are selected only by a broker's number count the same request several times.
        return sum(fault.asked if fault._matcher.addressed else fault.hits for fault in self.faults)

    @property
    def times(self) -> int | None:
        times = [fault.times for fault in self.faults]
        return None if None in times else sum(filter(None, times))

    def remove(self) -> None:
        for fault in self.faults:
            fault.remove()

    def _parts(self) -> Collection[Fault]:
        return self.faults


def no_effect(fault: Fault) -> Effect:
    """The effect of a fault that hits no request."""
    return Disconnect(after_work=False)
