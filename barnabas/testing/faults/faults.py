"""Faults that a test adds to a broker, or to a cluster: `broker.faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER")`.

A fault acts between the connections of clients and the broker, like a proxy: the broker gets whole requests or none, so
that its own state stays correct whatever clients receive. Without faults there is nothing in between.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Unpack

from barnabas.testing.contents.topic import Topic, topic_name
from barnabas.testing.faults.effects import RECORDS, WAYS, Delay, Disconnect, Fail, Garble, Lose, Park, Throttle
from barnabas.testing.faults.error_codes import error_code
from barnabas.testing.faults.error_responses import Failure
from barnabas.testing.faults.fault import AnswerFault, DiskFault, Fault, FaultGroup, Hold, Refusal, no_effect
from barnabas.testing.faults.security_faults import SecurityFaults
from barnabas.testing.faults.state_faults import ASKED_FOR_LEADERS, ASKED_OF_LEADERS
from barnabas.testing.interception.api_entries import PARTITION
from barnabas.testing.interception.request import Request
from barnabas.testing.interception.selection import Api, Limits, Matcher, Matching, api_keys
from barnabas.testing.waiting.durations import Duration, ms, whole_ms
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import API_NAMES

_ASKED_OF_GROUP_COORDINATORS: Final = (
    "OffsetCommit", "OffsetFetch", "JoinGroup", "Heartbeat", "LeaveGroup", "SyncGroup", "DescribeGroups",
    "DeleteGroups", "OffsetDelete", "TxnOffsetCommit",
)  # fmt: skip
_ASKED_OF_TRANSACTION_COORDINATORS: Final = (
    "InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn", "DescribeTransactions",
)  # fmt: skip
PRODUCE: Final = 0
FETCH: Final = 1
INDEX_MAX: Final = 2**31 - 1
_WRITTEN_DOWN: Final = (
    "Produce", "OffsetCommit", "TxnOffsetCommit", "SyncGroup", "LeaveGroup", "DeleteGroups", "OffsetDelete",
    "InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn", "WriteTxnMarkers", "CreateTopics",
    "CreatePartitions",
)  # fmt: skip
"""Requests whose response comes after a write."""


class Faults(SecurityFaults):
    """The faults of a broker, or a cluster; its methods add them, `clear()` removes them.

    `api` is Kafka's name of an API ("Produce"), its key, its request's class, several of them, or None for all.
    `Matching` describes the other keywords, which select requests and limit hits. With `after_work` the broker
    processes the request, and the fault affects the response.

    Of several faults for one request the first one added is the outermost: it is the first to see the request and the
    last to see the response. A fault that lets nothing through hides the request from the others, but all of them count
    it. Requests of the test itself (`create_topic`, `produce` and so on) and, unless `from_brokers` says otherwise, of
    other brokers are not those of clients: faults ignore them. Faults survive a restart, not `stop()`.

    Errors of all: ValueError, TypeError for invalid arguments. Thread-safe.
    """

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
        """Return an error code, given by Kafka's name or number.

        The error is set for the whole response if the API's version has a field for that and no topic or partition is
        meant; else for each entry that is meant, and the others are processed. `whole` decides otherwise if there is a
        choice. (Errors of a Fetch are by default those of partitions, except those of its session, and errors of
        Metadata those of topics.) `message` and, for Produce, `record_errors` (messages by the index of a record in its
        batch) are sent in the versions that have them. A Produce with acks=0 loses its connection.
        """
        failure = Failure(error_code(error), message, _record_errors(api, record_errors))
        return self._fail(api, failure, where, whole=whole, after_work=after_work)

    def _fail(
        self,
        api: Api | Collection[Api] | None,
        failure: Failure,
        where: Mapping[str, Any],
        *,
        addressed: frozenset[str] = frozenset(),
        whole: bool | None = None,
        after_work: bool = False,
    ) -> Fault:
        """`addressed` are roles in addition to those in `where` (of `api_entries`): entries that have them fail."""
        matcher, limits = split_keywords(api, where, ("message", "record_errors", "whole", "after_work"))

        def effect(fault: Fault) -> Fail:
            return Fail(failure, matcher.addressed | addressed, matcher.is_meant, whole, after_work)

        what = f"fail {api_names(api)} {ErrorCode.of(failure.code).name}"
        return self._add(Fault(self, what, matcher, limits, effect))

    def delay(
        self,
        api: Api | Collection[Api] | None,
        duration: Duration | tuple[Duration, Duration] | Callable[[random.Random], Duration],
        *,
        after_work: bool = False,
        **where: Unpack[Matching],
    ) -> Fault:
        """Delay requests by `duration`, a timedelta or ms: fixed, random between two, or computed by a function from
        the fault's random numbers. Later requests of a connection wait behind, as at a slow broker. The time is the
        broker's: `clock.advance` shortens it.
        """
        draw = _duration_of(duration)
        matcher, limits = split_keywords(api, where)
        return self._add(
            Fault(
                self,
                f"delay {api_names(api)}",
                matcher,
                limits,
                lambda fault: Delay(lambda: ms(draw(fault._random)), after_work),
            )
        )

    def hold(
        self, api: Api | Collection[Api] | None = None, *, after_work: bool = False, **where: Unpack[Matching]
    ) -> Hold:
        """Hold requests until `release()`, or until the fault is removed; `wait_held()` waits for their arrival. Later
        requests of a connection wait behind.
        """
        matcher, limits = split_keywords(api, where)
        return self._add(
            Hold(self, f"hold {api_names(api)}", matcher, limits, lambda fault: Park(after_work, fault._changed))
        )

    def drop(
        self, api: Api | Collection[Api] | None = None, *, after_work: bool = False, **where: Unpack[Matching]
    ) -> Fault:
        """Lose requests, or with `after_work` the responses: the client receives nothing on that connection any more,
        and closes it after its timeout (request.timeout.ms, socket.timeout.ms). When the fault is removed, those
        connections are closed.
        """
        matcher, limits = split_keywords(api, where)
        return self._add(Fault(self, f"drop {api_names(api)}", matcher, limits, lambda fault: Lose(after_work)))

    def disconnect(
        self, api: Api | Collection[Api] | None = None, *, after_work: bool = False, **where: Unpack[Matching]
    ) -> Fault:
        """Close the connection in place of the work, or of its response."""
        matcher, limits = split_keywords(api, where)
        what = f"disconnect {api_names(api)}"
        return self._add(Fault(self, what, matcher, limits, lambda fault: Disconnect(after_work)))

    def garble(self, api: Api | Collection[Api] | None, way: str, **where: Unpack[Matching]) -> Fault:
        """Damage responses: "records" (of Fetch: batches whose checksum is wrong), "cut" (the connection breaks in the
        middle of the frame), "short" (the frame ends before its message does) or "correlation_id" (the response to
        another request). Responses with nothing to damage, such as those to long polls without records, do not count.
        """
        if way not in WAYS:
            raise ValueError(f"the way to garble a response is one of {', '.join(WAYS)}, not {way}")
        if way == RECORDS:
            api = _answered_with_records(api)
        matcher, limits = split_keywords(api, where, ())
        return self._add(
            AnswerFault(
                self,
                f"garble {api_names(api)} {way}",
                matcher,
                limits,
                lambda fault: Garble(way, matcher.is_meant, fault._counts),
            )
        )

    def throttle(self, api: Api | Collection[Api] | None, duration: Duration, **where: Unpack[Matching]) -> Fault:
        """Respond at once, but report that the client is beyond its quota and must wait (`throttle_time_ms`), and delay
        its connection's next request meanwhile, as Kafka does (KIP-219).
        """
        matcher, limits = split_keywords(api, where, ())
        effect = Throttle(whole_ms(duration))
        return self._add(Fault(self, f"throttle {api_names(api)}", matcher, limits, lambda fault: effect))

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
        """Close new connections of clients as soon as they are accepted; existing ones stay. Brokers of a cluster share
        their listener with clients, and so the refusal.
        """
        limits = Limits(times=times, after=after, every=every, probability=probability, seed=seed)
        return self._add(Refusal(self, "refuse", _at(broker), limits, no_effect))

    # --- faults of more than requests (see also StateFaults, SecurityFaults) ----------------------

    def leader_away(self, topic: str | Topic, partition: int | None = None) -> FaultGroup:
        """Remove the leader of all partitions of a topic, or of one, until the fault is removed: metadata has
        LEADER_NOT_AVAILABLE for each (not for the topic: a Kafka broker would not, and librdkafka's consumers conclude
        from it that the topic does not exist), and requests to the former leader fail with NOT_LEADER_OR_FOLLOWER. The
        topic need not exist yet; for a misspelt one `hits` stays 0 (`repr` shows both).
        """
        topic = topic_name(topic)
        where: Matching = {"topic": topic} if partition is None else {"topic": topic, "partition": partition}
        nobody_leads = Failure(ErrorCode.LEADER_NOT_AVAILABLE)
        return FaultGroup(
            f"leader_away {topic}" if partition is None else f"leader_away {topic}-{partition}",
            self._fail(ASKED_FOR_LEADERS, nobody_leads, where, addressed=frozenset({PARTITION})),
            self.fail(ASKED_OF_LEADERS, ErrorCode.NOT_LEADER_OR_FOLLOWER, **where),
        )

    def coordinator_away(self, *, group: str | None = None, transactional_id: str | None = None) -> FaultGroup:
        """Remove the coordinator of a consumer group, or of a transactional id, until the fault is removed: clients
        find none (COORDINATOR_NOT_AVAILABLE), and requests to the former one fail with NOT_COORDINATOR.
        """
        if (group is None) == (transactional_id is None):
            raise ValueError("the coordinator needs one name: pass group=... or transactional_id=...")
        of_group: Matching = {"group": group} if group is not None else {}
        where: Matching = of_group if transactional_id is None else {"transactional_id": transactional_id}
        asked = _ASKED_OF_GROUP_COORDINATORS if transactional_id is None else _ASKED_OF_TRANSACTION_COORDINATORS
        return FaultGroup(
            f"coordinator_away {group if transactional_id is None else transactional_id}",
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
        """Simulate a full disk: writes are refused (ENOSPC), and succeed again when the fault is removed. Hits are
        refused calls to the file system.
        """
        limits = Limits(times=times, after=after, every=every, probability=probability, seed=seed)
        return self._add(DiskFault(self, "disk_full", _at(broker), limits, no_effect))

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
        """Simulate a broken disk: writes and syncs fail (EIO). That is final, as in Kafka: logs that could not be
        written are offline until the broker is restarted, however soon the fault is removed.
        """
        limits = Limits(times=times, after=after, every=every, probability=probability, seed=seed)
        fault = DiskFault(self, "disk_fails", _at(broker), limits, no_effect)
        fault._error_number = errno.EIO
        return self._add(fault)

    def disk_slow(
        self,
        duration: Duration | tuple[Duration, Duration] | Callable[[random.Random], Duration],
        *,
        broker: int | Collection[int] | None = None,
    ) -> FaultGroup:
        """Delay all writes until the fault is removed: those of producers, groups and transactions, and, in a cluster,
        the fetches of a broker as a follower. `duration` is as in `delay`.
        """
        asked, followed = _asked_and_followed(broker)
        parts = self.delay(_WRITTEN_DOWN, duration, **asked), self.delay("Fetch", duration, **followed)
        return FaultGroup(_named("disk_slow", broker), *parts)

    def pause(self, *, broker: int | Collection[int] | None = None) -> FaultGroup:
        """Stop a broker like SIGSTOP, until the fault is removed: connections stay and new ones are accepted, but it
        sends no responses, to clients and to other brokers, and does not fetch as a follower. When the fault is
        removed, pending requests are processed. (Its session does not expire: `Cluster.expire_session` does that. Its
        timers still run.)
        """
        asked, followed = _asked_and_followed(broker)
        return FaultGroup(_named("pause", broker), self.hold(**asked), self.hold("Fetch", **followed))


# --- arguments ------------------------------------------------------------------------------------


def _at(broker: int | Collection[int] | None) -> Matcher:
    return Matcher(None, {} if broker is None else {"broker": broker})


def _asked_and_followed(broker: int | Collection[int] | None) -> tuple[Matching, Matching]:
    """The selection of requests to these brokers, also from other brokers; and of their own requests as followers."""
    brokers = _at(broker)

    def is_of_follower(request: Request) -> bool:
        follower = request.replica_id
        return follower is not None and brokers.is_at(follower)

    asked: Matching = {"from_brokers": True} if broker is None else {"from_brokers": True, "broker": broker}
    return asked, {"from_brokers": True, "predicate": is_of_follower}


def _named(verb: str, broker: int | Collection[int] | None) -> str:
    told = ", ".join(_at(broker).described())
    return f"{verb} ({told})" if told else verb


def api_names(api: Api | Collection[Api] | None) -> str:
    """The APIs in the description of a fault."""
    keys = api_keys(api)
    return "everything" if keys is None else ", ".join(API_NAMES[key] for key in sorted(keys))


def _answered_with_records(api: Api | Collection[Api] | None) -> Api:
    """Fetch, the only API whose responses have records. Errors: ValueError if another one is named."""
    if others := (api_keys(api) or frozenset({FETCH})) - {FETCH}:
        raise ValueError(f"responses of {api_names(others)} have no records: name Fetch")
    return FETCH


def _record_errors(
    api: Api | Collection[Api] | None, record_errors: Mapping[int, str] | None
) -> Mapping[int, str] | None:
    """Errors: ValueError, TypeError for values that no response can contain."""
    if not record_errors:
        return record_errors
    if not isinstance(record_errors, Mapping):
        raise TypeError(f"record_errors are messages by the index of a record, not {record_errors!r:.100}")
    keys = api_keys(api)
    if keys is not None and PRODUCE not in keys:
        raise ValueError(f"record_errors need Produce: responses of {api_names(api)} have no errors of records")
    index: Any
    message: Any
    for index, message in record_errors.items():
        if not isinstance(index, int) or isinstance(index, bool) or not isinstance(message, str):
            raise TypeError(f"record_errors has a text by a whole number, not {message!r:.100} by {index!r:.100}")
        if not 0 <= index <= INDEX_MAX:
            raise ValueError(f"record_errors are by the index of a record in its batch, 0 or more, not {index}")
    return record_errors


def split_keywords(
    api: Api | Collection[Api] | None, where: Mapping[str, Any], others: Collection[str] = ("after_work",)
) -> tuple[Matcher, Limits]:
    """The request selection and the hit limits of a fault, from the keywords of `Matching`; `others` are additional
    keywords of its method. Errors: ValueError, TypeError.
    """
    limits = {name: where[name] for name in ("times", "after", "every", "probability", "seed") if name in where}
    matcher = Matcher(api, {name: value for name, value in where.items() if name not in limits}, others)
    matcher.check_can_match()
    return matcher, Limits(**limits)


def _duration_of(
    duration: Duration | tuple[Duration, Duration] | Callable[[random.Random], Duration],
) -> Callable[[random.Random], Duration]:
    if callable(duration):
        return duration
    if isinstance(duration, tuple) and len(duration) != 2:
        raise ValueError(f"a range of durations is the shortest and the longest, not {duration!r:.100}")
    shortest, longest = duration if isinstance(duration, tuple) else (duration, duration)
    low, high = ms(shortest), ms(longest)
    if low > high:
        raise ValueError(f"no duration is between {low} and {high} ms")
    if isinstance(low, int) and isinstance(high, int):
        whole = low, high
        return lambda chance: chance.randint(*whole)
    return lambda chance: chance.uniform(low, high)
