"""One replicated partition as a walk of random steps: real leaders (`Partition`, `Leadership`), real followers
(`Fetcher`) and the decisions of the real controller, over logs in memory. Brokers are killed, lose records that were
not flushed, are slow, or go on after their session has expired; requests and responses are delayed and lost.

After each step: each replica in sync has all acknowledged records, and logs are the same below their high watermarks.
At the end there are no more faults, and all replicas become one log.
"""

import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from barnabas.broker.observability.unforeseen import UnforeseenErrors
from barnabas.broker.replication.fetch_operation import FetchLimits
from barnabas.broker.replication.fetch_partition import FetchPartition
from barnabas.broker.replication.fetch_sessions import FetchPlan, FetchSessions
from barnabas.broker.replication.fetcher import (
    Append,
    AskOffsets,
    Decision,
    Fetcher,
    FetchSettings,
    Following,
    Truncate,
)
from barnabas.broker.replication.leadership import Leaderships
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.read_policy import LOG_END
from barnabas.broker.replication.replica_fetch import ReplicaFetch
from barnabas.clock import ManualClock
from barnabas.controller.operations.alter_partition import plan_alterations
from barnabas.controller.operations.broker_lives import plan_broker_loss
from barnabas.controller.operations.leadership import leader_for_offline
from barnabas.controller.state import (
    NO_LEADER,
    BrokerRegistration,
    ClusterState,
    PartitionState,
    ReplicaAssignment,
    TopicState,
)
from barnabas.storage.config import LogConfig
from barnabas.storage.segment_reader import FetchData
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.alter_partition import (
    AlterPartitionRequest,
    RequestPartitionData,
    RequestTopicData,
    ResponsePartitionData,
)
from barnabas.wire.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse
from barnabas.wire.messages.leader_and_isr import LeaderAndIsrPartitionState
from barnabas.wire.names import TopicId
from tests.broker.replication.model_log import ModelLog, Record

REPLICAS = (1, 2, 3)
TOPIC_ID = TopicId(bytes(range(16)))
CONTROLLER_EPOCH = 1
LAG_MS_MAX = 1_000
RECORDS_MAX = 2
"""How many records a fetch is given."""

Answered = Callable[[ResponsePartitionData], bool]


class Disk(ModelLog):
    """A log as `Partition` knows it."""

    topic, partition = "t", 0
    failure = None

    def __init__(self, config: LogConfig) -> None:
        super().__init__()
        self.config = config

    @property
    def recovery_point(self) -> int:
        return self.log_end_offset

    @property
    def last_stable_offset(self) -> int:
        return self.high_watermark

    def read(self, offset: int, _max_bytes: int, **_: Any) -> FetchData:  # type: ignore[override]
        """As `PartitionLog.read`, of few records."""
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
        records = super().read(offset, RECORDS_MAX)
        return FetchData(records, offset, offset + len(records), 0, 0)

    def update_high_watermark(self, offset: int) -> int:
        self.high_watermark = max(self.log_start_offset, min(offset, self.log_end_offset))
        return self.high_watermark


class Proposals:
    """AlterPartition requests of leaders, until there is a response."""

    def __init__(self) -> None:
        self.asked: tuple[RequestPartitionData, Answered] | None = None

    def propose(self, _topic_id: TopicId, asked: RequestPartitionData, answered: Answered) -> None:
        self.asked = (asked, answered)


