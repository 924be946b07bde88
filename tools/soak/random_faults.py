"""Load on a broker of `barnabas.testing`, or on a cluster of three, with faults at random: `python -m
tools.soak.random_faults --seconds 1800 --brokers 3`.

Between two stretches of faults the broker (one of the brokers) is restarted or killed, and started again. After each
fault the broker must be as sound as before, and clients must go on: errors that pass, requests and responses that are
late, lost or cut short, leaders and coordinators that are away or move, partitions that are offline, members and
sessions that expire, producers that are fenced, transactions that hang, disks that are full, slow or broken, brokers
that stand still, connections between brokers that are cut. Some begin while others last. In the end everything is read
back, the responses to clients are checked as in any soak, and so are the files (`barnabas check`).

`lose_offsets` and `age_records` are left out: the check would report the offsets and records that they remove.
"""

import argparse
import faulthandler
import random
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Final, Self, TypedDict

from barnabas.storage.check.directory import check_directory
from barnabas.storage.os_files import OsFiles
from barnabas.testing import ApiError, Broker, Cluster, Fault
from tools.soak.__main__ import describe
from tools.soak.cluster import TOPIC_CONFIG, WORKERS
from tools.soak.run import NOTHING, OVERRIDES, ROUND_RECORDS, Result, Round
from tools.soak.workload import TOPIC_PREFIX, Amount, Member, Recorder, Workers
from tools.waiting import PATIENCE_S

STRETCH_S: Final = 3.0
"""The duration of faults between two restarts."""

FAULT_S_MAX: Final = 0.6
OVERLAPPING: Final = 0.4
"""The share of faults during which another one begins."""

DELAY_MS_MAX: Final = 300
ACKNOWLEDGED_IN_STRETCH: Final = 50
END_S_MAX: Final = 600.0
"""The time after its planned end when a run is ended, with the stacks of its threads."""

STANDING_S: Final = 5.0
ASKED_MAX: Final = 200
"""The span of the report of brokers for idle workers, and the maximum number of members' requests in it."""

KILLED: Final = 0.7
"""The share of crashes among the restarts."""

PASSING: Final[Mapping[str, tuple[str, ...]]] = {
    "Produce": ("NOT_LEADER_OR_FOLLOWER", "NOT_ENOUGH_REPLICAS", "REQUEST_TIMED_OUT", "KAFKA_STORAGE_ERROR"),
    "Fetch": ("NOT_LEADER_OR_FOLLOWER", "FENCED_LEADER_EPOCH", "KAFKA_STORAGE_ERROR", "OFFSET_NOT_AVAILABLE"),
    "ListOffsets": ("NOT_LEADER_OR_FOLLOWER", "LEADER_NOT_AVAILABLE"),
    # None: after LEADER_NOT_AVAILABLE for a topic in the middle of a rebalance, librdkafka's group leader assigns no
    # partitions, and no member reads before the next rebalance.
    "Metadata": (),
    "FindCoordinator": ("COORDINATOR_NOT_AVAILABLE",),
    "JoinGroup": ("NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS"),
    "SyncGroup": ("REBALANCE_IN_PROGRESS", "NOT_COORDINATOR"),
    "Heartbeat": ("REBALANCE_IN_PROGRESS", "NOT_COORDINATOR"),
    "OffsetCommit": ("COORDINATOR_LOAD_IN_PROGRESS", "REBALANCE_IN_PROGRESS", "NOT_COORDINATOR", "REQUEST_TIMED_OUT"),
    "OffsetFetch": ("COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR"),
    "InitProducerId": ("COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR", "CONCURRENT_TRANSACTIONS"),
    "AddPartitionsToTxn": ("CONCURRENT_TRANSACTIONS", "NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS"),
    "EndTxn": ("CONCURRENT_TRANSACTIONS", "NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE"),
}
"""Retriable errors, by the API whose responses may contain them."""

DONE_ALL_THE_SAME: Final = ("Produce", "OffsetCommit", "EndTxn", "InitProducerId", "AddPartitionsToTxn")
"""APIs whose requests may have been executed despite an error."""


class Luck(TypedDict):
    """The choice of the requests that a fault affects."""

    probability: float
    seed: int


