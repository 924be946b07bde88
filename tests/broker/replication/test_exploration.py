"""All states that three replicas of one partition can reach within bounds: the real decisions of leaders (`Followers`),
of followers (`Fetcher`) and of the controller (`leadership`, `alter_partition`), over logs in memory, each step in
every order.

`walks.py` goes far at random; this visits all near states, the nearest first, so that it finds the shortest way to a
wrong state. In each state: every replica that may be elected has all committed records, logs are the same below their
high watermarks, each epoch has one leader, and the leader is in sync.

A step is one of: the leader appends; a follower fetches, and the response arrives or is lost; the leader finds
followers slow; the controller stores an ISR or refuses it, and the leader receives the response; a broker is killed, or
its session expires although it goes on; it starts again; the controller finds a broker dead, elects a leader for a
partition without one, or prefers another leader of the ISR; a broker receives its role.

Three things make all states fit into memory. States that differ only in the names of replicas are one state
(`Exploration._canonical`). A response arrives at once or never: until then its follower does nothing that the response
could change, and a response after the follower has learned of another epoch changes nothing, which is checked for each
response (`taken`). Each decision of the real machines is made once per input: a replica, a pair of them, or a replica
and the controller, all of which have small numbers.

The bounds, besides epochs, records and crashes (an expired session and the election of a preferred leader count as
crashes): a topic has one partition, whose three replicas stay; a response has two records at most; a crash loses no
written record, and no high watermark; requests of leaders have no broker epochs; `min.insync.replicas` is 1, no
election is unclean, no topic is deleted; and time has passed whenever it matters, so that a replica that lacks records
may be found slow at once.
"""

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import permutations
from typing import Any, Final, Generic, NamedTuple, TypeVar

import pytest

from barnabas.broker.replication.fetch_partition import FetchPartition
from barnabas.broker.replication.fetcher import UNKNOWN, Fetcher, FetchSettings, FollowedLog, Following
from barnabas.broker.replication.followers import UNKNOWN_OFFSET, Followers, Proposal
from barnabas.controller.operations.alter_partition import plan_alterations
from barnabas.controller.operations.leadership import leader_after_loss, leader_for_offline, preferred_leader
from barnabas.controller.state import (
    NO_LEADER,
    BrokerRegistration,
    ClusterState,
    PartitionState,
    ReplicaAssignment,
    TopicState,
)
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.alter_partition import (
    AlterPartitionRequest,
    BrokerState,
    RequestPartitionData,
    RequestTopicData,
)
from barnabas.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from barnabas.wire.names import TopicId
from tests.broker.replication.model_log import ModelLeader, ModelLog, carry_out

pytestmark = pytest.mark.slow

REPLICAS: Final = (1, 2, 3)
ORDERS: Final = tuple(permutations(REPLICAS))
TOPIC_ID: Final = TopicId(bytes(range(1, 17)))
LAG_MS_MAX: Final = 1_000
LATE_MS: Final = 1_000_000
"""So late that whoever lacks anything is slow, and not about to join."""
CONTROLLER_EPOCH: Final = 1


# --- what there is


class Leading(NamedTuple):
    """A leader's knowledge of its followers. `end_offsets` are those of all replicas, in order. `proposal` is an ISR
    that the leader wants; once the controller `has_stored` it, the leader only lacks the response."""

    start_offset: int
    isr: tuple[int, ...]
    proposal: tuple[int, ...] | None
    has_stored: bool
    end_offsets: tuple[int, ...]


