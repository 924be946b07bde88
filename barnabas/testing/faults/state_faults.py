"""Faults of a broker's state, rather than of single requests: a member that expires, a producer that is fenced, a
transaction that hangs. Each happens as in real life, by the broker's own functions for that case, so that its state
stays consistent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from barnabas.broker.cluster.metadata import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from barnabas.broker.coordinators.groups.events import (
    SESSION,
    ForgetTopics,
    JoinGroup,
    LeaveGroup,
    Leaver,
    TimerFired,
    TimerKey,
)
from barnabas.storage.segment_removal import retain
from barnabas.testing.contents.roles import check_partition
from barnabas.testing.contents.topic import Topic, topic_name
from barnabas.testing.faults import elections
from barnabas.testing.faults.fault import Fault, Registry, StateFault
from barnabas.testing.faults.fault_list import FaultList
from barnabas.testing.interception.selection import Matcher
from barnabas.testing.waiting.durations import Duration, whole_ms
from barnabas.testing.waiting.timeouts import TIMEOUT_S, with_timeout
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.records import Record, build_batch

if TYPE_CHECKING:
    from barnabas.broker.cluster.metadata import TopicMetadata
    from barnabas.broker.coordinators.groups.service import GroupRunner
    from barnabas.broker.coordinators.transactions.state import Transaction
    from barnabas.broker.server import Broker as Server
    from barnabas.controller.state import PartitionState
    from barnabas.testing.interception.request import Request
    from barnabas.wire.names import TopicId

T = TypeVar("T")

NOBODY: Final = 0
"""A placeholder that the coordinator replaces by its own."""

PHANTOM: Final = "barnabas.testing"
RETRY_S: Final = 0.01
RETRIES_MAX: Final = 3_000
ACKS_ALL: Final = -1
PRODUCE_VERSION: Final = 9
READ_UNCOMMITTED: Final = 0

_PASSING: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    }
)
"""The reasons why a marker cannot be written yet."""

_NOT_COORDINATED: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    }
)
"""The errors of brokers while none of them coordinates a group, or a transaction, yet."""

ASKED_FOR_LEADERS: Final = ("Metadata", "DescribeTopicPartitions")
ASKED_OF_LEADERS: Final = ("Produce", "Fetch", "ListOffsets", "OffsetForLeaderEpoch", "DeleteRecords")


class HangingTransaction(StateFault):
    """A transaction that was left open in a partition, unknown to any coordinator, until `remove()` aborts it, as
    `kafka-transactions.sh abort` does. Its hits are read_committed requests to the partition.
    """

    def __init__(
        self, among: Registry, topic: str, partition: int, producer_id: int, abort: Callable[[], None]
    ) -> None:
        def is_of_committed(request: Request) -> bool:
            return bool(getattr(request.message, "isolation_level", READ_UNCOMMITTED) != READ_UNCOMMITTED)

        where = {"topic": topic, "partition": partition, "predicate": is_of_committed}
        super().__init__(among, f"a transaction hangs in {topic}-{partition}", Matcher(None, where), abort)
        self.topic = topic
        self.partition = partition
        self.producer_id = producer_id


class OfflinePartition(StateFault):
    """A partition without a leader, until `remove()` has one elected, the former leader if possible, or another action
    does, such as the start of a broker. Its hits are requests for it that need its leader, or ask for it.
    """

    def __init__(
        self, among: StateFaults, topic: str, partition: int, former_leader: int, lead_again: Callable[[], None]
    ) -> None:
        matcher = Matcher((*ASKED_FOR_LEADERS, *ASKED_OF_LEADERS), {"topic": topic, "partition": partition})
        super().__init__(among, f"{topic}-{partition} is offline", matcher, lead_again)
        self._state_faults = among
        self.topic = topic
        self.partition = partition
        self.former_leader = former_leader

    def _is_undone(self) -> bool:
        return self._state_faults._is_led(self.topic, self.partition)

    def _is_hit(self, request: Request) -> bool:
        if self._is_undone():
            self._state_faults._tell_loop(self._state_faults._end_undone)
            return False
        return super()._is_hit(request)


def is_offline(faults: Iterable[Fault], topic: str, partition: int) -> bool:
    """Whether one of these faults has removed the leader of a partition."""
    found = (each for each in faults if isinstance(each, OfflinePartition))
    return any((each.topic, each.partition) == (topic, partition) for each in found)


def check_is_online(faults: Iterable[Fault], topic: str, partition: int) -> None:
    """Errors: ApiError LEADER_NOT_AVAILABLE for a partition that has no leader because of one of these faults."""
    if is_offline(faults, topic, partition):
        told = f"{topic}-{partition} is offline by a fault: remove() it first"
        raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, told)


class StateFaults(FaultList):
    """The methods that change the state of a broker, or a cluster; part of `Faults`. They need it to run.

    Errors of all: ApiError with Kafka's error if there is no such group, member, transactional id or partition;
    RuntimeError when no broker runs.
    """

    # --- leaders ----------------------------------------------------------------------------------

    def move_leader(self, topic: str | Topic, partition: int = 0, *, to: int | None = None) -> int:
        """Elect another broker of a cluster as the leader of a partition, or broker `to`: one that is in sync. All
        brokers know it on return. Returns the new leader.

        Errors: ApiError ELIGIBLE_LEADERS_NOT_AVAILABLE, if no other broker can lead it.
        """
        topic = topic_name(topic)
        return self._elect(topic, partition, elections.another(to))

    def move_coordinator(
        self, *, group: str | None = None, transactional_id: str | None = None, to: int | None = None
    ) -> int:
        """Make another broker of a cluster, or broker `to`, the coordinator of a consumer group, or of the transactions
        of a transactional id, and of all others in the same partition of the internal topic. Returns the new
        coordinator.

        Errors: as of `move_leader`; ValueError unless one of the two is given.
        """
        if (group is None) == (transactional_id is None):
            raise ValueError("the coordinator needs one name: pass group=... or transactional_id=...")

        async def partition() -> int:
            server = self._any_server()
            runtime = server.groups.runtime if transactional_id is None else server.transactions.runtime
            return runtime.partition_for(group if transactional_id is None else transactional_id)  # type: ignore[arg-type]

        topic = GROUP_METADATA_TOPIC if transactional_id is None else TRANSACTION_STATE_TOPIC
        return self.move_leader(topic, self._call(partition()), to=to)

    def raise_leader_epoch(self, topic: str | Topic, partition: int = 0) -> int:
        """Elect the leader of a partition again: requests of clients with the former leader epoch fail with
        FENCED_LEADER_EPOCH. Returns the new leader epoch.
        """
        topic = topic_name(topic)
        self._elect(topic, partition, elections.the_same)

        async def epoch() -> int:
            return self._leader(topic, partition).replicas.partition_or_error(topic, partition).state.leader_epoch

        return self._call(epoch())

    def partition_offline(self, topic: str | Topic, partition: int = 0) -> OfflinePartition:
        """Remove the leader of a partition, as if all its replicas were absent, until the fault is removed: metadata
        has LEADER_NOT_AVAILABLE, and other requests for it fail with NOT_LEADER_OR_FOLLOWER. Its brokers keep their
        data. The start of a broker also elects a leader, which ends the fault.
        """
        topic = topic_name(topic)
        former: list[int] = []

        def choose(state: PartitionState, able: list[int]) -> int:
            former.append(state.leader)
            return elections.nobody(state, able)

        def lead_again() -> None:
            if self._owner.live_servers():  # else the next start elects a leader anyway
                with suppress(ApiError):  # its topic was deleted
                    self._elect(topic, partition, elections.whoever_can(former[0]))

        self._elect(topic, partition, choose)
        return self._add(OfflinePartition(self, topic, partition, former[0], lead_again))

    def _elect(self, topic: str, partition: int, choose: elections.Choose) -> int:
        """Run an election; returns the leader, once all brokers know it. Errors: TimeoutError."""

        async def elect() -> int:
            owner = self._owner
            controller = await owner._eventually(owner._controlling, "no broker is the controller")
            await elections.elect(controller.controller, topic, partition, choose)
            wanted = controller.controller.cluster.topics[topic].partitions[partition]

            await owner._settle([topic], in_faults=True)
            return wanted.leader

        return self._call(elect())

    # --- records ----------------------------------------------------------------------------------

    def age_records(self, topic: str | Topic, duration: Duration, partition: int | None = None) -> None:
        """Apply retention once, now, as if the records of a topic, or of one partition, were older by this duration, a
        timedelta or ms: records that `retention.ms` would have deleted after that time are deleted, on all brokers,
        while the brokers' time, and the timestamps of the remaining records, do not change.

        Errors: ApiError UNKNOWN_TOPIC_OR_PARTITION.
        """
        topic = topic_name(topic)
        milliseconds = whole_ms(duration)

        async def age() -> None:
            known = self._first(lambda server: _known_topic(server, topic))
            wanted = sorted(known.partitions) if partition is None else [partition]
            for index in wanted:
                check_partition(known, index)
            for server in self._owner.live_servers():
                now_ms = server.clock.now_ms() + milliseconds
                for index in wanted:
                    hosted = server.replicas.partition(topic, index)
                    if hosted is not None and retain(hosted.log, now_ms):
                        hosted.notify()

        self._call(age())

    # --- groups -----------------------------------------------------------------------------------

    def expire_member(self, group: str, member_id: str | None = None) -> list[str]:
        """Expire the session of a member of a consumer group now, or those of all members, as if no heartbeat had
        arrived within the timeout: the group rebalances without them. Returns the members' ids.
        """

        async def expire() -> list[str]:
            runner = await self._group(group)
            found = runner.shard.groups.get(group)
            members = sorted(found.members) if found is not None else []
            expiring = members if member_id is None else [member_id]
            if not expiring or not set(expiring) <= set(members):
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {group} has the members {members}")
            for each in expiring:
                runner.tell(TimerFired(group, TimerKey(SESSION, each)))
            return expiring

        return self._call(expire())

    def rebalance(self, group: str) -> None:
        """Start a rebalance of a consumer group, like a member that joins and leaves at once. Needs members."""

        async def join_and_leave() -> None:
            runner = await self._group(group)
            found = runner.shard.groups.get(group)
            if found is None or not found.members:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {group} has no members that could rebalance")
            known = set(found.members)
            like = next(iter(found.members.values()))
            joining = runner.ask(
                JoinGroup(
                    group_id=group,
                    token=NOBODY,
                    member_id="",
                    group_instance_id=None,
                    client_id=PHANTOM,
                    client_host="127.0.0.1",
                    session_timeout_ms=like.session_timeout_ms,
                    rebalance_timeout_ms=like.rebalance_timeout_ms,
                    protocol_type=like.protocol_type,
                    protocols=like.protocols,
                    reason="a test wants a rebalance",
                    fresh_id=self._new_id(),
                    member_id_required=False,
                    can_skip_assignment=False,
                )
            )
            for phantom in set(runner.shard.groups[group].members) - known:
                leaving = runner.ask(LeaveGroup(group, NOBODY, (Leaver(phantom, None, "as it was meant to"),)))
                await _reply(leaving)
            await _reply(joining)

        self._call(join_and_leave())

    def lose_offsets(self, group: str, topic: str | Topic) -> None:
        """Delete a consumer group's committed offsets of a topic, as after `offsets.retention.minutes`: its consumers
        continue, until they fetch their committed offsets.

        Errors: ApiError GROUP_ID_NOT_FOUND, UNKNOWN_TOPIC_OR_PARTITION if it has committed none of the topic.
        """
        topic = topic_name(topic)

        async def forget() -> None:
            runner = await self._group(group)
            offsets = runner.shard.offsets
            topics = {name for name, _, _ in offsets.of_group(group)}
            topics |= {name for name, _ in offsets.pending_of_group(group)}
            if group not in runner.shard.groups and not topics:
                raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group}")
            if topic not in topics:
                others = f", but of {', '.join(sorted(topics))}" if topics else ""
                error = f"group {group} has committed no offsets of topic {topic}{others}"
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, error)
            runner.tell(ForgetTopics(group, frozenset({topic})))

        self._call(forget())

    async def _group(self, group: str) -> GroupRunner:
        if not any(GROUP_METADATA_TOPIC in server.metadata for server in self._owner.live_servers()):
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group}: no member has joined it yet")
        return await self._coordinated(lambda server: server.groups.runtime.runner(group))

    def _new_id(self) -> str:
        return self._owner.live_servers()[0].groups.new_id()

    # --- transactions -----------------------------------------------------------------------------

    def fence_producer(self, transactional_id: str) -> None:
        """Fence a transactional producer, as another one with its transactional id does: its open transaction is
        aborted, and its next request fails because it is fenced.
        """

        async def fence() -> None:
            from barnabas.broker.coordinators.transactions.events import InitProducerId

            found, server = await self._transaction(transactional_id)
            event = InitProducerId(transactional_id, NOBODY, found.timeout_ms)
            await _settled(lambda: server.transactions.producer(event))

        self._call(fence())

    def abort_transaction(self, transactional_id: str) -> None:
        """Abort an open transaction without its producer, as after its timeout: under a new epoch, so that the
        producer's next request, including records for other partitions, is refused (INVALID_PRODUCER_EPOCH).

        Errors: ApiError INVALID_TXN_STATE when none is open.
        """

        async def abort() -> None:
            from barnabas.broker.coordinators.transactions.events import EPOCH_BUMP_VERSION, EndTransaction
            from barnabas.broker.coordinators.transactions.state import TransactionState

            found, server = await self._transaction(transactional_id)
            if found.state is not TransactionState.ONGOING:
                raise ApiError(ErrorCode.INVALID_TXN_STATE, f"no transaction of {transactional_id} is open")
            producer = (found.producer_id, found.producer_epoch)
            event = EndTransaction(
                transactional_id, NOBODY, *producer, is_commit=False, client_version=EPOCH_BUMP_VERSION
            )
            await _settled(lambda: server.transactions.producer(event))

        self._call(abort())

    def hang_transaction(self, topic: str | Topic, partition: int = 0) -> HangingTransaction:
        """Leave a transaction open in a partition that no coordinator will ever end, as brokers before Kafka 3.6 could
        (KIP-890), until the fault is removed: consumers with isolation.level=read_committed do not progress. One record
        is written for it, which is invisible to read_committed consumers.
        """
        topic = topic_name(topic)

        async def hang() -> tuple[int, TopicId]:
            server = self._leader(topic, partition)
            producer_id = await server.producer_ids.next()
            record = Record(0, server.clock.now_ms(), None, b"", [], 0)
            batch = build_batch(
                [record], producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True
            )
            server.replicas.append(topic, partition, batch, ACKS_ALL, PRODUCE_VERSION)
            return producer_id, server.metadata.topic_id(topic)

        producer_id, topic_id = self._call(hang())
        abort = partial(self._abort_hanging, topic, topic_id, partition, producer_id)
        return self._add(HangingTransaction(self, topic, partition, producer_id, abort))

    def _abort_hanging(self, topic: str, topic_id: TopicId, partition: int, producer_id: int) -> None:
        """Abort a transaction that was left open, as soon as its partition has a leader; does nothing if its topic was
        deleted. Errors: ApiError, TimeoutError.
        """
        owner = self._owner

        async def abort() -> None:
            from barnabas.broker.coordinators.transactions.markers import TransactionMarker

            marker = TransactionMarker(producer_id, 0, 0, is_commit=False, transaction_version=0)
            while any(server.metadata.topic_id(topic) == topic_id for server in owner.live_servers()):
                leader = (await owner._leading(topic, partition)).server
                try:
                    written = leader.services.transaction_markers.write(topic, partition, marker)
                    if written is not None:
                        await written
                    return
                except ApiError as error:
                    if error.error not in _PASSING:
                        raise
                await asyncio.sleep(RETRY_S)

        async def abort_in_time() -> None:
            await with_timeout(abort(), TIMEOUT_S, lambda: f"a transaction hangs in {topic}-{partition} still")

        try:
            self._call(abort_in_time())
        except ApiError as error:
            if error.error is not ErrorCode.KAFKA_STORAGE_ERROR:
                raise
            hanging = f"the transaction that hangs in {topic}-{partition} cannot be aborted, as its disk has failed"
            raise ApiError(error.error, f"{hanging}: restart() first, and remove() the fault then") from error

    async def _transaction(self, transactional_id: str) -> tuple[Transaction, Server]:
        unknown = ApiError(
            ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, f"no producer has the transactional id {transactional_id}"
        )
        servers = self._owner.live_servers()
        if servers and not any(TRANSACTION_STATE_TOPIC in server.metadata for server in servers):
            raise unknown  # before the first transaction there is no coordinator

        def find(server: Server) -> tuple[Transaction, Server] | None:
            try:
                return server.transactions.describe(transactional_id), server
            except ApiError as error:
                if error.error is unknown.error:  # its coordinator says so
                    return None
                raise

        if (found := await self._coordinated(find)) is None:
            raise unknown
        return found

    # --- inside -----------------------------------------------------------------------------------

    def _leader(self, topic: str, partition: int) -> Server:
        check_partition(self._first(lambda server: _known_topic(server, topic)), partition)

        def leads(server: Server) -> Server:
            server.replicas.partition_or_error(topic, partition).state.check_leader()
            return server

        return self._first(leads)

    def _first(self, find: Callable[[Server], T]) -> T:
        """The result of the first broker that does not raise; else the error of the last one."""
        error = ApiError(ErrorCode.BROKER_NOT_AVAILABLE, "no broker runs")
        for server in self._owner.live_servers():
            try:
                return find(server)
            except ApiError as refused:
                error = refused
        raise error

    async def _coordinated(self, find: Callable[[Server], T]) -> T:
        """The result of a coordinator, as soon as there is one: a new one loads its log first. Errors: ApiError, that
        of the last broker if there is no coordinator within half a minute.
        """
        for _ in range(RETRIES_MAX):
            try:
                return self._first(find)
            except ApiError as error:
                if error.error not in _NOT_COORDINATED:
                    raise
            await asyncio.sleep(RETRY_S)
        return self._first(find)

    def _is_led(self, topic: str, partition: int) -> bool:
        """Whether a broker considers itself the leader of a partition. Broker's loop only."""
        return self._owner._led_by_its_word(topic, partition) is not None

    def _any_server(self) -> Server:
        return self._first(lambda server: server)

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._owner.call(coroutine)


def _known_topic(server: Server, name: str) -> TopicMetadata:
    found = server.metadata.topic(name)
    if found is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
    return found


async def _reply(reply: Any) -> Any:
    return await reply if isinstance(reply, asyncio.Future) else reply


async def _settled(ask: Callable[[], Awaitable[Any]]) -> None:
    """Repeat a request to a transaction's coordinator until no other step of the same transaction is in progress; for
    half a minute: if its log, or a partition, cannot be written, that step does not end.

    Errors: ApiError, CONCURRENT_TRANSACTIONS then.
    """
    for _ in range(RETRIES_MAX):
        reply = await ask()
        if reply.error is ErrorCode.NONE:
            return
        if reply.error is not ErrorCode.CONCURRENT_TRANSACTIONS:
            raise ApiError(reply.error)
        await asyncio.sleep(RETRY_S)
    raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
