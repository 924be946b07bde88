"""The report of a broker, or a cluster, for a failed test: its contents, clients, last requests, and log."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Coroutine, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from barnabas.testing.brokers import log_lines
from barnabas.testing.caller import CURRENT_TEST, current_test

if TYPE_CHECKING:
    from barnabas.broker.server import Broker as Server
    from barnabas.testing.contents.partitions import Led
    from barnabas.testing.faults.faults import Faults
    from barnabas.testing.recording.recorded_request import RecordedRequest
    from barnabas.testing.recording.recording import Recording

T = TypeVar("T")

ENTRIES_MAX: Final = 20
"""The maximum number of lines of one kind."""

REQUESTS_MAX: Final = 10
CHART_REQUESTS_MAX: Final = 20
LOG_LINES_MAX: Final = 10
DEPARTED_MAX: Final = 10
PATIENCE_S: Final = 5.0
"""The time to wait for a busy event loop of a broker."""

last_lines: Final = log_lines.LineKeeper()


class Owner(Protocol):
    """A broker, or a cluster, of a test."""

    faults: Faults

    @property
    def _last_recording(self) -> Recording | None:
        """The latest recording, whether it has ended or not; None if there was none."""
        ...

    def live_servers(self) -> Sequence[Server]:
        """The running brokers."""
        ...

    def _absent(self) -> Sequence[int]:
        """The numbers of its brokers that do not run."""
        ...

    def _led_by_its_word(self, name: str, partition: int) -> Led | None:
        """A partition at the broker that considers itself its leader."""
        ...

    def _run_through(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on its event loop, also while brokers are restarted."""
        ...


# --- the brokers to report ------------------------------------------------------------------------

_started_by: WeakKeyDictionary[Owner, str] = WeakKeyDictionary()
_departed: deque[tuple[str, tuple[str, str]]] = deque(maxlen=DEPARTED_MAX)
"""The reports of brokers that an exception stopped, with their tests."""


_before_test: WeakKeyDictionary[Recording, int] = WeakKeyDictionary()
"""The number of requests in recordings at the start of the running test."""

_over_before_test: WeakSet[Recording] = WeakSet()
"""Recordings that ended before the running test."""


def test_begins() -> None:
    """Requests of clients before this point do not belong to the test that begins."""
    for owner in list(_started_by):
        if (recording := owner._last_recording) is not None:
            _before_test[recording] = recording.dropped + len(recording)
            if recording._is_over:
                _over_before_test.add(recording)


def started(owner: Owner) -> None:
    """A broker or a cluster runs; record the running test that started it, if there is one."""
    last_lines.attach()
    _started_by[owner] = current_test()


def failing(owner: Owner) -> None:
    """An exception is about to stop a broker or a cluster: keep its report for the report of the test."""
    if CURRENT_TEST in os.environ:
        _departed.append((current_test(), _section(owner)))


def sections(test: str, used: Iterable[object]) -> list[tuple[str, str]]:
    """Titles and texts of the reports of brokers that a test has started or used, in any thread. `used` are values of
    fixtures, which may contain brokers.
    """
    values = [each for value in used for each in (value if isinstance(value, tuple | list) else (value,))]
    found = [section for by, section in _departed if by == test]
    _departed.clear()
    for owner, by in list(_started_by.items()):
        if owner.live_servers() and (by == test or any(each is owner for each in values)):
            found.append(_section(owner))
    return found


def _section(owner: Owner) -> tuple[str, str]:
    text: list[str] = []

    async def tell() -> None:
        text.append("\n".join([describe(owner), *_chart(owner._last_recording)]))

    def ask() -> None:
        try:
            owner._run_through(tell())
        except RuntimeError as error:
            text.append(str(error))

    asking = threading.Thread(target=ask, name="barnabas-report", daemon=True)
    asking.start()
    asking.join(PATIENCE_S)
    return f"{owner!r}".strip("<>"), text[0] if text else f"has not responded for {PATIENCE_S:g} s"


# --- contents of a report -------------------------------------------------------------------------