class Target(ABC):
    """The system under load; a context manager."""

    replicas: int

    def __init__(self, started: Broker | Cluster) -> None:
        self.started = started
        self.faults = started.faults

    @property
    def bootstrap_servers(self) -> str:
        return self.started.bootstrap_servers

    def __enter__(self) -> Self:
        self.started.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.started.stop()

    def standing(self) -> str:
        """The brokers' logs and replicas, and the recent requests of the group's members."""
        with self.started.recorded() as seen:
            time.sleep(STANDING_S)
            asked = [each for each in seen.requests() if (each.client_id or "").startswith(Member.__name__)]
        return "\n".join(
            [self.started.report(), *self._replicas(), *(f"{each!r}: {each.message}" for each in asked[-ASKED_MAX:])]
        )

    def _replicas(self) -> list[str]:
        """The offsets of each broker's replica of each partition."""

        async def look() -> list[str]:
            return [
                f"broker {server.node_id}: {partition} from {log.log_start_offset} to {log.log_end_offset}, "
                f"committed to {log.high_watermark}, leader {state.leader} in epoch {state.leader_epoch}, "
                f"in sync {state.isr}"
                for server in self.started.live_servers()
                for partition in server.replicas.partitions()
                for log, state in [(partition.log, partition.state)]
            ]

        return self.started.call(look())

    @abstractmethod
    def end_one(self, chance: random.Random) -> str:
        """Stop or kill a broker, and start it again. Returns a description."""

    def cut(self, chance: random.Random) -> AbstractContextManager[object]:
        """Cut two brokers off from each other, if there are two."""
        return nullcontext()

    def expire_session(self, chance: random.Random) -> AbstractContextManager[object]:
        """Expire the session of a broker, if there are others."""
        return nullcontext()

    @contextmanager
    def disk_fails(self, chance: random.Random) -> Iterator[Fault]:
        """Break the disk of a broker, and repair that broker at the end. Raises TimeoutError."""
        broker = _some_broker(self, chance)
        with self.faults.disk_fails(broker=broker) as fault:
            yield fault
        if fault.hits:
            self._mend(broker, chance)

    @abstractmethod
    def _mend(self, broker: int | None, chance: random.Random) -> None:
        """Restart a broker whose disk has failed. Raises TimeoutError."""

    @abstractmethod
    def folders(self) -> Iterable[Path]:
        """Kill all brokers. Returns the directories of their logs."""

    def damage(self) -> list[str]:
        """The findings of `barnabas check` in the files, after the end of all writes."""
        reports = [check_directory(OsFiles(), folder, deep=True) for folder in self.folders()]
        return [f"{report.directory}: {each}" for report in reports if not report.ok for each in report.findings]


class OneBroker(Target):
    """A broker alone, with its data in a folder."""

    replicas = 1

    def __init__(self, folder: Path) -> None:
        self._broker = Broker(data_dir=folder, configs=OVERRIDES)
        super().__init__(self._broker)

    def end_one(self, chance: random.Random) -> str:
        is_kill = chance.random() < KILLED
        if is_kill:
            self._broker.kill()
        self._broker.restart()
        return "kill" if is_kill else "restart"

    def _mend(self, broker: int | None, chance: random.Random) -> None:
        self.end_one(chance)

    def folders(self) -> Iterable[Path]:
        self._broker.kill()
        return [self._broker.data_dir]


class SeveralBrokers(Target):
    """A cluster."""

    def __init__(self, brokers: int) -> None:
        configs: dict[str, Any] = {key.replace(".", "_"): value for key, value in OVERRIDES.items()}
        self._cluster = Cluster(brokers, **configs)
        self.replicas = min(brokers, 3)
        super().__init__(self._cluster)

    def end_one(self, chance: random.Random) -> str:
        broker, is_kill = chance.choice(self._cluster.brokers), chance.random() < KILLED
        # It may be back before the others have noticed its end.
        (broker.kill if is_kill else broker.stop)(heard=False)
        time.sleep(chance.choice((0.0, FAULT_S_MAX)))
        broker.start(heard=False)
        self._cluster.wait_in_sync(PATIENCE_S)
        return "kill" if is_kill else "restart"

    def cut(self, chance: random.Random) -> AbstractContextManager[object]:
        one, other = chance.sample(range(len(self._cluster.brokers)), 2)
        return self._cluster.cut(one, other, one_way=chance.random() < 0.5)

    def expire_session(self, chance: random.Random) -> AbstractContextManager[object]:
        self._cluster.expire_session(chance.randrange(len(self._cluster.brokers)))
        return nullcontext()

    def _mend(self, broker: int | None, chance: random.Random) -> None:
        """Wait for the broker, which ends by itself."""
        assert broker is not None
        failed, given_up = self._cluster.brokers[broker], time.monotonic() + PATIENCE_S
        while failed.is_running:
            if time.monotonic() > given_up:
                raise TimeoutError(f"broker {broker} goes on with a disk that has failed")
            time.sleep(0.01)
        failed.start()
        self._cluster.wait_in_sync(PATIENCE_S)

    def folders(self) -> Iterable[Path]:
        for broker in self._cluster.brokers:
            broker.kill(heard=False)  # all at once
        return sorted(path for path in self._cluster.data_dir.iterdir() if path.is_dir())


