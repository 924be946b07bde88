"""State that the operations of a controller share: the cluster as of the last decision, and the means for the next one.

*Source*: kafka 3.9.1 `ControllerContext.scala`.
"""

from collections.abc import Callable, Collection
from typing import Any, NamedTuple, Protocol, TypeVar

from barnabas.controller import requests
from barnabas.controller.admin_request import AdminRequest
from barnabas.controller.broker_commands import BrokerCommands
from barnabas.controller.configs import ConfigRepository
from barnabas.controller.controller_election import ControllerElection
from barnabas.controller.coordination.interface import CoordinationStore
from barnabas.controller.deletions import Deletions
from barnabas.controller.event_queue import EventQueue, Work
from barnabas.controller.partition_fsm import PartitionStateMachine, PartitionStatus
from barnabas.controller.plan import TRANSACTION_BYTES_MAX, Plan
from barnabas.controller.refusals import Refusals
from barnabas.controller.sessions import StoreSessions
from barnabas.controller.state import ClusterState, LogEnd, TopicPartition
from barnabas.controller.topics import PARTITIONS_MAX, TopicDefaults, is_valid_topic_name
from barnabas.controller.znodes import DEFAULT_ENTITY
from barnabas.timers import Timers
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.names import random_topic_id

Answer = TypeVar("Answer")

ALLOCATION_TIMEOUT_MS = 5_000
"""The time that a producer waits for its id when the store is unreachable."""

MIN_INSYNC_REPLICAS = "min.insync.replicas"

STOP_PATIENCE_MS = 3_000
"""The time that a stop waits for the current event, which may wait for an unreachable store."""


class ControllerSettings(NamedTuple):
    """The controller's settings from the broker's configuration, and bounds that tests reduce; `cluster_id` is for a
    new cluster, or for comparison.
    """

    topic_defaults: TopicDefaults = TopicDefaults()
    delete_topic_enable: bool = True
    unclean_leader_election_enable: bool = False
    auto_leader_rebalance_enable: bool = True
    leader_imbalance_check_interval_ms: int = 300_000
    inter_broker_listener: str | None = None
    cluster_id: str | None = None
    partitions_max: int = PARTITIONS_MAX
    transaction_bytes_max: int = TRANSACTION_BYTES_MAX
    allocation_timeout_ms: int = ALLOCATION_TIMEOUT_MS
    stop_patience_ms: int = STOP_PATIENCE_MS


class PeriodicWork(Protocol):
    """Work that is repeated from `begin` on until `stop`."""

    def begin(self) -> None: ...

    def stop(self) -> None: ...