def describe(owner: Owner) -> str:
    """The state of a broker or cluster, as lines of text, for a failed test. On the broker's event loop."""
    servers = owner.live_servers()
    parts = [
        *([("brokers", [f"broker {number} does not run" for number in absent])] if (absent := owner._absent()) else []),
        ("topics", list(_topics(owner))),
        ("groups", [line for server in servers for line in _groups(server)]),
        ("transactions", [line for server in servers for line in _transactions(server)]),
        ("faults", [*map(repr, owner.faults), *(f"ended: {told}" for told in owner.faults._ended_in_test())]),
        ("last requests", _requests(owner._last_recording)),
        ("log", log_lines.of_this_broker()[-LOG_LINES_MAX:]),
    ]
    return "\n".join(line for title, lines in parts for line in _part(title, lines))


def _part(title: str, lines: Sequence[str]) -> list[str]:
    more = [f"  ... and {len(lines) - ENTRIES_MAX} more"] if len(lines) > ENTRIES_MAX else []
    return [f"{title}:{'' if lines else ' none'}", *(f"  {line}" for line in lines[:ENTRIES_MAX]), *more]


def _topics(owner: Owner) -> Iterable[str]:
    """The contents of partitions according to their leaders, and the leaders of partitions with several replicas."""
    known = {
        (topic.name, index): state
        for server in owner.live_servers()
        for topic in server.metadata.topics()
        if not topic.is_internal
        for index, state in topic.partitions.items()
    }
    for name, index in sorted(known):
        led, state = owner._led_by_its_word(name, index), known[name, index]
        if led is None:
            yield f"{name}-{index} has no leader{_in_sync(state.isr, state.replicas)}"
            continue
        log, role = led.partition.log, led.partition.state
        stable = log.last_stable_offset
        committed = "" if stable == log.log_end_offset else f", of which {stable} on are not committed"
        leader = f"; led by broker {led.server.node_id}" if len(role.replicas) > 1 else ""
        offsets = f"{log.log_start_offset} to before {log.log_end_offset}"
        yield f"{name}-{index} has the offsets from {offsets}{committed}{leader}{_in_sync(role.isr, role.replicas)}"


def _in_sync(isr: Iterable[int], replicas: Sequence[int]) -> str:
    told = ", ".join(map(str, sorted(isr)))
    return f", ISR {told or 'empty'} of {', '.join(map(str, sorted(replicas)))}" if len(replicas) > 1 else ""


def _groups(server: Server) -> Iterable[str]:
    for group in islice(server.groups.summaries()[0], ENTRIES_MAX + 1):
        offsets = ", ".join(
            f"{topic}-{partition}: {offset}" for topic, partition, offset in group.offsets[:ENTRIES_MAX]
        )
        members = f"{group.member_count} members"
        yield f"{group.group_id} is {group.state.value} with {members}; committed: {offsets or 'nothing'}"


def _transactions(server: Server) -> Iterable[str]:
    for runner in server.transactions.runtime.runners():
        for transaction in runner.shard.transactions.values():
            partitions = ", ".join(sorted(f"{topic}-{index}" for topic, index in transaction.partitions))
            yield (
                f"{transaction.transactional_id} is {transaction.state.value}, producer {transaction.producer_id} "
                f"epoch {transaction.producer_epoch}, partitions: {partitions or 'none'}"
            )


def _requests(recording: Recording | None) -> list[str]:
    if recording is None or recording in _over_before_test:
        return ["not recorded: `with broker.recorded():`, pytest's --kafka-record or POST .../recorded does"]
    return [repr(each) for each in _last_of_test(recording, REQUESTS_MAX)]


def _last_of_test(recording: Recording | None, count: int) -> list[RecordedRequest]:
    """The last requests, at most `count`; only those since the start of the running test, if there is one."""
    if recording is None:
        return []
    own = recording.dropped + len(recording) - _before_test.get(recording, 0)
    return recording._last(min(count, own)) if own else []


def _chart(recording: Recording | None) -> list[str]:
    """The sequence chart of the last requests; empty if none were recorded."""
    from barnabas.testing.recording.chart import text_chart

    requests = _last_of_test(recording, CHART_REQUESTS_MAX)
    return ["chart of the last requests:", *text_chart(requests).splitlines()] if requests else []


def explained(error: TimeoutError, owner: Owner, more: Iterable[str] = ()) -> TimeoutError:
    """The error with the state of its broker or cluster added to its text (`describe`). On the broker's event loop."""
    return TimeoutError("\n".join([str(error), *more, describe(owner)]))