# --- random faults --------------------------------------------------------------------------------

Verb = Callable[[Target, random.Random, str], AbstractContextManager[object]]
"""Starts a fault, which ends with its block; the last argument is the topic of the load."""

Verbs = Sequence[Verb]


def _fails(target: Target, chance: random.Random, topic: str) -> AbstractContextManager[object]:
    api = chance.choice([api for api, errors in PASSING.items() if errors])
    after_work = api in DONE_ALL_THE_SAME and chance.random() < 0.5
    return target.faults.fail(api, chance.choice(PASSING[api]), after_work=after_work, **_luck(chance))


def _delays(target: Target, chance: random.Random, topic: str) -> AbstractContextManager[object]:
    return target.faults.delay(_some_api(chance), (0, DELAY_MS_MAX), **_luck(chance))


def _holds(target: Target, chance: random.Random, topic: str) -> AbstractContextManager[object]:
    return target.faults.hold(_some_api(chance), after_work=chance.random() < 0.5, **_luck(chance))


def _drops(target: Target, chance: random.Random, topic: str) -> AbstractContextManager[object]:
    return target.faults.drop(_some_api(chance), after_work=chance.random() < 0.5, **_luck(chance))


def _disconnects(target: Target, chance: random.Random, topic: str) -> AbstractContextManager[object]:
    return target.faults.disconnect(_some_api(chance), after_work=chance.random() < 0.5, **_luck(chance))


def _garbles(target: Target, chance: random.Random, topic: str) -> AbstractContextManager[object]:
    # Not the other kinds. With "short", librdkafka trusts the counts in the damaged response, and aborts for lack of
    # memory. It ignores "correlation_id", and waits until its request times out, longer than any stretch. "records"
    # makes it skip records with an error for its consumer, or retry (with check.crcs; without, it returns damaged
    # records), and the check misses them.
    return target.faults.garble(_some_api(chance), "cut", times=2)


def _throttles(target: Target, chance: random.Random, topic: str) -> AbstractContextManager[object]:
    return target.faults.throttle(_some_api(chance), chance.randint(1, DELAY_MS_MAX), **_luck(chance))


def _refuses(target: Target, chance: random.Random, topic: str) -> AbstractContextManager[object]:
    return target.faults.refuse()


def _leader_away(target: Target, chance: random.Random, topic: str) -> AbstractContextManager[object]:
    return target.faults.leader_away(topic, chance.choice((None, 0, 1)))


def _coordinator_away(target: Target, chance: random.Random, topic: str) -> AbstractContextManager[object]:
    return target.faults.coordinator_away(group=Member.GROUP)


def _disk_full(target: Target, chance: random.Random, topic: str) -> AbstractContextManager[object]:
    return target.faults.disk_full(broker=_some_broker(target, chance))


def _expires(target: Target, chance: random.Random, topic: str) -> AbstractContextManager[object]:
    target.faults.expire_member(Member.GROUP)
    return nullcontext()


def _rebalances(target: Target, chance: random.Random, topic: str) -> AbstractContextManager[object]:
    target.faults.rebalance(Member.GROUP)
    return nullcontext()


def _fences(target: Target, chance: random.Random, topic: str) -> AbstractContextManager[object]:
    target.faults.fence_producer(_transactional_id(chance))
    return nullcontext()


def _aborts(target: Target, chance: random.Random, topic: str) -> AbstractContextManager[object]:
    target.faults.abort_transaction(_transactional_id(chance))
    return nullcontext()


def _partition_offline(target: Target, chance: random.Random, topic: str) -> AbstractContextManager[object]:
    return target.faults.partition_offline(topic, chance.choice((0, 1)))


def _raises_epoch(target: Target, chance: random.Random, topic: str) -> AbstractContextManager[object]:
    target.faults.raise_leader_epoch(topic, chance.choice((0, 1)))
    return nullcontext()


def _hangs(target: Target, chance: random.Random, topic: str) -> AbstractContextManager[object]:
    return target.faults.hang_transaction(topic, chance.choice((0, 1)))