@dataclass(eq=False)
class Node:
    """One life of a broker. `commands` are requests of the controller that it has not processed yet."""

    broker_id: int
    log: Disk
    clock: ManualClock
    broker_epoch: int = -1
    live: frozenset[int] = frozenset()
    commands: deque[tuple[LeaderAndIsrPartitionState, frozenset[int]]] = field(default_factory=deque)
    unacknowledged: list[Record] = field(default_factory=list)
    waiting: dict[int, tuple[FetchRequest, "Served"]] = field(default_factory=dict)
    """Fetches that wait here, by the followers."""
    request: tuple[int, FetchRequest] | None = None
    """The leader and the request that is on its way to it."""
    response: FetchResponse | None = None
    """The response that is on its way here."""

    def __post_init__(self) -> None:
        self.proposals = Proposals()
        shared: Any = (self.clock, LAG_MS_MAX, lambda broker_id: broker_id in self.live, self.proposals)
        self.leaderships = Leaderships(*shared)
        log: Any = self.log
        self.partition = Partition("t", 0, TOPIC_ID, log, self.broker_id)
        session_ids = itertools.count(1)
        self.sessions = FetchSessions(10, lambda: next(session_ids))
        self.fetcher: Fetcher | None = None
        self.leader_id = NO_LEADER
        """The broker that the fetcher asks."""

    @property
    def leads(self) -> bool:
        return self.partition.state.is_leader

    def obey(self) -> None:
        told, self.live = self.commands.popleft()
        state = self.partition.state
        if state.is_outdated(told):
            return
        self.partition.become_leader_or_follower(told, self.leaderships.lead)
        if not self.leads:
            self.unacknowledged.clear()
        if self.leads or state.leader == NO_LEADER:
            self.fetcher = self.request = self.response = None
            self.leader_id = NO_LEADER
            return
        if self.leader_id != state.leader:
            self.fetcher = Fetcher(self.broker_id, lambda: self.broker_epoch, FetchSettings())
            self.leader_id, self.request, self.response = state.leader, None, None
        assert self.fetcher is not None
        self.fetcher.follow("t", TOPIC_ID, 0, state.leader_epoch, self.log)

    # --- as a follower

    def ask(self, now_ms: int) -> None:
        if self.fetcher is not None and not self.fetcher.is_waiting:
            request = self.fetcher.next_request(now_ms)
            if request is not None:
                self.request = (self.leader_id, request)

    def lose_fetch(self, now_ms: int) -> None:
        if self.fetcher is not None and self.fetcher.is_waiting:
            self.request = self.response = None
            self.fetcher.failed(now_ms)

    def take(self, leader: "Node | None", now_ms: int) -> None:
        response, self.response = self.response, None
        assert self.fetcher is not None
        assert response is not None
        for decision in self.fetcher.answered(response, now_ms):
            following: Decision | None = decision
            while following is not None:
                following = self.carry_out(self.fetcher, following, leader, now_ms)

    def carry_out(self, fetcher: Fetcher, decision: Decision, leader: "Node | None", now_ms: int) -> Decision | None:
        following, log = decision.following, self.log
        if isinstance(decision, Append):
            log.append(*(decision.data.records or b""))
            log.update_high_watermark(max(log.high_watermark, decision.data.high_watermark))
            fetcher.appended(following, decision.data.high_watermark, had_records=bool(decision.data.records))
        elif isinstance(decision, Truncate):
            self.truncate(fetcher, following, decision.offset)
        elif isinstance(decision, AskOffsets):
            if leader is None or not leader.leads:
                fetcher.refused(following, now_ms)
            else:
                return fetcher.offsets_told(following, 0, leader.log.log_end_offset, now_ms)
        else:
            raise AssertionError("nothing is ever deleted")
        return None

    def truncate(self, fetcher: Fetcher, following: Following, offset: int) -> None:
        self.log.truncate_to(offset)
        fetcher.resumed(following)

    # --- as a leader

    def produce(self, rng: random.Random) -> None:
        """With acks=all."""
        try:
            self.partition.state.check_enough_replicas(self.log.config.min_insync_replicas)
        except ApiError:
            return
        for _ in range(rng.randint(1, 2)):
            epoch = self.partition.state.leader_epoch
            self.unacknowledged.append((self.log.log_end_offset, epoch))
            self.log.append(epoch)
        self.partition.advance()

    def serve(self, follower_id: int, request: FetchRequest) -> "Served":
        """Respond to a follower as the handler of Fetch does."""
        asked = [
            FetchPartition(
                "t",
                TOPIC_ID,
                partition.partition,
                partition.fetch_offset,
                partition.partition_max_bytes,
                partition.current_leader_epoch,
                partition.last_fetched_epoch,
                partition.log_start_offset,
            )
            for topic in request.topics
            for partition in topic.partitions
        ]
        forgotten = [(TOPIC_ID, index) for topic in request.forgotten_topics_data for index in topic.partitions]
        now_ms = self.clock.monotonic_ms()
        plan = self.sessions.plan(
            request.session_id, request.session_epoch, asked, forgotten, uses_topic_ids=True, now_ms=now_ms
        )
        replicas: Any = self
        fetch = ReplicaFetch(
            replicas,
            UnforeseenErrors(self.clock),
            plan,
            FetchLimits(request.max_wait_ms, request.min_bytes, request.max_bytes, policy=LOG_END),
            replica_id=follower_id,
            broker_epoch=request.replica_state.replica_epoch,
            now_ms=now_ms,
        )
        assert fetch.read_now() is None
        return Served(fetch, plan)

    def partition_or_error(self, _topic: str, _index: int) -> Partition:
        """The method of a ReplicaManager that `ReplicaFetch` calls."""
        return self.partition


@dataclass(eq=False)
class Served:
    """A fetch at the leader, after its first pass."""

    fetch: ReplicaFetch
    plan: FetchPlan

    def answer(self, now_ms: int) -> FetchResponse:
        if not self.fetch.is_satisfied:
            assert self.fetch.read_again() is None
        error, session_id, told = self.plan.sessions.finish(self.plan, self.fetch.results, now_ms)
        response = FetchResponse(error_code=error, session_id=session_id)
        for asked, data in told:
            response.responses.append(FetchableTopicResponse(topic_id=asked.topic_id, partitions=[data]))
        return response


