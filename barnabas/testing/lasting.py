"""What lasts until a test removes it, and counts what it comes over: a fault of any kind, several that belong together,
and the list of all that there are of a broker, or a cluster."""

from __future__ import annotations

import errno
import logging
import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeVar

from barnabas.testing.effects import Disconnect, Effect, Park
from barnabas.testing.faulty_disk import Refusing
from barnabas.testing.log_lines import current_test
from barnabas.testing.selection import Limits, Matcher
from barnabas.testing.waiting import TIMEOUT_S, NothingMoreComes, check_may_block, check_wait, wait_until, with_timeout

if TYPE_CHECKING:
    from barnabas.testing.interception import Interception
    from barnabas.testing.request import Request
    from barnabas.testing.waiting import Listeners

logger = logging.getLogger(__name__)

ENDED_MAX: Final = 10
"""How many faults that have ended are told of."""

T = TypeVar("T")
F = TypeVar("F", bound="Fault")


class Lasting(ABC):
    """What lasts until `remove()`, or until its `with` block ends. Thread-safe, as the broker is.

    Errors: RuntimeError of a `with` block for what has ended.
    """

    @property
    @abstractmethod
    def hits(self) -> int:
        """How often it has come over something: a request, where it does not say otherwise."""

    @property
    @abstractmethod
    def matches(self) -> int:
        """How often there was something that it was for, hit or not; none are counted once it has hit as often as it
        may."""

    @property
    @abstractmethod
    def asked(self) -> int:
        """How many requests of its APIs came meanwhile, whatever else they were about: more than `matches` where
        keywords of the fault leave some of them out, a misspelt topic all."""

    @property
    @abstractmethod
    def times(self) -> int | None:
        """How often it comes at most; None for any number of times."""

    @abstractmethod
    def remove(self) -> None:
        """End it: later requests pass, those that it holds go on. Does nothing when it has ended."""

    @abstractmethod
    def parts(self) -> Collection[Fault]:
        """The faults that it is made of."""

    def wait_hits(self, count: int = 1, *, timeout: float = TIMEOUT_S) -> None:
        """Wait until it has come over so many requests; `timeout` is in seconds of real time.

        Errors: TimeoutError; ValueError for more than its `times`; RuntimeError when it has ended before, and inside a
        running event loop: await `wait_hits_async` there.
        """
        check_may_block("wait_hits_async")
        self._check_comes(count, timeout)
        self._among()._wait(partial(self._hits, count, timeout))

    async def wait_hits_async(self, count: int = 1, *, timeout: float = TIMEOUT_S) -> None:
        """As `wait_hits`, without blocking the event loop that it is awaited on."""
        self._check_comes(count, timeout)
        await self._among()._wait_async(partial(self._hits, count, timeout))

    async def _hits(self, count: int, timeout_s: float) -> None:
        await self._reached(lambda: self.hits >= count, timeout_s, lambda: f"{self!r}: not {count} hits")

    def _check_comes(self, count: int, timeout: float) -> None:
        """Refuse to wait for what cannot come. Errors: ValueError, TypeError."""
        check_wait(timeout, count)
        if self.times is not None and count > self.times:
            raise ValueError(f"{self!r} comes {self.times} times at most: {count} are waited for in vain")

    def _among(self) -> FaultList:
        return next(iter(self.parts())).among

    def _described(self, what: str) -> str:
        """What it is, and how often it came, of all that it might have come over."""
        of_all = f" of {self.asked} requests" if self.asked > self.hits else ""
        return f"<{what}, {self.hits} hits{of_all}>"

    async def _reached(self, is_reached: Callable[[], bool], timeout_s: float, found: Callable[[], str]) -> None:
        parts = self.parts()

        def reached() -> bool | None:
            if is_reached():
                return True
            if not any(part in part.among for part in parts):
                how = "remove(), reset() or the end of its `with` block"
                raise NothingMoreComes(f"{found()}, and no more come: the fault has ended by {how}, wait before that")
            return None

        await with_timeout(wait_until(reached, lambda: [part.listeners for part in parts]), timeout_s, found)

    def __enter__(self) -> Self:
        if not any(part in part.among for part in self.parts()):
            raise RuntimeError(f"{self!r} has ended, and does nothing any more: make another one for this block")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not any(part.among._is_of_another_process for part in self.parts()):  # where it goes on
            self.remove()