def _disk_fails(target: Target, chance: random.Random, topic: str) -> AbstractContextManager[object]:
    return target.disk_fails(chance)


def _expires_session(target: Target, chance: random.Random, topic: str) -> AbstractContextManager[object]:
    return target.expire_session(chance)


def _disk_slow(target: Target, chance: random.Random, topic: str) -> AbstractContextManager[object]:
    return target.faults.disk_slow((0, DELAY_MS_MAX), broker=_some_broker(target, chance))


def _pauses(target: Target, chance: random.Random, topic: str) -> AbstractContextManager[object]:
    return target.faults.pause(broker=_some_broker(target, chance))


def _moves_leader(target: Target, chance: random.Random, topic: str) -> AbstractContextManager[object]:
    target.faults.move_leader(topic, chance.choice((0, 1)))
    return nullcontext()


def _moves_coordinator(target: Target, chance: random.Random, topic: str) -> AbstractContextManager[object]:
    if chance.random() < 0.5:
        target.faults.move_coordinator(group=Member.GROUP)
    else:
        target.faults.move_coordinator(transactional_id=_transactional_id(chance))
    return nullcontext()


def _cuts(target: Target, chance: random.Random, topic: str) -> AbstractContextManager[object]:
    return target.cut(chance)


VERBS: Final[Verbs] = (
    _fails, _fails, _fails, _delays, _holds, _drops, _disconnects, _garbles, _throttles, _refuses, _leader_away,
    _coordinator_away, _disk_full, _expires, _rebalances, _fences, _aborts, _partition_offline, _raises_epoch,
    _disk_slow, _pauses, _hangs, _disk_fails,
)  # fmt: skip
OF_CLUSTERS: Final[Verbs] = (*VERBS, _cuts, _moves_leader, _moves_coordinator, _expires_session)


class Kind(Enum):
    """The kind of a fault. Faults of clients' requests can overlap with all others. Other kinds overlap only with their
    own: the start or end of a fault of broker state waits for all brokers, and would wait forever for a paused one,
    which the same thread has to resume.
    """

    REQUESTS = auto()
    STATE = auto()
    BROKERS = auto()
    ALONE = auto()
    """Not even with its own kind: if two of three brokers have ended, nothing is acknowledged, and requests that need a
    partition (the end of a transaction, for example) wait while it has no leader.
    """

    def goes_with(self, other: "Kind") -> bool:
        return Kind.REQUESTS in (self, other) or (self is other and self is not Kind.ALONE)


_KINDS: Final[Mapping[Verb, Kind]] = {
    **dict.fromkeys(
        (_fails, _delays, _holds, _drops, _disconnects, _garbles, _throttles, _leader_away, _coordinator_away),
        Kind.REQUESTS,
    ),
    **dict.fromkeys((_refuses, _disk_full, _disk_slow, _pauses, _cuts), Kind.BROKERS),
    **dict.fromkeys((_disk_fails, _partition_offline), Kind.ALONE),
}
"""All other verbs affect the brokers' state."""


def _some_broker(target: Target, chance: random.Random) -> int | None:
    return chance.randrange(target.replicas) if target.replicas > 1 else None


def _some_api(chance: random.Random) -> str:
    return chance.choice(list(PASSING))


def _luck(chance: random.Random) -> Luck:
    return {"probability": chance.choice((0.1, 0.5, 1.0)), "seed": chance.randrange(1_000_000)}


def _transactional_id(chance: random.Random) -> str:
    """The transactional id of one of the load's transactional producers, which come after the plain ones."""
    plain, transactional = WORKERS[0][1], WORKERS[1][1]
    return f"soak-{plain + 1 + chance.randrange(transactional)}"


# --- a run ----------------------------------------------------------------------------------------


