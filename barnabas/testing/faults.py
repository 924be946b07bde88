"""Faults that a test asks of a broker, or of a cluster: `broker.faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER")`.

A fault stands between the connections of clients and the broker, as a proxy would: the broker is asked whole requests
or none, so that its own state stays right whatever clients are told. As long as there is no fault, nothing stands
there.
"""

from __future__ import annotations

import asyncio
import difflib
import errno
import logging
import random
from collections.abc import Callable, Collection, Coroutine, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack

from barnabas.testing import entries, report
from barnabas.testing.durations import Duration, ms, whole_ms
from barnabas.testing.effects import WAYS, Delay, Disconnect, Effect, Fail, Garble, Lose, Park, Throttle
from barnabas.testing.faulty_disk import Refusing
from barnabas.testing.interception import Interception
from barnabas.testing.request import Request
from barnabas.testing.selection import Api, Limits, Matcher, Matching, api_keys
from barnabas.testing.state_faults import StateFaults
from barnabas.testing.waiting import check_may_block, wait_until, with_timeout
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import API_NAMES

logger = logging.getLogger(__name__)

T = TypeVar("T")
F = TypeVar("F", bound="Fault")

_ASKED_OF_LEADERS: Final = ("Produce", "Fetch", "ListOffsets", "OffsetForLeaderEpoch", "DeleteRecords")
_ASKED_OF_GROUP_COORDINATORS: Final = (
    "OffsetCommit", "OffsetFetch", "JoinGroup", "Heartbeat", "LeaveGroup", "SyncGroup", "DescribeGroups",
    "DeleteGroups", "OffsetDelete", "TxnOffsetCommit",
)  # fmt: skip
_ASKED_OF_TRANSACTION_COORDINATORS: Final = (
    "InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn", "DescribeTransactions",
)  # fmt: skip
_WRITTEN_DOWN: Final = (
    "Produce", "OffsetCommit", "TxnOffsetCommit", "SyncGroup", "LeaveGroup", "DeleteGroups", "OffsetDelete",
    "InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn", "WriteTxnMarkers", "CreateTopics",
    "CreatePartitions",
)  # fmt: skip
"""Requests that a broker answers when it has written something."""


class Fault:
    """One fault, from when it is made until `remove()`, or until its `with` block ends.

    Thread-safe, as the broker is.
    """

    def __init__(
        self, faults: Faults, name: str, matcher: Matcher, limits: Limits, new_effect: Callable[[Fault], Effect]
    ) -> None:
        self._faults = faults
        self._name = name
        self.matcher = matcher
        self._limits = limits
        self._listeners: set[Callable[[], None]] = set()
        self.effect = new_effect(self)

    def __repr__(self) -> str:
        seed = f", seed={self._limits.seed}" if self._limits.is_random else ""
        return f"<{self._name}, {self.hits} hits{seed}>"

    @property
    def hits(self) -> int:
        """How many requests it has come over."""
        return self._limits.hits

    @property
    def matches(self) -> int:
        """How many requests it was for, hit or not; none are counted once it has hit as often as it may."""
        return self._limits.matches

    @property
    def random(self) -> random.Random:
        """The random numbers that decide whether the fault comes, from its seed."""
        return self._limits.random

    def is_hit(self, request: Request) -> bool:
        """Whether the fault comes over this request; counts. A predicate that raises says no. Broker's loop only."""
        try:
            is_match = self.matcher.matches(request)
        except Exception:
            logger.exception("the predicate of %r failed", self)
            return False
        if not is_match or not self._limits.is_hit():
            return False
        self.changed()
        return True

    def changed(self) -> None:
        """Tell whoever waits for it to be hit. Broker's loop only."""
        for listener in list(self._listeners):
            listener()

    def remove(self) -> None:
        """End the fault: later requests pass, those that it holds go on. Does nothing when it has ended."""
        self._faults.remove(self)

    def wait_hits(self, count: int = 1, *, timeout: float = 30.0) -> None:
        """Wait until it has come over so many requests; `timeout` is in seconds of real time.

        Errors: TimeoutError; RuntimeError inside a running event loop: await `wait_hits_async` there.
        """
        check_may_block("wait_hits_async")
        self._wait(lambda: self.hits >= count or None, timeout, lambda: f"{self!r}: not {count} hits")

    async def wait_hits_async(self, count: int = 1, *, timeout: float = 30.0) -> None:
        """As `wait_hits`, without blocking the event loop that it is awaited on."""
        await asyncio.to_thread(self.wait_hits, count, timeout=timeout)

    def _wait(self, reached: Callable[[], bool | None], timeout_s: float, found: Callable[[], str]) -> None:
        async def wait() -> None:
            await with_timeout(wait_until(reached, self._listeners), timeout_s, found)

        self._faults.wait(wait())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


