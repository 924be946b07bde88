"""The faults of a broker, or of a cluster."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from barnabas.testing.caller import current_test
from barnabas.testing.faults.fault import DiskFault, Fault, Refusal, StateFault

if TYPE_CHECKING:
    from barnabas.broker.server import Broker as Server
    from barnabas.testing.contents.partitions import Led
    from barnabas.testing.interception.interception import Interception

T = TypeVar("T")
F = TypeVar("F", bound=Fault)

ENDED_MAX: Final = 10
"""The number of ended faults that are reported."""


class Certificates(Protocol):
    """The certificates that a secured broker may present to new connections. Broker's loop only."""

    def put_own(self) -> None:
        """Present the broker's own certificate again."""
        ...

    def put_expired(self) -> None:
        """Present one that has expired."""
        ...

    def put_for_host(self, host: str) -> None:
        """Present one that names this host alone."""
        ...


class Owner(Protocol):
    """A broker, or a cluster, to which a test adds faults."""

    @property
    def _is_of_another_process(self) -> bool:
        """Whether it runs in the process from which this one was forked."""
        ...

    def live_servers(self) -> Sequence[Server]:
        """The running brokers."""
        ...

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on its event loop."""
        ...

    def _check_started(self) -> None:
        """Errors: RuntimeError when it was never started, or was stopped since."""
        ...

    def _check_brokers(self, numbers: Collection[int]) -> None:
        """Refuse numbers of brokers that it does not have. Errors: ValueError."""
        ...

    def _check_apis(self, keys: frozenset[int] | None) -> None:
        """Refuse APIs that it never receives requests of; None are all. Errors: ValueError."""
        ...

    def _certificates(self) -> Certificates:
        """The certificates that its brokers may present. Errors: RuntimeError unless it is secured and was started."""
        ...

    def _controlling(self) -> Server | None:
        """The broker that is the controller."""
        ...

    def _led_by_its_word(self, name: str, partition: int) -> Led | None:
        """A partition at the broker that considers itself its leader."""
        ...

    async def _leading(self, name: str, partition: int) -> Led:
        """A partition at its leader, once it has one. Errors: TimeoutError, ApiError."""
        ...

    async def _eventually(self, find: Callable[[], T | None], what: str) -> T:
        """The result of `find`, once it is not None. Errors: TimeoutError, ApiError."""
        ...

    async def _settle(self, topics: Collection[str] | None = None, *, in_faults: bool = False) -> None:
        """Wait until all running brokers know the controller's decisions. Errors: TimeoutError."""
        ...


class FaultList:
    """The faults of a broker, or a cluster, that were added and not removed, in that order. Thread-safe."""

    def __init__(self, interception: Interception, owner: Owner) -> None:
        self._interception = interception
        self._owner = owner
        self._faults: tuple[Fault, ...] = ()
        self._ended: deque[tuple[str, str]] = deque(maxlen=ENDED_MAX)
        """The tests in which the last faults have ended, and their descriptions."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {', '.join(map(repr, self._faults)) or 'none'}>"

    def __iter__(self) -> Iterator[Fault]:
        return iter(self._faults)

    def __len__(self) -> int:
        return len(self._faults)

    def _add(self, fault: F) -> F:
        """Add a fault. Errors: ValueError if it names a broker that a cluster does not have, or an API that a single
        broker never receives; RuntimeError when the broker was never started, or was stopped since: the fault could not
        hit anything.
        """
        self._owner._check_started()
        self._owner._check_brokers(fault._matcher.brokers)
        self._owner._check_apis(fault._matcher.api_keys)

        def add() -> None:
            self._faults = (*self._faults, fault)
            fault._begun()
            self._tell()

        self._interception.run(add)
        return fault

    def _remove(self, fault: Fault) -> None:
        """Remove one fault without undoing it; does nothing when it has ended."""
        self._end([fault])

    def clear(self) -> None:
        """Remove all faults: those of requests, disks and connections first, which may prevent others from being
        undone.

        Errors: those of faults that cannot be undone (RuntimeError when no broker runs, ApiError, TimeoutError). That
        fault stays, all others are removed. RuntimeError when the broker was never started, or was stopped since.
        """
        self._owner._check_started()
        with ExitStack() as removals:
            for fault in self._of_state():  # the last one is undone first
                removals.callback(fault.remove)
            self._end([fault for fault in self if not isinstance(fault, StateFault)])

    def _forget(self) -> None:
        """Remove all faults of a broker whose state is discarded: nothing has to be undone."""
        self._end(self._faults)

    def _ended_in_test(self) -> list[str]:
        """The descriptions of the last faults that have ended in the test that pytest runs; none if it runs none."""
        running = current_test()
        return [told for test, told in list(self._ended) if running and test == running]

    def _end_undone(self) -> None:
        """Remove the faults that another action has undone, above all the start of a broker."""
        self._interception.run(lambda: self._end([fault for fault in self._of_state() if fault._is_undone()]))

    def _of_state(self) -> list[StateFault]:
        """The faults of the broker's state, which are undone when they are removed."""
        return [fault for fault in self if isinstance(fault, StateFault)]

    def _prepare_snapshot(self) -> None:
        """End the faults that would block the restart for a snapshot: those of disks, of connections, and of requests
        between brokers.

        Errors: RuntimeError if the snapshot would keep permanently what a fault undoes at its end.
        """
        if kept := self._of_state():
            raise RuntimeError(f"a snapshot would keep the effects of faults for ever: remove() it first: {kept}")
        self._end([fault for fault in self if fault._hinders_brokers()])

    # --- inside -----------------------------------------------------------------------------------

    @property
    def _is_of_another_process(self) -> bool:
        """Whether they belong to the process from which this one was forked."""
        return self._owner._is_of_another_process

    def _on_loop(self, action: Callable[[], None]) -> None:
        """Call a function on the broker's event loop, and return when it is done."""
        self._interception.run(action)

    def _tell_loop(self, action: Callable[[], None]) -> None:
        """Have a function called on the broker's event loop, later."""
        self._interception.soon(action)

    def _wait(self, waiting: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of a wait on the broker's event loop, also while brokers are restarted. Raises RuntimeError when
        no broker runs.
        """
        return self._interception.wait(waiting)

    async def _wait_async(self, waiting: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Like `wait`, from a coroutine on another event loop."""
        return await self._interception.wait_async(waiting)

    def _end(self, faults: Iterable[Fault]) -> None:
        def end() -> None:
            ending = [fault for fault in self._faults if fault in faults]
            self._faults = tuple(fault for fault in self._faults if fault not in ending)
            for fault in ending:
                self._ended.append((current_test(), repr(fault)))
                fault._ended()
                self._tell_loop(fault._changed)  # waits for it cannot succeed any more
            if ending:
                self._tell()

        self._interception.run(end)

    def _tell(self) -> None:
        found = self._interception
        found.doorkeepers = tuple(fault for fault in self._faults if isinstance(fault, Refusal))
        found.disk_faults = tuple(fault for fault in self._faults if isinstance(fault, DiskFault))
        found.meddlers = tuple(fault for fault in self._faults if fault._meets_requests)
        found.attach_all()