class Walk:
    """A cluster of three brokers, the controller's state, and all next steps."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = ManualClock(now_ms=1_000_000)
        self.config = LogConfig(min_insync_replicas=self.rng.choice([1, 2]))
        self.controller_answers = self.rng.choice([0.1, 1.0])
        """How likely it is that the controller gets to a proposal when it could."""
        self.acknowledged: set[Record] = set()
        self.zxid = 100
        self.nodes: dict[int, Node | None] = {}
        self.disks = {broker_id: Disk(self.config) for broker_id in REPLICAS}
        state = PartitionState(REPLICAS[0], 0, REPLICAS, CONTROLLER_EPOCH, 0)
        topic = TopicState("t", TOPIC_ID, {0: ReplicaAssignment(REPLICAS)}, {0: state})
        self.cluster = ClusterState(topics={"t": topic})
        for broker_id in REPLICAS:
            self.nodes[broker_id] = Node(broker_id, self.disks[broker_id], self.clock)
            self._register(broker_id)
        for broker_id in REPLICAS:
            self._tell(broker_id)

    @property
    def state(self) -> PartitionState:
        return self.cluster.topics["t"].partitions[0]

    def living(self) -> list[Node]:
        return [node for node in self.nodes.values() if node is not None]

    # --- the controller -------------------------------------------------------------------------------

    def _register(self, broker_id: int) -> None:
        self.zxid += 1
        node = self.nodes[broker_id]
        assert node is not None
        node.broker_epoch = self.zxid
        self.cluster = self.cluster.with_brokers([BrokerRegistration(broker_id, (), epoch=self.zxid)])

    def _tell(self, broker_id: int) -> None:
        node, state = self.nodes[broker_id], self.state
        if node is None or broker_id not in self.cluster.brokers:
            return
        told = LeaderAndIsrPartitionState(
            controller_epoch=CONTROLLER_EPOCH,
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            isr=list(state.isr),
            replicas=list(REPLICAS),
        )
        node.commands.append((told, frozenset(self.cluster.brokers)))

    def _tell_all(self) -> None:
        for broker_id in REPLICAS:
            self._tell(broker_id)

    def expire(self, broker_id: int) -> None:
        """The controller counts a broker as dead, whether it is or not."""
        if broker_id in self.cluster.brokers:
            plan = plan_broker_loss(
                self.cluster, [broker_id], CONTROLLER_EPOCH, lambda _topic: False, self._commits_alone
            )
            self.cluster = plan.cluster
            node = self.nodes[broker_id]
            if node is not None:
                node.commands.clear()
            self._tell_all()

    def _commits_alone(self, _topic: str, _broker_id: int) -> bool:
        return self.config.min_insync_replicas < 2

    def come(self, broker_id: int) -> None:
        """A broker registers: a new one, an expired one, or one that died without an expired session."""
        self.expire(broker_id)
        self._register(broker_id)
        if self.state.leader == NO_LEADER:
            live = self.cluster.brokers
            elected = leader_for_offline(REPLICAS, self.state, live, CONTROLLER_EPOCH, unclean=False)
            if elected is not None:
                self.cluster = self.cluster.with_states({("t", 0): elected})
        self._tell_all()

    def alter(self, node: Node, *, answer_is_lost: bool) -> None:
        assert node.proposals.asked is not None
        asked, answered = node.proposals.asked
        topic = RequestTopicData(topic_id=TOPIC_ID, partitions=[asked])
        request = AlterPartitionRequest(broker_id=node.broker_id, broker_epoch=node.broker_epoch, topics=[topic])
        alteration = plan_alterations(self.cluster, request, CONTROLLER_EPOCH, self._commits_alone)
        self.cluster = alteration.plan.cluster
        if answer_is_lost or alteration.response.error_code:
            return  # it is asked again
        node.proposals.asked = None
        [answer] = alteration.response.topics[0].partitions
        if answered(answer):
            node.proposals.asked = (asked, answered)

    # --- what may happen ------------------------------------------------------------------------------

    def kill(self, node: Node, *, power_cut: bool) -> None:
        """End a broker; with a power cut what it wrote last may be lost, which is only survived as long as another
        replica in sync lives."""
        others = [member for member in self.state.isr if member != node.broker_id and self.nodes[member] is not None]
        self.nodes[node.broker_id] = None
        log = node.log
        log.high_watermark = self.rng.randint(0, log.high_watermark)
        if power_cut and others and self.state.leader in (*others, node.broker_id):
            log.truncate_to(self.rng.randint(max(0, log.log_end_offset - 3), log.log_end_offset))
            self.expire(node.broker_id)

    def start(self, broker_id: int) -> None:
        self.nodes[broker_id] = Node(broker_id, self.disks[broker_id], self.clock)
        self.come(broker_id)

    def step(self) -> None:
        rng, living = self.rng, self.living()
        dead = [broker_id for broker_id in REPLICAS if self.nodes[broker_id] is None]
        if not living or (dead and rng.random() < 0.05):
            self.start(rng.choice(dead))
            return
        [act] = rng.choices(list(ACTIONS), list(ACTIONS.values()))
        act(self, rng.choice(living))

    def die(self, node: Node) -> None:
        self.kill(node, power_cut=self.rng.random() < 0.5)
        if self.rng.random() < 0.5:
            self.start(node.broker_id)

    def give_up(self, node: Node) -> None:
        self.expire(node.broker_id)

    def register_again(self, node: Node) -> None:
        if node.broker_id not in self.cluster.brokers:
            self.come(node.broker_id)

    def break_connection(self, node: Node) -> None:
        node.lose_fetch(self.clock.monotonic_ms())

    def pass_time(self, _node: Node) -> None:
        self.clock.advance(self.rng.randint(1, LAG_MS_MAX))

    def look_at_isr(self, node: Node) -> None:
        if node.partition.leadership is not None:
            node.partition.leadership.look_at_isr()

    def produce(self, node: Node) -> None:
        if node.leads:
            node.produce(self.rng)

    def propose(self, node: Node) -> None:
        if node.proposals.asked is not None and self.rng.random() < self.controller_answers:
            self.alter(node, answer_is_lost=self.rng.random() < 0.2)

    def obey(self, node: Node) -> None:
        if node.commands:
            node.obey()

    def fetch(self, node: Node) -> None:
        """The next part of a fetch's way."""
        now_ms = self.clock.monotonic_ms()
        if node.response is not None:
            node.take(self.nodes[node.leader_id], now_ms)
        elif node.request is not None:
            leader_id, request = node.request
            leader = self.nodes[leader_id]
            if leader is None:
                node.lose_fetch(now_ms)
            else:
                waiting, served = leader.waiting.get(node.broker_id, (None, None))
                if served is None or waiting is not request:
                    leader.waiting[node.broker_id] = (request, leader.serve(node.broker_id, request))
                else:
                    node.request = None
                    node.response = served.answer(now_ms)
        else:
            node.ask(now_ms)

    # --- what must hold -------------------------------------------------------------------------------

    def check(self) -> None:
        for node in self.living():
            log = node.log
            assert 0 <= log.high_watermark <= log.log_end_offset
            if node.leads:
                done = [record for record in node.unacknowledged if record[0] < log.high_watermark]
                assert not done or len(node.partition.state.isr) >= self.config.min_insync_replicas, "too few in sync"
                self.acknowledged.update(done)
                node.unacknowledged = [record for record in node.unacknowledged if record not in done]
        for member in self.state.isr:
            missing = self.acknowledged.difference(self.disks[member].records)
            assert not missing, f"broker {member} is in sync without {sorted(missing)}"
        living = self.living()
        for one in living:
            for other in living:
                common = min(one.log.high_watermark, other.log.high_watermark)
                assert one.log.records[:common] == other.log.records[:common], (
                    f"brokers {one.broker_id} and {other.broker_id} differ below {common}"
                )

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
            self.check()
        self.heal()

    def heal(self) -> None:
        """From now on there are no faults."""
        for broker_id in REPLICAS:
            if self.nodes[broker_id] is None:
                self.start(broker_id)
            elif broker_id not in self.cluster.brokers:
                self.come(broker_id)
        for round_number in range(200):
            for node in self.living():
                while node.commands:
                    node.obey()
                self.clock.advance(20)
                for _ in range(4):
                    self.fetch(node)
                self.look_at_isr(node)
                if node.proposals.asked is not None:
                    self.alter(node, answer_is_lost=False)
                if round_number == 100 and node.broker_id == self.state.leader:
                    node.produce(self.rng)
                self.check()
        logs = [node.log for node in self.living()]
        assert set(self.state.isr) == set(REPLICAS), f"in sync are only {self.state.isr}"
        assert all(log.records == logs[0].records for log in logs), "logs differ"
        assert all(log.high_watermark == log.log_end_offset for log in logs), "not all is known to be committed"


ACTIONS = {
    Walk.die: 2,
    Walk.give_up: 1,
    Walk.register_again: 2,
    Walk.break_connection: 3,
    Walk.pass_time: 4,
    Walk.look_at_isr: 5,
    Walk.produce: 13,
    Walk.propose: 10,
    Walk.obey: 15,
    Walk.fetch: 45,
}
"""The actions of a living broker, and their frequencies, in per cent."""