class Hold(Fault):
    """A fault that has requests wait until they are released."""

    effect: Park

    @property
    def held(self) -> int:
        """How many requests wait now."""
        return len(self.effect.parked)

    def wait_held(self, count: int = 1, *, timeout: float = 30.0) -> None:
        """Wait until so many requests are held; `timeout` is in seconds of real time.

        Errors: TimeoutError; RuntimeError inside a running event loop: await `wait_held_async` there.
        """
        check_may_block("wait_held_async")
        self._wait(lambda: self.held >= count or None, timeout, lambda: f"{self.held} requests are held, not {count}")

    async def wait_held_async(self, count: int = 1, *, timeout: float = 30.0) -> None:
        """As `wait_held`, without blocking the event loop that it is awaited on."""
        await asyncio.to_thread(self.wait_held, count, timeout=timeout)

    def release(self, count: int | None = None) -> None:
        """Let the first `count` requests go on, or all that wait now; those that come later are held again."""
        self._faults.on_loop(partial(self.effect.release, count))


class Refusal(Fault):
    """A fault of new connections; its hits are those that were refused."""

    def refuses(self, broker: int) -> bool:
        """Whether a new connection at a broker is refused; counts. Broker's loop only."""
        if not self.matcher.is_at(broker) or not self._limits.is_hit():
            return False
        self.changed()
        return True


class DiskFault(Fault):
    """A fault of a disk; its hits are the calls that it refused."""

    error_number = errno.ENOSPC

    def refusing(self, broker: int) -> Refusing | None:
        """What the disk of a broker is to do; None where it is not meant."""
        return Refusing(self.error_number, self._refuses) if self.matcher.is_at(broker) else None

    def _refuses(self) -> bool:
        """Called by the threads that write, too."""
        is_hit = self._limits.is_hit()
        if is_hit:
            self._faults.tell_loop(self.changed)
        return is_hit


class FaultGroup:
    """Several faults that belong together, and end together."""

    def __init__(self, *faults: Fault) -> None:
        self.faults = faults

    def __repr__(self) -> str:
        return f"<{', '.join(map(repr, self.faults))}>"

    @property
    def hits(self) -> int:
        """How many requests they have come over."""
        return sum(fault.hits for fault in self.faults)

    def remove(self) -> None:
        """End all faults of the group."""
        for fault in self.faults:
            fault.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