class Replica(NamedTuple):
    """One replica and its broker. `epochs` are those of its log's records; `assigned` is an epoch after them, in which
    nothing was written yet."""

    is_up: bool = True
    epochs: tuple[int, ...] = ()
    assigned: int = 0
    high_watermark: int = 0
    leader: int = NO_LEADER
    leader_epoch: int = 0
    leading: Leading | None = None

    def log(self) -> ModelLog:
        log = ModelLog(*self.epochs)
        log.high_watermark = self.high_watermark
        if self.assigned:
            log.leader_epochs.assign(self.assigned, log.log_end_offset)
        return log

    def with_log(self, log: ModelLog) -> "Replica":
        epochs = tuple(epoch for _, epoch in log.records)
        latest = log.leader_epochs.latest_epoch
        assigned = latest if latest > max(epochs, default=0) else 0
        return self._replace(epochs=epochs, assigned=assigned, high_watermark=log.high_watermark)

    @property
    def committed(self) -> tuple[int, ...]:
        """The end of the committed records, if this replica leads."""
        return () if self.leading is None else self.epochs[: self.high_watermark]

    def renamed(self, names: Sequence[int]) -> "Replica":
        """The same where replica n is called names[n]."""
        leading = self.leading
        if leading is not None:
            ends = dict(zip(names[1:], leading.end_offsets, strict=True))
            leading = leading._replace(
                isr=_renamed(leading.isr, names),
                proposal=None if leading.proposal is None else _renamed(leading.proposal, names),
                end_offsets=tuple(ends[replica] for replica in REPLICAS),
            )
        return self._replace(leader=self.leader if self.leader == NO_LEADER else names[self.leader], leading=leading)

    def looks(self) -> tuple[Hashable, ...]:
        """The part of the state that does not depend on the names of replicas."""
        leading = self.leading and (
            self.leading.start_offset,
            len(self.leading.isr),
            len(self.leading.proposal or ()),
            self.leading.has_stored,
            tuple(sorted(self.leading.end_offsets)),
        )
        return (*self[:4], self.leader == NO_LEADER, self.leader_epoch, leading)


class Control(NamedTuple):
    """The state that the controller has written, and the brokers whose death it has not noticed yet, which may have
    restarted."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    unnoticed: tuple[int, ...] = ()

    def renamed(self, names: Sequence[int]) -> "Control":
        return Control(
            self.leader if self.leader == NO_LEADER else names[self.leader],
            self.leader_epoch,
            _renamed(self.isr, names),
            _renamed(self.unnoticed, names),
        )

    @property
    def state(self) -> PartitionState:
        """The partition's state in the form that the controller's decisions take."""
        return PartitionState(self.leader, self.leader_epoch, self.isr, CONTROLLER_EPOCH, self.partition_epoch)

    @property
    def partition_epoch(self) -> int:
        """Of the state before the leader's proposal is stored. Whoever has heard of that knows the next one, and nobody
        proposes by that which is before."""
        return partition_epoch(self.leader_epoch)

    def with_state(self, state: PartitionState) -> "Control":
        return self._replace(leader=state.leader, leader_epoch=state.leader_epoch, isr=state.isr)

    def live(self, up: Sequence[int]) -> list[int]:
        """The brokers that are registered, as far as the controller knows, if these are `up`."""
        return [replica for replica in REPLICAS if replica in up or replica in self.unnoticed]


def _renamed(replicas: Sequence[int], names: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(names[replica] for replica in replicas))


def partition_epoch(leader_epoch: int) -> int:
    """One that comes after all of earlier leader epochs."""
    return leader_epoch * 10


class Machines:
    """The decisions, each of which a test may replace by a wrong one."""

    followers = Followers
    fetcher = Fetcher
    cuts_to_high_watermark = False
    tells_last_epoch = True
    elects_anybody = False
    grants_to_anybody = False


# --- the controller


def control_steps(control: Control, up: Sequence[int], machines: type[Machines]) -> Iterator[tuple[str, int, Control]]:
    """The next steps of the controller, and the number of crashes that each counts as."""
    live = control.live(up)
    if control.leader == NO_LEADER:
        for after in decided(
            control,
            lambda order: leader_for_offline(
                order, control.state, live, CONTROLLER_EPOCH, unclean=machines.elects_anybody
            ),
        ):
            yield f"{after.leader} is elected", 0, after
    else:
        for after in decided(control, lambda order: preferred_leader(order, control.state, live, CONTROLLER_EPOCH)):
            yield f"{after.leader} is preferred", 1, after
    for number in control.unnoticed:
        left = control._replace(unnoticed=tuple(each for each in control.unnoticed if each != number))
        for after in without(left, number, left.live(up), machines) or [left]:
            yield f"{number} is found lost", 0, after
    for number in up:
        if number not in control.unnoticed:
            for after in without(control, number, live, machines):
                yield f"the session of {number} expires, though it goes on", 1, after


def without(control: Control, number: int, live: Sequence[int], machines: type[Machines]) -> list[Control]:
    """The states after the loss of a broker; empty if the loss changes nothing."""
    others = [replica for replica in live if replica != number]
    return decided(
        control,
        lambda order: leader_after_loss(
            order, control.state, (number,), others, CONTROLLER_EPOCH, unclean=machines.elects_anybody
        ),
    )


def decided(control: Control, decide: Callable[[tuple[int, ...]], PartitionState | None]) -> list[Control]:
    """The states after a decision, where it changes anything, by all orders in which replicas may be assigned."""
    states = dict.fromkeys(decide(order) for order in ORDERS)
    return [control.with_state(state) for state in states if state is not None]


def answer_to(
    control: Control, number: int, replica: Replica, up: Sequence[int], machines: type[Machines]
) -> tuple[ErrorCode, Control]:
    """The controller's response to a leader's proposal, and the states that it has written by then."""
    assert replica.leading is not None
    members = replica.leading.proposal or ()
    leader_epoch = replica.leader_epoch
    if machines.grants_to_anybody and control.leader in members:
        number, leader_epoch = control.leader, control.leader_epoch
    wanted = RequestPartitionData(
        partition_index=0,
        leader_epoch=leader_epoch,
        new_isr_with_epochs=[BrokerState(broker_id=member, broker_epoch=UNKNOWN) for member in members],
        partition_epoch=partition_epoch(leader_epoch),
    )
    topics = [RequestTopicData(topic_id=TOPIC_ID, partitions=[wanted])]
    topic = TopicState("t", TOPIC_ID, {0: ReplicaAssignment(REPLICAS)}, {0: control.state})
    live = control.live(up)
    cluster = ClusterState({each: BrokerRegistration(each, (), epoch=1) for each in live}, {"t": topic})
    request = AlterPartitionRequest(broker_id=number, broker_epoch=1, topics=topics)
    plan, response = plan_alterations(cluster, request, CONTROLLER_EPOCH, lambda _topic, _broker_id: True)
    assert not response.error_code, "a leader is registered"
    error = ErrorCode(response.topics[0].partitions[0].error_code)
    return error, control.with_state(plan.cluster.topics["t"].partitions[0])


# --- a broker and the controller


def kill(control: Control, number: int, replica: Replica) -> tuple[Control, Replica]:
    """Kill a broker; its log remains."""
    killed = Replica(False, replica.epochs, replica.assigned, replica.high_watermark)
    return control._replace(unnoticed=tuple(sorted({*control.unnoticed, number}))), killed


def told(control: Control, number: int, replica: Replica, machines: type[Machines]) -> Replica:
    """A broker receives its role in the controller's latest epoch."""
    log = replica.log()
    replica = replica._replace(leader=control.leader, leader_epoch=control.leader_epoch, leading=None)
    if control.leader == number:
        log.leader_epochs.assign(control.leader_epoch, log.log_end_offset)
        followers = machines.followers(
            number, REPLICAS, control.isr, leader_epoch=control.leader_epoch, partition_epoch=control.partition_epoch,
            start_offset=log.log_end_offset, now_ms=0, is_eligible=_everybody,
        )  # fmt: skip
        return with_leading(replica, log, followers, log.log_end_offset)
    if machines.cuts_to_high_watermark:
        log.truncate_to(log.high_watermark)
    return replica.with_log(log)