class Fault(Lasting):
    """One fault, from when it is made until `remove()`, or until its `with` block ends."""

    meets_requests: ClassVar[bool] = True
    """Whether it looks at requests."""

    def __init__(
        self, among: FaultList, name: str, matcher: Matcher, limits: Limits, new_effect: Callable[[Fault], Effect]
    ) -> None:
        self.among = among
        self._name = name
        self.matcher = matcher
        self._limits = limits
        self._asked = 0
        self.listeners: Listeners = set()
        self.effect = new_effect(self)

    def belongs_to(self, name: str) -> None:
        """Be told of as a part of what has that name."""
        self._name = f"{name}: {self._name}"

    def __repr__(self) -> str:
        return self._described(self.what)

    @property
    def what(self) -> str:
        """What it does, and what it is for."""
        told = ", ".join([*self._for(), *self._limits.described()])
        return f"{self._name} ({told})" if told else self._name

    def _for(self) -> list[str]:
        """What it is for, as the test said it: a misspelt name is to be found."""
        return self.matcher.described()

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

    def hinders_brokers(self) -> bool:
        """Whether it may keep brokers of a cluster from each other, or from their data."""
        return self.matcher.is_of_brokers

    @property
    def random(self) -> random.Random:
        """The random numbers that decide whether the fault comes, from its seed."""
        return self._limits.random

    def is_hit(self, request: Request) -> bool:
        """Whether the fault comes over this request; counts. A predicate that raises says no. Broker's loop only."""
        return self._is_for(request) and self.counts()

    def _is_for(self, request: Request) -> bool:
        if not self._limits.is_over and self.matcher.is_asked(request):
            self._asked += 1
        try:
            return self.matcher.matches(request)
        except Exception:
            logger.exception("the predicate of %r failed", self)
            return False

    def counts(self) -> bool:
        """Count one more thing that the fault is for, and say whether it comes over this one. Broker's loop only."""
        if not self._limits.is_hit():
            return False
        self.changed()
        return True

    def begun(self) -> None:
        """Take effect, beyond what happens to requests, connections and disks that meet it. Broker's loop only."""

    def ended(self) -> None:
        """Let go of what it holds: it is a fault no more. Broker's loop only."""
        self.effect.end()

    def changed(self) -> None:
        """Tell whoever waits for it to be hit. Broker's loop only."""
        for listener in list(self.listeners):
            listener()

    def parts(self) -> Collection[Fault]:
        return (self,)

    def remove(self) -> None:
        self.among._remove(self)


class Hold(Fault):
    """A fault that has requests wait until they are released."""

    effect: Park

    @property
    def held(self) -> int:
        """How many requests wait now."""
        return len(self.effect.parked)

    def wait_held(self, count: int = 1, *, timeout: float = TIMEOUT_S) -> None:
        """Wait until so many requests are held; `timeout` is in seconds of real time.

        Errors: TimeoutError; ValueError for more than its `times`; RuntimeError when the fault has ended before, and
        inside a running event loop: await `wait_held_async` there.
        """
        check_may_block("wait_held_async")
        self._check_comes(count, timeout)
        self.among._wait(partial(self._holds, count, timeout))

    async def wait_held_async(self, count: int = 1, *, timeout: float = TIMEOUT_S) -> None:
        """As `wait_held`, without blocking the event loop that it is awaited on."""
        self._check_comes(count, timeout)
        await self.among._wait_async(partial(self._holds, count, timeout))

    async def _holds(self, count: int, timeout_s: float) -> None:
        await self._reached(
            lambda: self.held >= count, timeout_s, lambda: f"{self.held} requests are held, not {count}"
        )

    def release(self, count: int | None = None) -> None:
        """Let the first `count` requests go on, or all that wait now; those that come later are held again."""
        self.among._on_loop(partial(self.effect.release, count))