class Faults(StateFaults):
    """What a broker, or a cluster, does wrong; made by its methods, undone by `clear()`.

    `api` is Kafka's name of an API ("Produce"), its key, its request's class, several of them, or None for all.
    What else says which requests are meant, and how often, is told at `Matching`. With `after_work` the broker does
    what it is asked, and the fault befalls the reply.

    Of several faults for one request the first one made is the outermost: it is the first to see the request and the
    last to see the reply. A fault that lets nothing through keeps the others from seeing the request, but all of them
    count it. Requests of the test itself (`create_topic`, `produce` and so on) and, unless `from_brokers` says
    otherwise, of other brokers are no client's: faults leave them alone. Faults outlive a restart, not `stop()`.

    Errors of all: ValueError, TypeError for arguments that make no sense. Thread-safe.
    """

    def __init__(self, interception: Interception) -> None:
        super().__init__(interception)
        self._faults: tuple[Fault, ...] = ()

    def __iter__(self) -> Any:
        return iter(self._faults)

    def __len__(self) -> int:
        return len(self._faults)

    # --- the verbs --------------------------------------------------------------------------------

    def fail(
        self,
        api: Api | Collection[Api] | None,
        error: ErrorCode | str | int,
        message: str | None = None,
        *,
        record_errors: Mapping[int, str] | None = None,
        whole: bool | None = None,
        after_work: bool = False,
        **where: Unpack[Matching],
    ) -> Fault:
        """Answer with an error code, by Kafka's name or number.

        The error is the whole answer's where the API's version has a field for that and no topic or partition is
        meant; else that of each entry that is meant, and the others are done. `whole` decides otherwise where there is
        a choice. (Errors of a Fetch are by themselves those of partitions, but for those of its session, and errors of
        Metadata those of topics.) `message` and, for Produce, `record_errors` (messages by the index of a record in its
        batch) are told by the versions that have them. A Produce with acks=0 loses its connection.
        """
        failure = entries.Failure(_error_code(error), message, record_errors)
        matcher, limits = _split_keywords(api, where)

        def effect(fault: Fault) -> Fail:
            return Fail(failure, matcher.addressed, matcher.is_meant, whole, after_work)

        return self._add(Fault(self, f"fail {_name(api)} {ErrorCode.of(failure.code).name}", matcher, limits, effect))

    def delay(
        self,
        api: Api | Collection[Api] | None,
        duration: Duration | tuple[Duration, Duration] | Callable[[random.Random], Duration],
        *,
        after_work: bool = False,
        **where: Unpack[Matching],
    ) -> Fault:
        """Have requests wait for `duration`, a timedelta or ms: fixed, anything between two, or what a function makes
        of the fault's random numbers. The next requests of a connection wait behind, as at a slow broker. The time is
        the broker's: `clock.advance` shortens it."""
        draw = _duration_of(duration)
        matcher, limits = _split_keywords(api, where)
        return self._add(
            Fault(
                self,
                f"delay {_name(api)}",
                matcher,
                limits,
                lambda fault: Delay(lambda: ms(draw(fault.random)), after_work),
            )
        )

    def hold(
        self, api: Api | Collection[Api] | None = None, *, after_work: bool = False, **where: Unpack[Matching]
    ) -> Hold:
        """Have requests wait until `release()`, or until the fault is removed; `wait_held()` tells when they are there.
        The next requests of a connection wait behind."""
        matcher, limits = _split_keywords(api, where)
        return self._add(
            Hold(self, f"hold {_name(api)}", matcher, limits, lambda fault: Park(after_work, fault.changed))
        )

    def drop(
        self, api: Api | Collection[Api] | None = None, *, after_work: bool = False, **where: Unpack[Matching]
    ) -> Fault:
        """Lose requests, or with `after_work` the replies: the client hears nothing on that connection any more, and
        gives it up when its time is over (request.timeout.ms, socket.timeout.ms). When the fault is removed, those
        connections are closed."""
        matcher, limits = _split_keywords(api, where)
        return self._add(Fault(self, f"drop {_name(api)}", matcher, limits, lambda fault: Lose(after_work)))

    def disconnect(
        self, api: Api | Collection[Api] | None = None, *, after_work: bool = False, **where: Unpack[Matching]
    ) -> Fault:
        """Close the connection in place of the work, or of its answer."""
        matcher, limits = _split_keywords(api, where)
        return self._add(Fault(self, f"disconnect {_name(api)}", matcher, limits, lambda fault: Disconnect(after_work)))

    def garble(self, api: Api | Collection[Api] | None, way: str, **where: Unpack[Matching]) -> Fault:
        """Damage answers: "records" (of Fetch: batches whose checksum is wrong), "cut" (the connection breaks in the
        middle of the frame), "short" (the frame ends before its message does) or "correlation_id" (the reply to another
        request)."""
        if way not in WAYS:
            raise ValueError(f"answers are garbled in the ways {', '.join(WAYS)}, not {way}")
        matcher, limits = _split_keywords(api, where)
        return self._add(Fault(self, f"garble {_name(api)} {way}", matcher, limits, lambda fault: Garble(way)))

    def throttle(self, api: Api | Collection[Api] | None, duration: Duration, **where: Unpack[Matching]) -> Fault:
        """Answer at once, but say that the client is beyond its quota and must wait so long (`throttle_time_ms`), and
        begin no other request of its connection meanwhile, as Kafka does (KIP-219)."""
        matcher, limits = _split_keywords(api, where)
        effect = Throttle(whole_ms(duration))
        return self._add(Fault(self, f"throttle {_name(api)}", matcher, limits, lambda fault: effect))

    def refuse(
        self,
        *,
        broker: int | Collection[int] | None = None,
        times: int | None = None,
        after: int = 0,
        every: int = 1,
        probability: float = 1.0,
        seed: int | None = None,
    ) -> Fault:
        """Close new connections of clients as soon as they are accepted; those that exist stay. Brokers of a cluster
        share their listener with clients, and so the refusal."""
        limits = Limits(times=times, after=after, every=every, probability=probability, seed=seed)
        return self._add(Refusal(self, "refuse", _at(broker), limits, _no_effect))

    # --- on whole things (see also StateFaults) ---------------------------------------------------

    def leader_away(self, topic: str, partition: int | None = None) -> FaultGroup:
        """Have a topic, or one partition, without a leader until the fault is removed: metadata says
        LEADER_NOT_AVAILABLE, and who asks the former leader hears NOT_LEADER_OR_FOLLOWER."""
        where: Matching = {"topic": topic} if partition is None else {"topic": topic, "partition": partition}
        return FaultGroup(
            self.fail(["Metadata", "DescribeTopicPartitions"], ErrorCode.LEADER_NOT_AVAILABLE, **where),
            self.fail(_ASKED_OF_LEADERS, ErrorCode.NOT_LEADER_OR_FOLLOWER, **where),
        )

    def coordinator_away(self, *, group: str | None = None, transactional_id: str | None = None) -> FaultGroup:
        """Have a consumer group, or a transactional id, without a coordinator until the fault is removed: nobody finds
        one (COORDINATOR_NOT_AVAILABLE), and who asks the former one hears NOT_COORDINATOR."""
        if (group is None) == (transactional_id is None):
            raise ValueError("say whose coordinator is away: group=... or transactional_id=...")
        of_group: Matching = {"group": group} if group is not None else {}
        where: Matching = of_group if transactional_id is None else {"transactional_id": transactional_id}
        asked = _ASKED_OF_GROUP_COORDINATORS if transactional_id is None else _ASKED_OF_TRANSACTION_COORDINATORS
        return FaultGroup(
            self.fail("FindCoordinator", ErrorCode.COORDINATOR_NOT_AVAILABLE, **where),
            self.fail(asked, ErrorCode.NOT_COORDINATOR, **where),
        )

    def disk_full(
        self,
        *,
        broker: int | Collection[int] | None = None,
        times: int | None = None,
        after: int = 0,
        every: int = 1,
        probability: float = 1.0,
        seed: int | None = None,
    ) -> DiskFault:
        """Have no room on the disk: what is to be written is refused (ENOSPC), and may be written when the fault is
        removed. Hits are refused calls to the file system."""
        limits = Limits(times=times, after=after, every=every, probability=probability, seed=seed)
        return self._add(DiskFault(self, "disk_full", _at(broker), limits, _no_effect))

    def disk_fails(
        self,
        *,
        broker: int | Collection[int] | None = None,
        times: int | None = None,
        after: int = 0,
        every: int = 1,
        probability: float = 1.0,
        seed: int | None = None,
    ) -> DiskFault:
        """Have the disk break: writes and syncs fail (EIO). That is final, as in Kafka: what could not be written is
        offline until the broker is started again, however soon the fault is removed."""
        limits = Limits(times=times, after=after, every=every, probability=probability, seed=seed)
        fault = DiskFault(self, "disk_fails", _at(broker), limits, _no_effect)
        fault.error_number = errno.EIO
        return self._add(fault)

    def disk_slow(
        self,
        duration: Duration | tuple[Duration, Duration] | Callable[[random.Random], Duration],
        *,
        broker: int | Collection[int] | None = None,
    ) -> FaultGroup:
        """Have all that is to be written take so much longer until the fault is removed: what producers, groups and
        transactions ask for, and, in a cluster, what a broker fetches as a follower. `duration` is as of `delay`."""
        asked, followed = _asked_and_followed(broker)
        return FaultGroup(self.delay(_WRITTEN_DOWN, duration, **asked), self.delay("Fetch", duration, **followed))

    def pause(self, *, broker: int | Collection[int] | None = None) -> FaultGroup:
        """Stop a broker as SIGSTOP does, until the fault is removed: connections stay and new ones come, but nothing is
        answered, to clients and to other brokers, nor does it follow others. When the fault is removed, all that was
        asked meanwhile is done. (It is not taken for dead: `Cluster.expire_session` does that. What it does by its
        clock, it does.)"""
        asked, followed = _asked_and_followed(broker)
        return FaultGroup(self.hold(**asked), self.hold("Fetch", **followed))

    def clear(self) -> None:
        """Remove all faults."""
        self.end_all_offline()

        def remove_all() -> None:
            for fault in self._faults:
                self._end(fault)

        self._interception.run(remove_all)

    def remove(self, fault: Fault) -> None:
        """Remove one fault; does nothing when it has ended."""
        self._interception.run(partial(self._end, fault))

    # --- inside -----------------------------------------------------------------------------------

    def on_loop(self, action: Callable[[], None]) -> None:
        """Do something on the broker's event loop, and return when it is done."""
        self._interception.run(action)

    def tell_loop(self, action: Callable[[], None]) -> None:
        """Have something done on the broker's event loop, some time."""
        self._interception.soon(action)

    def wait(self, waiting: Coroutine[Any, Any, T]) -> T:
        """What is waited for on the broker's event loop. Raises RuntimeError when no broker runs."""
        owner = self._interception.owner

        async def wait() -> T:
            try:
                return await waiting
            except TimeoutError as error:
                raise report.explained(error, owner) from None

        try:
            return owner.call(wait())
        finally:
            waiting.close()

    def _add(self, fault: F) -> F:
        def add() -> None:
            self._faults = (*self._faults, fault)
            self._tell()

        self._interception.run(add)
        return fault

    def _end(self, fault: Fault) -> None:
        if fault not in self._faults:
            return
        self._faults = tuple(other for other in self._faults if other is not fault)
        fault.effect.end()
        self._tell()

    def _tell(self) -> None:
        found = self._interception
        found.doorkeepers = tuple(fault for fault in self._faults if isinstance(fault, Refusal))
        found.disk_faults = tuple(fault for fault in self._faults if isinstance(fault, DiskFault))
        found.meddlers = tuple(fault for fault in self._faults if not isinstance(fault, Refusal | DiskFault))
        self._interception.attach_all()