def _everybody(_replica: int, _epoch: int) -> bool:
    return True


class Step(NamedTuple):
    """A step of a broker, by itself or with the controller; `crashes` and `records` are the numbers of them in the
    step."""

    name: str
    control: Control
    replica: Replica
    crashes: int = 0
    records: int = 0


def broker_steps(
    control: Control, number: int, replica: Replica, up: Sequence[int], machines: type[Machines]
) -> Iterator[Step]:
    """The next steps of a broker, other than its fetches."""
    if not replica.is_up:
        yield Step(f"{number} starts", control, replica._replace(is_up=True))
        return
    yield Step(f"{number} is killed", *kill(control, number, replica), crashes=1)
    if replica.leader_epoch < control.leader_epoch and number not in control.unnoticed:
        yield Step(f"{number} hears of epoch {control.leader_epoch}", control, told(control, number, replica, machines))
    if replica.leading is not None:
        yield from leader_steps(control, number, replica, up, machines)


# --- the leader


def followers_of(number: int, replica: Replica, log: ModelLog, machines: type[Machines]) -> Followers:
    """The leader's machine as it was."""
    leading = replica.leading
    assert leading is not None
    followers = machines.followers(
        number, REPLICAS, leading.isr, leader_epoch=replica.leader_epoch,
        partition_epoch=partition_epoch(replica.leader_epoch),
        start_offset=leading.start_offset, now_ms=0, is_eligible=_everybody,
    )  # fmt: skip
    for other, end_offset in zip(REPLICAS, leading.end_offsets, strict=True):
        if end_offset != UNKNOWN_OFFSET:
            follower = followers.follower(other)
            assert follower is not None
            follower.fetched(end_offset, 0, 1, log.log_end_offset, 0)
    if leading.proposal is not None:
        followers._proposal = Proposal(leading.proposal, replica.leader_epoch, followers.partition_epoch)
    return followers