class Refusal(Fault):
    """A fault of new connections; its hits are those that were refused."""

    meets_requests = False

    def refuses(self, broker: int) -> bool:
        """Whether a new connection at a broker is refused; counts. Broker's loop only."""
        return self.matcher.is_at(broker) and self.counts()

    def hinders_brokers(self) -> bool:
        return True


class DiskFault(Fault):
    """A fault of a disk; its hits are the calls that it refused."""

    meets_requests = False
    error_number = errno.ENOSPC

    def refusing(self, broker: int) -> Refusing | None:
        """What the disk of a broker is to do; None where it is not meant."""
        return Refusing(self.error_number, self._refuses) if self.matcher.is_at(broker) else None

    def hinders_brokers(self) -> bool:
        return True

    def _refuses(self) -> bool:
        """Called by the threads that write, too."""
        is_hit = self._limits.is_hit()
        if is_hit:
            self.among._tell_loop(self.changed)
        return is_hit


class AnswerFault(Fault):
    """A fault of answers; its hits are those that it could do something to, which its effect counts."""

    def is_hit(self, request: Request) -> bool:
        return not self._limits.is_over and self._is_for(request)


class StateFault(Fault):
    """A fault of what the broker keeps, which is undone when it is removed (`undo`, in the thread of whoever removes
    it). The broker answers by itself: hits are the requests of clients that meet what is wrong."""

    def __init__(self, among: FaultList, name: str, matcher: Matcher, undo: Callable[[], None]) -> None:
        super().__init__(among, name, matcher, Limits(), no_effect)
        self._undo = undo
        self._is_being_undone = False

    @property
    def asked(self) -> int:
        return self.hits  # it is there: nobody looks for what it is not for

    def _for(self) -> list[str]:
        return []  # its name says all

    def is_hit(self, request: Request) -> bool:
        super().is_hit(request)
        return False

    def is_undone(self) -> bool:
        """Whether something else has undone it already. Broker's loop only."""
        return False

    def remove(self) -> None:
        if self._is_being_undone or self not in self.among:
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
            fault.belongs_to(name)

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
        # Parts that only a broker's number narrows down are asked of one request several times.
        return sum(fault.asked if fault.matcher.addressed else fault.hits for fault in self.faults)

    @property
    def times(self) -> int | None:
        times = [fault.times for fault in self.faults]
        return None if None in times else sum(filter(None, times))

    def remove(self) -> None:
        for fault in self.faults:
            fault.remove()

    def parts(self) -> Collection[Fault]:
        return self.faults