class ControllerContext:
    """The state and the parts of one controller.

    Operations change it only in the controller's task, one after the other, so that each sees the result of the one
    before; any code on the event loop may read `cluster`, `settings` and `is_active`.
    """

    def __init__(
        self,
        settings: ControllerSettings,
        sessions: StoreSessions,
        election: ControllerElection,
        brokers: BrokerCommands,
        configs: ConfigRepository,
        timers: Timers,
        events: EventQueue,
        refusals: Refusals,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self.settings = settings
        self.sessions = sessions
        self.election = election
        self.brokers = brokers
        self.configs = configs
        self.timers = timers
        self.events = events
        self.refusals = refusals
        self._random_bytes = random_bytes
        self.cluster_id = ""
        """Known once the broker has joined the cluster."""
        self.is_active = False
        self.cluster = ClusterState()
        self.machine = PartitionStateMachine()
        self.deletions = Deletions()
        self.log_ends: dict[TopicPartition, dict[int, LogEnd]] = {}
        """The reports of replicas, by broker, for partitions whose states are lost."""
        self.left_out: frozenset[str] = frozenset()
        """Topics whose znode cannot be read."""
        self.leader_balance: PeriodicWork | None = None
        """Leads partitions back to their preferred leaders; created when the cluster has several brokers."""

    @property
    def store(self) -> CoordinationStore:
        """The controller's current session with the metadata store."""
        return self.sessions.store

    def unclean_election_is_allowed(self, topic: str) -> bool:
        """`unclean.leader.election.enable` of a topic."""
        value = self.configs.overrides("topics", topic).get("unclean.leader.election.enable")
        return self.settings.unclean_leader_election_enable if value is None else value.strip().lower() == "true"

    def commits_alone(self, topic: str, broker_id: int) -> bool:
        """Whether `min.insync.replicas`, as a broker applies it to a topic, lets one replica commit; see
        `leadership.CommitsAlone`.
        """
        value = self.configs.overrides("topics", topic).get(MIN_INSYNC_REPLICAS)
        return self.commits_alone_by_default(broker_id) if value is None else _is_one(value)

    def commits_alone_by_default(self, broker_id: int) -> bool:
        """The same for topics without their own setting. Assumed for an absent broker, unless a dynamic broker config
        says otherwise.
        """
        for name in (str(broker_id), DEFAULT_ENTITY):
            value = self.configs.overrides("brokers", name).get(MIN_INSYNC_REPLICAS)
            if value is not None:
                return _is_one(value)
        broker = self.cluster.brokers.get(broker_id)
        return broker is None or broker.min_insync_replicas < 2

    async def ask(self, work: Work, request: AdminRequest[Answer]) -> Answer:
        """Submit an operation for a request, and wait for the response; called by the task that serves the client.

        Raises: ApiError(NOT_CONTROLLER), ApiError(KAFKA_STORAGE_ERROR) if the decision could not be written,
        ApiError(REQUEST_TIMED_OUT) if it is unknown whether it was.
        """
        if not self.is_active:
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        self.events.submit(work, request)
        return await request.answer()

    def when_own_told(self, call: Callable[[], None], request: AdminRequest[Any]) -> None:
        """Call, in the controller's task, when the own broker has responded to all commands so far; if the cluster is
        taken over meanwhile, to the commands of the take-over too. It is for a decided `request`, which is completed at
        once if this broker is not the controller any more.
        """
        brokers = self.brokers
        if brokers.own_id not in brokers.met:
            return request.fail(ApiError(ErrorCode.NOT_CONTROLLER))
        term = brokers.term

        async def finish() -> None:
            if brokers.term == term:
                call()
            else:
                self.when_own_told(call, request)

        return brokers.when_answered([brokers.own_id], lambda: self.events.submit(finish, request))

    def when_served(
        self, partitions: Collection[TopicPartition], request: AdminRequest[Answer], answer: Answer
    ) -> None:
        """Complete a request when the own broker knows these partitions, about which all brokers were informed, and
        each one that a broker has refused meanwhile has a leader that did not.
        """
        self.refusals.expect(partitions, request)
        self.when_own_told(lambda: self.refusals.finish_when_served(partitions, request, answer, self.cluster), request)

    def end_retries(self) -> None:
        """Brokers have obeyed: if no refused replica is left, the next refusal is retried soon."""
        if not self.cluster.deleting and not any(self.cluster.offline_replicas.values()):
            self.refusals.retry_ends()

    def type_of_roles(self, request_type: int) -> int:
        """The type for a LeaderAndIsr of `request_type`: never FULL while topics are left out whose logs brokers may
        have, as a broker sets aside the logs that a full command does not name.
        """
        return requests.INCREMENTAL if self.unread_topics else request_type

    @property
    def unread_topics(self) -> list[str]:
        """The topics that are left out and that brokers may have."""
        return list(filter(is_valid_topic_name, self.left_out))

    def stop_timers(self) -> None:
        """Stop the timers of operations: from now on only requests start work."""
        self.refusals.stop()
        if self.leader_balance is not None:
            self.leader_balance.stop()

    def adopt(self, plan: Plan) -> None:
        """Adopt a written plan as the current state."""
        self.cluster = plan.cluster
        led: list[TopicPartition] = []
        leaderless: list[TopicPartition] = []
        for name, partition in plan.told:
            state = plan.cluster.topics[name].partitions[partition]
            (leaderless if state.leader < 0 else led).append((name, partition))
        self.machine.move(led, PartitionStatus.ONLINE)
        self.machine.move(leaderless, PartitionStatus.OFFLINE)

    def random_index(self, bound: int) -> int:
        """A random integer from 0 to `bound` - 1."""
        return int.from_bytes(self._random_bytes(8), "big") % bound

    def new_topic_id(self) -> bytes:
        """A new unique topic id."""
        return random_topic_id(self._random_bytes)


def _is_one(min_insync_replicas: str) -> bool:
    """Whether a setting lets one replica commit. True for an invalid setting: a broker then applies another one."""
    text = min_insync_replicas.strip()
    return not (text.isdecimal() and 2 <= int(text) < 2**31)