def with_leading(
    replica: Replica, log: ModelLog, followers: Followers, start_offset: int, *, has_stored: bool = False
) -> Replica:
    """A leader by its machine, when that has committed what it can."""
    end_offset = log.log_end_offset
    high_watermark = followers.high_watermark(
        end_offset, end_offset, LATE_MS, min_insync_replicas=1, lag_ms_max=LAG_MS_MAX
    )
    log.high_watermark = max(log.high_watermark, high_watermark)
    found = [followers.follower(other) for other in REPLICAS]
    leading = Leading(
        start_offset,
        tuple(sorted(followers.isr)),
        None if followers.proposal is None else followers.proposal.isr,
        has_stored,
        tuple(UNKNOWN_OFFSET if follower is None else follower.log_end_offset for follower in found),
    )
    return replica.with_log(log)._replace(leading=leading)


def leader_steps(
    control: Control, number: int, replica: Replica, up: Sequence[int], machines: type[Machines]
) -> Iterator[Step]:
    leading = replica.leading
    assert leading is not None

    def changed(change: Callable[[Followers, ModelLog], object], *, has_stored: bool = leading.has_stored) -> Replica:
        log = replica.log()
        followers = followers_of(number, replica, log, machines)
        change(followers, log)
        return with_leading(replica, log, followers, leading.start_offset, has_stored=has_stored)

    appended = changed(lambda _, log: log.append(replica.leader_epoch))
    yield Step(f"{number} appends", control, appended, records=1)
    shrinking = changed(lambda followers, log: followers.shrinking(log.log_end_offset, LATE_MS, LAG_MS_MAX))
    if shrinking != replica:
        yield Step(f"{number} finds some slow", control, shrinking)
    if leading.proposal is None:
        return
    proposal = leading.proposal
    if leading.has_stored:
        answer = proposal, replica.leader_epoch, partition_epoch(replica.leader_epoch) + 1
        heard = changed(lambda followers, _: followers.stored(proposed(followers), *answer), has_stored=False)
        yield Step(f"{number} hears that {proposal} is stored", control, heard)
        return
    error, written = answer_to(control, number, replica, up, machines)
    if error is ErrorCode.NONE:
        yield Step(
            f"the controller stores {proposal}", written, replica._replace(leading=leading._replace(has_stored=True))
        )
    else:
        refused = changed(lambda followers, _: followers.refused(proposed(followers), error, 0))
        yield Step(f"{number} hears of {error.name}", control, refused)


def proposed(followers: Followers) -> Proposal:
    """The leader's proposal."""
    assert followers.proposal is not None
    return followers.proposal


# --- the follower


def fetches(
    number: int, replica: Replica, leader: Replica, machines: type[Machines]
) -> Iterator[tuple[str, Replica, Replica]]:
    """A follower fetches; its leader notes the offset and responds; the response arrives or is lost. Returns both
    replicas."""
    own, log = replica.log(), leader.log()
    request = fetcher_of(replica.leader_epoch, own, machines).next_request(0)
    assert request is not None
    asked = request.topics[0].partitions[0]
    if not machines.tells_last_epoch:
        asked.last_fetched_epoch = UNKNOWN
    model = ModelLeader(replica.leader_epoch)
    model.logs[TOPIC_ID, 0] = log
    data = model._read(
        FetchPartition("t", TOPIC_ID, 0, asked.fetch_offset, 1, asked.current_leader_epoch, asked.last_fetched_epoch, 0)
    )
    if data.error_code:
        assert not machines.tells_last_epoch, "a leader always finds where the logs part"
        return
    followers = followers_of(replica.leader, leader, log, machines)
    if data.diverging_epoch.epoch < 0 and asked.fetch_offset <= log.log_end_offset:
        follower = followers.follower(number)
        assert follower is not None
        follower.fetched(asked.fetch_offset, 0, 1, log.log_end_offset, 0)
        followers.expansion(number, log.high_watermark, LATE_MS)
    assert leader.leading is not None
    leader = with_leading(leader, log, followers, leader.leading.start_offset, has_stored=leader.leading.has_stored)
    yield f"{number} asks {replica.leader}, and the answer is lost", replica, leader
    yield f"{number} fetches from {replica.leader}", taken(replica, data, machines), leader