class FaultList:
    """The faults of a broker, or a cluster, that were made and not removed, in that order. Thread-safe."""

    def __init__(self, interception: Interception) -> None:
        self._interception = interception
        self._faults: tuple[Fault, ...] = ()
        self._ended: deque[tuple[str, str]] = deque(maxlen=ENDED_MAX)
        """In which test the last ones have ended, and what they were."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {', '.join(map(repr, self._faults)) or 'none'}>"

    def __iter__(self) -> Iterator[Fault]:
        return iter(self._faults)

    def __len__(self) -> int:
        return len(self._faults)

    def _add(self, fault: F) -> F:
        """Have a fault from now on. Errors: ValueError where it names a broker that a cluster does not have, or an API
        that nobody asks a single broker for; RuntimeError when the broker was never started, or was stopped since:
        nobody would meet the fault."""
        self._interception.owner._check_started()
        self._interception.owner._check_brokers(fault.matcher.brokers)
        self._interception.owner._check_apis(fault.matcher.api_keys)

        def add() -> None:
            self._faults = (*self._faults, fault)
            fault.begun()
            self._tell()

        self._interception.run(add)
        return fault

    def _remove(self, fault: Fault) -> None:
        """Remove one fault, but undo nothing; does nothing when it has ended."""
        self._end([fault])

    def clear(self) -> None:
        """Remove all faults: those of requests, disks and links first, which may be in the way of what others undo.

        Errors: those of what cannot be undone (RuntimeError when no broker runs, ApiError, TimeoutError). That fault
        stays, all others are gone. RuntimeError when the broker was never started, or was stopped since.
        """
        self._interception.owner._check_started()
        with ExitStack() as removals:
            for fault in self._of_state():  # the last one is undone first
                removals.callback(fault.remove)
            self._end([fault for fault in self if not isinstance(fault, StateFault)])

    def _forget(self) -> None:
        """Have no faults any more, of a broker whose state goes: there is nothing to be undone."""
        self._end(self._faults)

    def _ended_in_test(self) -> list[str]:
        """What the last faults were that have ended in the test that pytest runs; none where it runs none."""
        running = current_test()
        return [told for test, told in list(self._ended) if running and test == running]

    def _end_undone(self) -> None:
        """Have no faults any more that something else has undone, the start of a broker above all."""
        self._interception.run(lambda: self._end([fault for fault in self._of_state() if fault.is_undone()]))

    def _of_state(self) -> list[StateFault]:
        """The faults of what the broker keeps, which are undone when they are removed."""
        return [fault for fault in self if isinstance(fault, StateFault)]

    def _prepare_snapshot(self) -> None:
        """End what a broker that is started anew for a snapshot may wait for: faults of disks, of connections, and of
        what brokers ask each other.

        Errors: RuntimeError where the snapshot would keep for good what a fault undoes at its end.
        """
        if kept := self._of_state():
            raise RuntimeError(
                f"a snapshot would keep for good what only the end of a fault undoes: remove() it first: {kept}"
            )
        self._end([fault for fault in self if fault.hinders_brokers()])

    # --- inside -----------------------------------------------------------------------------------

    @property
    def _is_of_another_process(self) -> bool:
        """Whether they are of the process that this one was forked from."""
        return self._interception.owner._is_of_another_process

    def _is_led(self, topic: str, partition: int) -> bool:
        """Whether a broker leads a partition, by its own word. Broker's loop only."""
        return self._interception.owner._led_by_its_word(topic, partition) is not None

    def _on_loop(self, action: Callable[[], None]) -> None:
        """Do something on the broker's event loop, and return when it is done."""
        self._interception.run(action)

    def _tell_loop(self, action: Callable[[], None]) -> None:
        """Have something done on the broker's event loop, some time."""
        self._interception.soon(action)

    def _wait(self, waiting: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What is waited for on the broker's event loop, also while brokers end and others begin. Raises RuntimeError
        when no broker runs."""
        return self._interception.wait(waiting)

    async def _wait_async(self, waiting: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """As `wait`, from a coroutine on another event loop."""
        return await self._interception.wait_async(waiting)

    def _end(self, faults: Iterable[Fault]) -> None:
        def end() -> None:
            ending = [fault for fault in self._faults if fault in faults]
            self._faults = tuple(fault for fault in self._faults if fault not in ending)
            for fault in ending:
                self._ended.append((current_test(), repr(fault)))
                fault.ended()
                self._tell_loop(fault.changed)  # who waits for it waits in vain
            if ending:
                self._tell()

        self._interception.run(end)

    def _tell(self) -> None:
        found = self._interception
        found.doorkeepers = tuple(fault for fault in self._faults if isinstance(fault, Refusal))
        found.disk_faults = tuple(fault for fault in self._faults if isinstance(fault, DiskFault))
        found.meddlers = tuple(fault for fault in self._faults if fault.meets_requests)
        found.attach_all()


def no_effect(fault: Fault) -> Effect:
    """The effect of a fault that no request meets."""
    return Disconnect(after_work=False)