# --- arguments ------------------------------------------------------------------------------------


def _at(broker: int | Collection[int] | None) -> Matcher:
    return Matcher(None, {} if broker is None else {"broker": broker})


def _asked_and_followed(broker: int | Collection[int] | None) -> tuple[Matching, Matching]:
    """What these brokers are asked, by other brokers too; and what they ask others as followers."""
    brokers = _at(broker)

    def is_of_follower(request: Request) -> bool:
        follower = request.replica_id
        return follower is not None and brokers.is_at(follower)

    asked: Matching = {"from_brokers": True} if broker is None else {"from_brokers": True, "broker": broker}
    return asked, {"from_brokers": True, "predicate": is_of_follower}


def _no_effect(fault: Fault) -> Effect:
    """The effect of a fault that no request meets."""
    return Disconnect(after_work=False)


def _name(api: Api | Collection[Api] | None) -> str:
    keys = api_keys(api)
    return "everything" if keys is None else ", ".join(API_NAMES[key] for key in sorted(keys))


def _error_code(error: ErrorCode | str | int) -> int:
    if isinstance(error, str):
        if error in ErrorCode.__members__:
            return int(ErrorCode[error])
        near = difflib.get_close_matches(error, ErrorCode.__members__, 1)
        raise ValueError(f"Kafka has no error {error!r}{f': did you mean {near[0]!r}?' if near else ''}")
    if error == 0:
        raise ValueError("the error code 0 says that nothing failed")
    return int(error)


def _split_keywords(api: Api | Collection[Api] | None, where: Mapping[str, Any]) -> tuple[Matcher, Limits]:
    limits = {name: where[name] for name in ("times", "after", "every", "probability", "seed") if name in where}
    return Matcher(api, {name: value for name, value in where.items() if name not in limits}), Limits(**limits)


def _duration_of(
    duration: Duration | tuple[Duration, Duration] | Callable[[random.Random], Duration],
) -> Callable[[random.Random], Duration]:
    if callable(duration):
        return duration
    shortest, longest = duration if isinstance(duration, tuple) else (duration, duration)
    low, high = ms(shortest), ms(longest)
    if low > high:
        raise ValueError(f"no duration is between {low} and {high} ms")
    if isinstance(low, int) and isinstance(high, int):
        whole = low, high
        return lambda chance: chance.randint(*whole)
    return lambda chance: chance.uniform(low, high)