def fetcher_of(leader_epoch: int, log: ModelLog, machines: type[Machines]) -> Fetcher:
    """The follower's machine before it fetches."""
    fetcher = machines.fetcher(1, lambda: 1, FetchSettings())
    fetcher.follow("t", TOPIC_ID, 0, leader_epoch, log)
    return fetcher


def taken(replica: Replica, data: PartitionData, machines: type[Machines]) -> Replica:
    """A follower that has processed a response. In a later epoch the response would have changed nothing."""
    data.log_start_offset = 0
    response = FetchResponse(responses=[FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[data])])
    log = replica.log()
    fetcher = fetcher_of(replica.leader_epoch, log, machines)
    fetcher.next_request(0)
    for decision in fetcher.answered(response, 0):
        carry_out(fetcher, decision, ModelLeader(replica.leader_epoch))
    late = fetcher_of(replica.leader_epoch, replica.log(), machines)
    late.next_request(0)
    late.follow("t", TOPIC_ID, 0, replica.leader_epoch + 1, replica.log())
    assert not late.answered(response, 0), "an answer of an earlier epoch counts"
    return replica.with_log(log)


# --- all of it


Value = TypeVar("Value", Control, Replica, tuple[int, ...])


class Numbers(Generic[Value]):
    """Values by small numbers, in the order in which they come up."""

    def __init__(self, bits: int) -> None:
        self.values: list[Value] = []
        self._numbers: dict[Value, int] = {}
        self._max = 1 << bits

    def number(self, value: Value) -> int:
        found = self._numbers.get(value)
        if found is None:
            found = self._numbers[value] = len(self.values)
            assert found < self._max, "more of them than a state has room for"
            self.values.append(value)
        return found


NUMBER_BITS: Final = 18
NUMBER_MASK: Final = (1 << NUMBER_BITS) - 1
CONTROL_BITS: Final = 10
COMMITTED_BITS: Final = 8
RECORDS_BITS: Final = 3
REPLICAS_SHIFT: Final = NUMBER_BITS * len(REPLICAS)
COMMITTED_SHIFT: Final = REPLICAS_SHIFT + CONTROL_BITS
RECORDS_SHIFT: Final = COMMITTED_SHIFT + COMMITTED_BITS
CRASHES_SHIFT: Final = RECORDS_SHIFT + RECORDS_BITS
COMMITTED_MASK: Final = (1 << COMMITTED_BITS) - 1
RECORDS_MASK: Final = (1 << RECORDS_BITS) - 1
NOBODY: Final = -1


class Traits(NamedTuple):
    """Of a replica, by its number: what is looked at in each state. `look` is the number of how it looks; `leader` is
    the place of whom it asks, if it follows anybody."""

    look: int
    is_up: bool
    leader: int
    epoch: int
    leads: bool