def soak_faults(
    seconds: float,
    *,
    brokers: int,
    seed: int,
    workers: Workers = WORKERS,
    verbs: Verbs | None = None,
    enough: Callable[[Counter[str]], bool] = lambda _: True,
    least: Amount = NOTHING,
) -> tuple[Result, Counter[str]]:
    """Run load and faults (those of `verbs`, or all) for the given time, in rounds, and the check. Also returns the
    number of each fault. It continues until that is `enough`, and each round until `least` has happened in it.
    """
    result, chance = Result(), random.Random(seed)
    meddler = Meddler(verbs or (VERBS if brokers == 1 else OF_CLUSTERS), chance)
    deadline = time.monotonic() + seconds

    def is_over() -> bool:
        late_s = time.monotonic() - deadline
        return late_s >= 0 and (enough(meddler.happened) or late_s >= PATIENCE_S)

    with (
        tempfile.TemporaryDirectory(prefix="barnabas-soak-") as folder,
        OneBroker(Path(folder)) if brokers == 1 else SeveralBrokers(brokers) as target,
    ):

        def crash() -> None:
            meddler.happened[target.end_one(chance)] += 1
            result.crashes += 1

        while result.is_clean and (not result.rounds or not is_over()):
            result.rounds += 1
            topic = f"{TOPIC_PREFIX}{result.rounds}"
            one = Round(
                target.bootstrap_servers, topic, workers, seed, result,
                replication_factor=target.replicas, config=TOPIC_CONFIG if target.replicas > 1 else None,
                least=least, standing=target.standing,
            )  # fmt: skip
            one.run(
                partial(meddler.stretch, target, topic),
                crash,
                lambda recorder: is_over() or recorder.acknowledged >= ROUND_RECORDS,
            )
        target.faults.clear()
        result.problems += target.damage()
    return result, meddler.happened


@dataclass(slots=True)
class _Current:
    """An active fault."""

    name: str
    kind: Kind
    until: float
    fault: object
    end: ExitStack


class Meddler:
    """Starts one fault after another, and sometimes several at once. `happened` counts them: faults of requests by the
    affected requests, and separately those that began during others.
    """

    def __init__(self, verbs: Verbs, chance: random.Random) -> None:
        self._verbs = verbs
        self._chance = chance
        self._current: list[_Current] = []
        self.happened: Counter[str] = Counter()

    def stretch(self, target: Target, topic: str, recorder: Recorder) -> None:
        """Cause faults for a while, and until some records were acknowledged nevertheless. Raises TimeoutError."""
        wanted = recorder.acknowledged + ACKNOWLEDGED_IN_STRETCH
        until = time.monotonic() + STRETCH_S
        try:
            while time.monotonic() < until:
                self._one(target, topic)
        finally:
            self._wait(inf)
        given_up = time.monotonic() + PATIENCE_S
        while recorder.acknowledged < wanted:
            if time.monotonic() > given_up:
                raise TimeoutError(f"{recorder.acknowledged} records acknowledged, {wanted} waited for")
            time.sleep(0.05)

    def _one(self, target: Target, topic: str) -> None:
        """Start a fault that may overlap with the active ones, and wait for its end, or a part of it."""
        kinds = [each.kind for each in self._current]
        fitting = [verb for verb in self._verbs if all(_kind(verb).goes_with(kind) for kind in kinds)]
        if not fitting:
            return self._wait(max(each.until for each in self._current))
        verb = self._chance.choice(fitting)
        name = verb.__name__.strip("_").replace("_", " ")
        end = ExitStack()
        try:
            fault = end.enter_context(verb(target, self._chance, topic))
        except ApiError:  # there is no such member, or no open transaction
            return None
        self.happened["overlapping"] += bool(self._current)
        lasts_s = self._chance.uniform(0.05, FAULT_S_MAX)
        now = time.monotonic()
        self._current.append(_Current(name, _kind(verb), now + lasts_s, fault, end))
        return self._wait(now + lasts_s * (self._chance.random() if self._chance.random() < OVERLAPPING else 1))

    def _wait(self, until: float) -> None:
        """End the faults that are due by then, each in its time. Raises RuntimeError, TimeoutError."""
        while self._current:
            first = min(self._current, key=lambda each: each.until)
            if first.until > until:
                break
            time.sleep(max(0.0, first.until - time.monotonic()))
            self._current.remove(first)
            try:
                first.end.close()
            except ApiError as error:
                raise RuntimeError(f"{first.fault!r} could not be ended: {error}") from error
            self.happened[first.name] += getattr(first.fault, "hits", 1)
        if self._current:
            time.sleep(max(0.0, until - time.monotonic()))


def _kind(verb: Verb) -> Kind:
    return _KINDS.get(verb, Kind.STATE)


def main() -> int:
    """Run once and print the result; exit status 0 when nothing was found."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.soak.random_faults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--brokers", type=int, default=1, help="1 (the default), or a cluster of so many")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    faulthandler.enable()  # a client's library may end the process
    faulthandler.dump_traceback_later(options.seconds + END_S_MAX, exit=True)
    result, happened = soak_faults(options.seconds, brokers=options.brokers, seed=options.seed)
    print("faults: " + ", ".join(f"{name} {count}" for name, count in sorted(happened.items())))
    print(describe(result))
    return int(not result.is_clean)


if __name__ == "__main__":
    sys.exit(main())