class Exploration:
    """The states within bounds, nearest first.

    A state is an integer: from its lowest bits on, the numbers of three replicas, of the controller and of what was
    ever committed, and how many records and crashes are left.
    """

    def __init__(self, machines: type[Machines] = Machines, *, epochs: int, records: int, crashes: int) -> None:
        self._machines = machines
        self._epochs_max = epochs
        self._replicas = Numbers[Replica](NUMBER_BITS)
        self._controls = Numbers[Control](CONTROL_BITS)
        self._committed = Numbers[tuple[int, ...]](COMMITTED_BITS)
        self._looks: dict[Hashable, int] = {}
        self._traits: list[Traits] = []
        self._renamed: list[dict[int, int]] = [{} for _ in ORDERS]
        self._renamed_controls: list[dict[int, int]] = [{} for _ in ORDERS]
        self._broker_steps: dict[int, list[tuple[int, int, int, int, str]]] = {}
        self._fetches: dict[int, list[tuple[int, int, int, str]]] = {}
        self._control_steps: dict[int, list[tuple[int, int, str]]] = {}
        self._agreeing: dict[int, str] = {}
        self._complete: dict[int, str] = {}
        first = self._number(Replica())
        control = self._controls.number(Control(REPLICAS[0], 1, REPLICAS))
        left = crashes << CRASHES_SHIFT | records << RECORDS_SHIFT | self._committed.number(()) << COMMITTED_SHIFT
        self.first = self._canonical(left, control, (first, first, first))
        self.came_from: dict[int, int | None] = {self.first: None}

    def run(self) -> None:
        """Check all states. Raises AssertionError with the steps to the first wrong state."""
        ahead = deque([self.first])
        while ahead:
            state = ahead.popleft()
            for _, left, control, replicas in self._steps(state):
                following = self._canonical(left, control, replicas)
                if following not in self.came_from:
                    self.came_from[following] = state
                    if wrong := self._what_is_wrong(following):
                        raise AssertionError(f"{wrong}\n{self.way_to(following)}")
                    ahead.append(following)

    def way_to(self, state: int) -> str:
        """The steps to a state, and what it is."""
        path: list[int] = []
        found: int | None = state
        while found is not None:
            path.append(found)
            found = self.came_from[found]
        told = []
        here = self.first
        for each in reversed(path[:-1]):
            for step, left, control, replicas in self._steps(here):
                if self._canonical(left, control, replicas) == each:
                    told.append(step)
                    here = _packed(left, control, replicas)
                    break
        left, control, replicas = _unpacked(here)
        values = [self._replicas.values[each] for each in replicas]
        committed = self._committed.values[_committed(left)]
        return "\n".join([*told, *map(str, (*values, self._controls.values[control])), f"committed: {committed}"])

    def _number(self, replica: Replica) -> int:
        number = self._replicas.number(replica)
        if number == len(self._traits):
            look = self._looks.setdefault(replica.looks(), len(self._looks))
            is_following = replica.is_up and replica.leading is None and replica.leader != NO_LEADER
            self._traits.append(
                Traits(
                    look,
                    replica.is_up,
                    replica.leader - 1 if is_following else NOBODY,
                    replica.leader_epoch,
                    replica.leading is not None,
                )
            )
        return number

    # --- names that do not matter

    def _canonical(self, left: int, control: int, replicas: Sequence[int]) -> int:
        """The state where replicas are called such that it is the same for all that differ in the names only."""
        a, b, c = replicas
        traits = self._traits
        one, other, third = traits[a].look, traits[b].look, traits[c].look
        if one < other < third:
            return _packed(left, control, replicas)
        if one in (other, third) or other == third:
            looks = sorted((one, other, third))
            return min(
                self._called(left, control, replicas, index)
                for index, names in enumerate(ORDERS)
                if one == looks[names[0] - 1] and other == looks[names[1] - 1] and third == looks[names[2] - 1]
            )
        first, second = (one > other) + (one > third) + 1, (other >= one) + (other > third) + 1
        return self._called(left, control, replicas, ORDERS.index((first, second, 6 - first - second)))

    def _called(self, left: int, control: int, replicas: Sequence[int], order: int) -> int:
        """The state where the replica at each place is called what that order says."""
        places = [0, 0, 0]
        for name, replica in zip(ORDERS[order], replicas, strict=True):
            places[name - 1] = self._rename(order, replica)
        return _packed(left, self._rename_control(order, control), places)

    def _rename(self, order: int, replica: int) -> int:
        found = self._renamed[order].get(replica)
        if found is None:
            found = self._number(self._replicas.values[replica].renamed((0, *ORDERS[order])))
            self._renamed[order][replica] = found
        return found

    def _rename_control(self, order: int, control: int) -> int:
        found = self._renamed_controls[order].get(control)
        if found is None:
            found = self._controls.number(self._controls.values[control].renamed((0, *ORDERS[order])))
            self._renamed_controls[order][control] = found
        return found

    # --- steps

    def _steps(self, state: int) -> Iterator[tuple[str, int, int, tuple[int, ...]]]:
        """The next steps from a state."""
        left, control, replicas = _unpacked(state)
        crashes, records = left >> CRASHES_SHIFT, left >> RECORDS_SHIFT & RECORDS_MASK
        traits = [self._traits[replica] for replica in replicas]
        up = traits[0].is_up | traits[1].is_up << 1 | traits[2].is_up << 2
        for after, cost, name in self._control_step(control, up):
            if cost <= crashes:
                yield name, left - (cost << CRASHES_SHIFT), after, replicas
        for index, replica in enumerate(replicas):
            for after, following, committed, costs, name in self._broker_step(control, index, replica, up):
                if costs >> CRASHES_SHIFT <= crashes and costs >> RECORDS_SHIFT & RECORDS_MASK <= records:
                    places = list(replicas)
                    places[index] = following
                    yield name, self._with_committed(left - costs, committed), after, tuple(places)
            leading = traits[index].leader
            if leading != NOBODY and traits[leading].leads and traits[leading].epoch == traits[index].epoch:
                for following, followed, committed, name in self._fetch(index, replica, replicas[leading]):
                    places = list(replicas)
                    places[index], places[leading] = following, followed
                    yield name, self._with_committed(left, committed), control, tuple(places)

    def _with_committed(self, left: int, committed: int) -> int:
        if committed:
            known = _committed(left)
            if len(self._committed.values[committed]) > len(self._committed.values[known]):
                return left + (committed - known << COMMITTED_SHIFT)
        return left

    def _control_step(self, control: int, up: int) -> list[tuple[int, int, str]]:
        key = control << 3 | up
        found = self._control_steps.get(key)
        if found is None:
            found = self._control_steps[key] = [
                (self._controls.number(after), cost, name)
                for name, cost, after in control_steps(self._controls.values[control], _members(up), self._machines)
                if after.leader_epoch <= self._epochs_max
            ]
        return found

    def _broker_step(self, control: int, index: int, replica: int, up: int) -> list[tuple[int, int, int, int, str]]:
        key = ((control << NUMBER_BITS | replica) << 2 | index) << 3 | up
        found = self._broker_steps.get(key)
        if found is None:
            values = self._controls.values[control], index + 1, self._replicas.values[replica], _members(up)
            found = self._broker_steps[key] = [
                (
                    self._controls.number(step.control),
                    self._number(step.replica),
                    self._committed.number(step.replica.committed),
                    step.crashes << CRASHES_SHIFT | step.records << RECORDS_SHIFT,
                    step.name,
                )
                for step in broker_steps(*values, self._machines)
            ]
        return found

    def _fetch(self, index: int, replica: int, leader: int) -> list[tuple[int, int, int, str]]:
        key = (replica << NUMBER_BITS | leader) << 2 | index
        found = self._fetches.get(key)
        if found is None:
            values = index + 1, self._replicas.values[replica], self._replicas.values[leader]
            found = self._fetches[key] = [
                (self._number(after), self._number(led), self._committed.number(led.committed), name)
                for name, after, led in fetches(*values, self._machines)
            ]
        return found

    # --- what must be true

    def _what_is_wrong(self, state: int) -> str:
        """Empty if nothing is."""
        left, control, replicas = _unpacked(state)
        a, b, c = replicas
        for one, other in ((a, b), (a, c), (b, c)):
            key = one << NUMBER_BITS | other
            if (wrong := self._agreeing.get(key)) is None:
                wrong = disagreement(self._replicas.values[one], self._replicas.values[other])
                self._agreeing[key] = wrong
            if wrong:
                return wrong
        committed, known = _committed(left), self._controls.values[control]
        for number in known.isr:
            key = committed << NUMBER_BITS | replicas[number - 1]
            if (wrong := self._complete.get(key)) is None:
                wrong = lack(self._committed.values[committed], self._replicas.values[replicas[number - 1]])
                self._complete[key] = wrong
            if wrong:
                return f"{number} may be elected and {wrong}"
        return "" if known.leader in (NO_LEADER, *known.isr) else f"{known.leader} leads and is not in sync"


def disagreement(one: Replica, other: Replica) -> str:
    """The difference between two replicas that must not differ; empty if all is right."""
    known = min(one.high_watermark, other.high_watermark)
    if one.epochs[:known] != other.epochs[:known]:
        return f"logs differ below their high watermarks: {one.epochs}, {other.epochs}"
    if one.leading is not None and other.leading is not None and one.leader_epoch == other.leader_epoch:
        return f"two lead in epoch {one.leader_epoch}"
    return ""


def lack(committed: tuple[int, ...], replica: Replica) -> str:
    """The committed records that a log lacks; empty if it lacks none."""
    return "" if replica.epochs[: len(committed)] == committed else f"lacks some of {committed}, which was committed"


def _packed(left: int, control: int, replicas: Sequence[int]) -> int:
    a, b, c = replicas
    return left | control << REPLICAS_SHIFT | c << 2 * NUMBER_BITS | b << NUMBER_BITS | a


def _unpacked(state: int) -> tuple[int, int, tuple[int, int, int]]:
    return (
        state >> COMMITTED_SHIFT << COMMITTED_SHIFT,
        state >> REPLICAS_SHIFT & ((1 << CONTROL_BITS) - 1),
        (state & NUMBER_MASK, state >> NUMBER_BITS & NUMBER_MASK, state >> 2 * NUMBER_BITS & NUMBER_MASK),
    )


def _members(up: int) -> list[int]:
    return [replica for replica in REPLICAS if up >> replica - 1 & 1]


def _committed(left: int) -> int:
    return left >> COMMITTED_SHIFT & COMMITTED_MASK


@pytest.mark.parametrize(
    ("bounds", "states_min"),
    [
        ({"epochs": 2, "records": 1, "crashes": 1}, 10_000),
        pytest.param({"epochs": 3, "records": 1, "crashes": 2}, 200_000, marks=pytest.mark.full),
        pytest.param({"epochs": 3, "records": 2, "crashes": 2}, 1_300_000, marks=pytest.mark.full),
    ],
    ids=["small", "middle", "full"],
)
def test_nothing_that_was_committed_is_lost(bounds: dict[str, int], states_min: int) -> None:
    exploration = Exploration(Machines, **bounds)
    started_s = time.process_time()
    exploration.run()
    print(f"{bounds}: {len(exploration.came_from)} states in {time.process_time() - started_s:.1f} s")
    assert len(exploration.came_from) > states_min, "so few that finding nothing means little"


class _WithNames(Exploration):
    """Keeps states that differ in the names of replicas only."""

    def _canonical(self, left: int, control: int, replicas: Sequence[int]) -> int:
        return _packed(left, control, replicas)


def test_states_that_differ_in_names_only_are_one() -> None:
    named, exploration = (kind(epochs=1, records=1, crashes=1) for kind in (_WithNames, Exploration))
    named.run()
    exploration.run()
    renamed = {Exploration._canonical(named, *_unpacked(state)) for state in list(named.came_from)}
    assert len(renamed) == len(exploration.came_from) < len(named.came_from)


# --- what the search is worth: it finds what is wrong


class _CommitsAlone(Followers):
    def high_watermark(self, own_offset: int, *_: Any, **__: Any) -> int:
        return own_offset


class _CountsTheStoredIsr(Followers):
    @property
    def maximal_isr(self) -> frozenset[int]:
        return self.isr


class _ShrinksAtOnce(Followers):
    def shrinking(self, own_end_offset: int, now_ms: int, lag_ms_max: int) -> Proposal | None:
        proposal = super().shrinking(own_end_offset, now_ms, lag_ms_max)
        if proposal is not None:
            self.isr = frozenset(proposal.isr)
        return proposal


class _JoinsEarly(Followers):
    def expansion(self, replica_id: int, high_watermark: int, now_ms: int) -> Proposal | None:
        self._start_offset = 0
        return super().expansion(replica_id, high_watermark, now_ms)


class _FollowsOnAsBefore(Fetcher):
    def follow(self, topic: str, topic_id: TopicId, index: int, leader_epoch: int, log: FollowedLog) -> Following:
        return self.following(topic_id, index) or super().follow(topic, topic_id, index, leader_epoch, log)


class CommitsAlone(Machines):
    """The high watermark is the log end offset of the leader."""

    followers = _CommitsAlone


class CountsTheStoredIsr(Machines):
    """The leader does not wait for a replica that is about to join the ISR."""

    followers = _CountsTheStoredIsr


class ShrinksAtOnce(Machines):
    """The leader no longer waits for a slow replica, before the controller has stored the ISR without it."""

    followers = _ShrinksAtOnce


class JoinsEarly(Machines):
    """A follower joins the ISR although it lacks records from before the leader's epoch."""

    followers = _JoinsEarly


class CutsToTheHighWatermark(Machines):
    """A follower truncates to its high watermark, as in Kafka before KIP-101."""

    cuts_to_high_watermark = True


class NeverCuts(Machines):
    """A follower does not send the last epoch of its log."""

    tells_last_epoch = False


class FollowsOnAsBefore(Machines):
    """A follower that has learned of a later epoch processes responses of the epoch before."""

    fetcher = _FollowsOnAsBefore


class ElectsAnybody(Machines):
    """A replica that is not in sync may lead."""

    elects_anybody = True


class GrantsToAnybody(Machines):
    """The controller stores the proposal of a former leader."""

    grants_to_anybody = True


@pytest.mark.parametrize(
    ("machines", "records"),
    [
        (CommitsAlone, 1),
        (CountsTheStoredIsr, 1),
        (ShrinksAtOnce, 1),
        (JoinsEarly, 1),
        (CutsToTheHighWatermark, 1),
        (NeverCuts, 2),
        (FollowsOnAsBefore, 1),
        (ElectsAnybody, 1),
        (GrantsToAnybody, 1),
    ],
)
def test_planted_bugs_are_found(machines: type[Machines], records: int) -> None:
    with pytest.raises(AssertionError, match=r"lacks some of|logs differ|earlier epoch counts"):
        Exploration(machines, epochs=2, records=records, crashes=1).run()
