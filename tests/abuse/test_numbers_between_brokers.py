"""Attacks with numbers that come from a broker: what brokers ask of each other, on their listener, each field at its
extremes. Who is registered is believed, as by Kafka: what is asked is answered with an error or obeyed, and whatever
that is about, everything else goes on.

What one of them says of the controller's epoch is for all, and has a test of its own.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from barnabas.broker.handlers import apis_between_brokers, load_handler, served_apis
from barnabas.broker.network.peer_connection import PeerConnection, PeerUnavailable
from barnabas.broker.parts import REPLICA_FETCH_SESSIONS_MAX
from barnabas.broker.security.broker_secrets import credentials_of_broker
from barnabas.broker.security.sasl import plain
from barnabas.broker.server import Broker
from barnabas.clock import SystemClock
from barnabas.controller import znodes
from barnabas.controller.coordination.embedded import EmbeddedStore
from barnabas.controller.state import BrokerRegistration, EndPoint
from barnabas.controller.topics import NewTopic
from barnabas.storage.check.directory import check_directory
from barnabas.storage.check.report import Level
from barnabas.storage.os_files import OsFiles
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import (
    allocate_producer_ids,
    alter_partition,
    controlled_shutdown,
    fetch,
    leader_and_isr,
    list_offsets,
    offset_for_leader_epoch,
    sasl_authenticate,
    sasl_handshake,
    stop_replica,
    update_metadata,
)
from barnabas.wire.records import Record, build_batch
from barnabas.wire.schema import Message
from tests.broker.handlers.test_between_brokers import LISTENERS
from tests.broker.running import ENVIRONMENT, running
from tools.attack.extremes import EXTREMES, TEXTS, Change, changes
from tools.attack.requests import REQUESTS, WITH_SASL
from tools.attack.stage import errors
from tools.waiting import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.listener("brokers")]
Figure = Callable[..., None]

OTHER: Final = 7
EPOCH_MAX: Final = 2**31 - 1
MAY_WAIT: Final = (fetch.FetchRequest, controlled_shutdown.ControlledShutdownRequest)
"""Fetches wait as long as they say; who stops is answered when the others have been told, or time has passed."""
OF_ITSELF: Final = (
    leader_and_isr.LeaderAndIsrRequest,
    update_metadata.UpdateMetadataRequest,
    stop_replica.StopReplicaRequest,
    alter_partition.AlterPartitionRequest,
)
"""Requests in the name of the broker itself, as controller and leader, over a connection that has shown its secret."""
MAY_WAIT_S: Final = 0.05
IDLE_S: Final = 1.0
ATTEMPTS: Final = 100
IDLE_SHARE_MAX: Final = 0.3


class Pair:
    """A broker that governs, and the connections of another one that is registered and not there: it is what the test
    says. That one has no secret, so that it is believed."""

    def __init__(self, broker: Broker, other_epoch: int) -> None:
        self.broker = broker
        self.other_epoch = other_epoch
        self.sent = self.waited = self.closed = 0
        self.count = 0
        self.topic_id = b""
        self._peers: dict[bool, PeerConnection] = {}
        self._former: list[PeerConnection] = []

    async def prepare(self) -> None:
        """A topic that both have, in which the broker leads, with a record."""
        (outcome,) = await self.broker.controller.create_topics([NewTopic("t", assignments=[(0, (0, OTHER))])])
        assert outcome.error is ErrorCode.NONE
        topic = self.broker.metadata.topic("t")
        assert topic is not None
        self.topic_id = topic.topic_id
        self.append()

    def append(self) -> None:
        self.broker.replicas.append("t", 0, build_batch([Record(0, 1_700_000_000_000, None, b"v")]), 1, 13)

    @property
    def command(self) -> dict[str, int]:
        """How a command of the controller begins."""
        controller = self.broker.controller
        return {
            "controller_id": self.broker.node_id,
            "controller_epoch": controller.epoch,
            "broker_epoch": controller.broker_epoch,
        }

    def new_topic(self) -> dict[str, Any]:
        """One that nobody knows yet."""
        self.count += 1
        return {"topic_name": f"x-{self.count}", "topic_id": self.count.to_bytes(16, "big")}

    async def send(self, request: Message, version: int, may_wait: bool | None = None) -> Message | None:
        """The answer; None where it waits, as `MAY_WAIT` or `may_wait` says that it may, or the connection was closed
        instead."""
        is_own = isinstance(request, OF_ITSELF)
        peer = self._peers.get(is_own) or self._connect(is_own)
        self.sent += 1
        may_wait = isinstance(request, MAY_WAIT) if may_wait is None else may_wait
        try:
            answer: Message = await asyncio.wait_for(
                peer.send(request, version), MAY_WAIT_S if may_wait else PATIENCE_S
            )
        except TimeoutError:
            assert may_wait, f"no answer to {request}"
            self.waited += 1
        except PeerUnavailable:
            self.closed += 1
        else:
            return answer
        self.leave(is_own)
        return None

    def _connect(self, is_own: bool) -> PeerConnection:
        broker = self.broker
        port = broker.socket_server.ports["BROKERS"]
        self._peers[is_own] = PeerConnection(
            broker.environment.network,
            lambda: ("127.0.0.1", port),
            broker.timers,
            "broker-7-test",
            round(PATIENCE_S * 1000),
            credentials=credentials_of_broker(broker.node_id, broker._secret) if is_own else None,
        )
        return self._peers[is_own]

    def leave(self, is_own: bool) -> None:
        """Have the next request go over a new connection."""
        if is_own in self._peers:
            self._former.append(self._peers.pop(is_own))

    def close(self) -> None:
        for peer in (*self._peers.values(), *self._former):
            peer.close()


@asynccontextmanager
async def pair(data_dir: Path) -> AsyncIterator[Pair]:
    store = EmbeddedStore(":memory:", SystemClock(), is_durable=False)
    await store.open()
    session = await store.session()
    found: Pair | None = None
    try:
        async with running(
            data_dir,
            replace(ENVIRONMENT, metadata_store=store),
            broker_id="0",
            **LISTENERS,
        ) as broker:
            registration = BrokerRegistration(OTHER, (EndPoint("BROKERS", "127.0.0.1", 1),))
            path = znodes.broker_path(OTHER)
            await session.create(path, znodes.encode_broker(registration, 0), ephemeral=True)
            stat = await session.exists(path)
            assert stat is not None
            found = Pair(broker, stat.czxid)
            is_told = asyncio.Event()
            broker.metadata.listeners[is_told.set] = None
            while OTHER not in broker.metadata.broker_ids():
                is_told.clear()
                await is_told.wait()
            await found.prepare()
            yield found
            found.close()
    finally:
        await session.close()
        await store.close()


# --- what is asked --------------------------------------------------------------------------------


def _lead(pair: Pair, _version: int) -> Message:
    return _role(pair, pair.broker.node_id)


def _follow(pair: Pair, _version: int) -> Message:
    return _role(pair, OTHER)


def _role(pair: Pair, leader: int) -> Message:
    both = [pair.broker.node_id, OTHER]
    state = leader_and_isr.LeaderAndIsrPartitionState(
        leader=leader, replicas=both, isr=both, adding_replicas=[OTHER], removing_replicas=[OTHER],
        leader_epoch=1, partition_epoch=1, controller_epoch=1, is_new=True,
    )  # fmt: skip
    return leader_and_isr.LeaderAndIsrRequest(
        **pair.command,
        topic_states=[leader_and_isr.LeaderAndIsrTopicState(**pair.new_topic(), partition_states=[state])],
        live_leaders=[leader_and_isr.LeaderAndIsrLiveLeader(broker_id=OTHER, host_name="h", port=1)],
    )


def _tell(pair: Pair, _version: int) -> Message:
    node = pair.broker.node_id
    state = update_metadata.UpdateMetadataPartitionState(
        leader=node, replicas=[node, OTHER], isr=[node], offline_replicas=[OTHER], leader_epoch=1, zk_version=1
    )
    return update_metadata.UpdateMetadataRequest(
        **pair.command,
        topic_states=[update_metadata.UpdateMetadataTopicState(**pair.new_topic(), partition_states=[state])],
        live_brokers=[
            update_metadata.UpdateMetadataBroker(
                id=broker,
                endpoints=[update_metadata.UpdateMetadataEndpoint(host="127.0.0.1", port=1, listener="BROKERS")],
                rack="r",
            )
            for broker in (OTHER, node)
        ],
    )


def _stop(pair: Pair, _version: int) -> Message:
    state = stop_replica.StopReplicaPartitionState(leader_epoch=1, delete_partition=True)
    topic = stop_replica.StopReplicaTopicState(topic_name=f"x-{pair.count}", partition_states=[state])
    return stop_replica.StopReplicaRequest(**pair.command, topic_states=[topic])


def _fetch(pair: Pair, version: int) -> Message:
    topic: dict[str, Any] = {"topic_id": pair.topic_id} if version >= 13 else {"topic": "t"}
    partition = fetch.FetchPartition(partition_max_bytes=1 << 20)
    request = fetch.FetchRequest(
        min_bytes=1, max_bytes=1 << 20, topics=[fetch.FetchTopic(**topic, partitions=[partition])]
    )
    if version >= 15:
        request.replica_state = fetch.ReplicaState(replica_id=OTHER, replica_epoch=pair.other_epoch)
    else:
        request.replica_id = OTHER
    if version >= 5:
        partition.log_start_offset = 0
    if version >= 7:
        request.session_epoch = 0
        request.forgotten_topics_data = [fetch.ForgottenTopic(**topic, partitions=[1])]
    return request


def _offsets(_: Pair, _version: int) -> Message:
    partition = list_offsets.ListOffsetsPartition(current_leader_epoch=-1, timestamp=-1)
    return list_offsets.ListOffsetsRequest(
        replica_id=OTHER, topics=[list_offsets.ListOffsetsTopic(name="t", partitions=[partition])]
    )


def _epochs(_: Pair, _version: int) -> Message:
    partition = offset_for_leader_epoch.OffsetForLeaderPartition(leader_epoch=0)
    topic = offset_for_leader_epoch.OffsetForLeaderTopic(topic="t", partitions=[partition])
    return offset_for_leader_epoch.OffsetForLeaderEpochRequest(replica_id=OTHER, topics=[topic])


def _alter(pair: Pair, _version: int) -> Message:
    controller = pair.broker.controller
    known = controller.cluster.topics["t"].partitions[0]
    member = alter_partition.BrokerState(broker_id=pair.broker.node_id, broker_epoch=controller.broker_epoch)
    partition = alter_partition.RequestPartitionData(
        leader_epoch=known.leader_epoch,
        new_isr_with_epochs=[member],
        partition_epoch=known.partition_epoch,
    )
    topic = alter_partition.RequestTopicData(topic_id=pair.topic_id, partitions=[partition])
    named = {"broker_id": pair.broker.node_id, "broker_epoch": controller.broker_epoch}
    return alter_partition.AlterPartitionRequest(**named, topics=[topic])


def _shut_down(pair: Pair, _version: int) -> Message:
    return controlled_shutdown.ControlledShutdownRequest(broker_id=OTHER, broker_epoch=pair.other_epoch)


def _allocate(pair: Pair, _version: int) -> Message:
    return allocate_producer_ids.AllocateProducerIdsRequest(broker_id=OTHER, broker_epoch=pair.other_epoch)


def _handshake(_: Pair, _version: int) -> Message:
    return sasl_handshake.SaslHandshakeRequest(mechanism=plain.MECHANISM)


def _authenticate(pair: Pair, _version: int) -> Message:
    shown = credentials_of_broker(pair.broker.node_id, pair.broker._secret)
    return sasl_authenticate.SaslAuthenticateRequest(auth_bytes=plain.encode(shown))


Builder = Callable[[Pair, int], Message]
BETWEEN: Final[dict[int, tuple[Builder, ...]]] = {
    1: (_fetch,),
    2: (_offsets,),
    4: (_lead, _follow),
    5: (_stop,),
    6: (_tell,),
    7: (_shut_down,),
    17: (_handshake,),
    23: (_epochs,),
    36: (_authenticate,),
    56: (_alter,),
    67: (_allocate,),
}
"""By API key: what a broker asks of another, or of the controller, that clients do not ask so. AddPartitionsToTxn and
WriteTxnMarkers have the same form where clients send them (test_numbers.py)."""


def test_a36_every_api_between_brokers_has_its_requests() -> None:
    """And with those of clients no API is left."""
    assert set(apis_between_brokers()) <= set(BETWEEN)
    assert set(BETWEEN) | set(REQUESTS) | WITH_SASL == set(served_apis()) | set(apis_between_brokers())


def cases() -> Iterator[tuple[Builder, int, bool]]:
    """Also whether the version is the newest of its API, which the gate tries."""
    for key, builders in BETWEEN.items():
        handler = load_handler(key)
        for build in builders:
            for version in range(handler.min_version, handler.max_version + 1):
                yield build, version, version == handler.max_version


async def of(pair: Pair, build: Builder, version: int) -> Message:
    """A request that is about something, as each one before it may have changed that."""
    if build is _stop:
        await pair.broker.commands.leader_and_isr(_lead(pair, version))  # type: ignore[arg-type]
    if build is _authenticate:
        pair.leave(False)
        assert errors(await pair.send(_handshake(pair, 1), 1)) == []
    return build(pair, version)


def is_about_all(change: Change) -> bool:
    """Whether the broker says to itself that there is another controller than its own."""
    told = {place.path: value for place, value in zip(change.places, change.values, strict=True)}
    return told.get("controller_epoch") == EPOCH_MAX


async def check(pair: Pair, caplog: pytest.LogCaptureFixture, is_timed: bool) -> float:
    """Everything works; which share of a processor the broker uses when nobody asks anything, where that is judged."""
    broker = pair.broker
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
    assert broker.controller.is_active
    (outcome,) = await broker.controller.create_topics([NewTopic("after", assignments=[(0, (0,))])])
    assert outcome.error is ErrorCode.NONE
    batch = build_batch([Record(0, 1_700_000_000_000, None, b"v")])
    broker.replicas.append("after", 0, batch, -1, 13)
    partition = broker.replicas.partition_or_error("after", 0)
    assert partition.log.high_watermark == 1
    for log in broker.log_manager.logs:
        log.check()  # it is not offline
    if not is_timed:
        return 0.0
    before = time.process_time()
    await asyncio.sleep(IDLE_S)  # Real time: the idle span that is measured
    return (time.process_time() - before) / IDLE_S


async def attack(
    data_dir: Path, build: Builder, version: int, together: int, caplog: pytest.LogCaptureFixture, is_timed: bool
) -> dict[str, Any]:
    async with pair(data_dir) as found:
        request = await of(found, build, version)
        plain = await found.send(request, version)
        assert errors(plain) == [], f"{build.__name__}: {plain}"
        tried = list(changes(request, version, together, EXTREMES))
        tried += changes(request, version, together, TEXTS)
        for change in tried:
            if is_about_all(change):
                continue
            answer = await found.send(change.apply(await of(found, build, version)), version)
            assert ErrorCode.UNKNOWN_SERVER_ERROR not in errors(answer), f"{change}: {answer}"
        idle = await check(found, caplog, is_timed)
        assert idle <= IDLE_SHARE_MAX
        return {"sent": found.sent, "waited": found.waited, "closed": found.closed, "idle": round(idle, 3)}


@pytest.mark.parametrize("together", [1, pytest.param(2, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    ("build", "version"),
    [
        pytest.param(build, version, id=f"{build.__name__}-{version}", marks=() if is_newest else pytest.mark.full)
        for build, version, is_newest in cases()
    ],
)
def test_a36_what_brokers_ask_at_its_extremes(
    tmp_path: Path,
    build: Builder,
    version: int,
    together: int,
    caplog: pytest.LogCaptureFixture,
    figure: Figure,
    is_timed: bool,
) -> None:
    caplog.set_level(logging.INFO)
    figure(**asyncio.run(attack(tmp_path, build, version, together, caplog, is_timed)))
    findings = check_directory(OsFiles(), str(tmp_path)).findings
    assert [finding for finding in findings if finding.level is Level.ERROR] == []


async def refuse_another_controller(data_dir: Path, caplog: pytest.LogCaptureFixture, is_timed: bool) -> None:
    async with pair(data_dir) as found:
        broker = found.broker
        request = _tell(found, 8)
        assert isinstance(request, update_metadata.UpdateMetadataRequest)
        request.controller_id, request.controller_epoch = OTHER, EPOCH_MAX
        epoch = broker.controller.epoch
        port = broker.socket_server.ports["BROKERS"]
        peer = PeerConnection(
            broker.environment.network, lambda: ("127.0.0.1", port), broker.timers, "broker-7-test", 30_000
        )
        for _ in range(ATTEMPTS):
            with pytest.raises(PeerUnavailable, match="closed the connection"):
                await peer.send(request, 8)
        peer.close()
        assert await check(found, caplog, is_timed) <= IDLE_SHARE_MAX
        assert broker.controller.epoch == epoch
        found.append()
        broker.replicas.partition_or_error("t", 0).log.check()


def test_a36_a_controller_of_the_greatest_epoch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_timed: bool
) -> None:
    """Nobody has elected it, so that the broker goes on to obey the true one."""
    caplog.set_level(logging.WARNING)
    asyncio.run(refuse_another_controller(tmp_path, caplog, is_timed))


async def take_sessions(data_dir: Path) -> tuple[int, int, int]:
    """How many sessions a broker keeps for brokers that are nowhere, for one that is registered after that, and for
    that one's without end."""
    async with pair(data_dir) as found:
        sessions = found.broker.services.replica_fetch_sessions

        async def fetch_as(replica_id: int) -> int:
            request = _fetch(found, 17)
            assert isinstance(request, fetch.FetchRequest)
            request.replica_state.replica_id = replica_id
            request.topics[0].partitions[0].fetch_offset = 1 << 40  # answered at once
            answer = await found.send(request, 17, may_wait=False)
            assert isinstance(answer, fetch.FetchResponse)
            return answer.session_id

        assert {await fetch_as(1_000 + number) for number in range(REPLICA_FETCH_SESSIONS_MAX + 100)} == {0}
        of_nobody = len(sessions)
        assert await fetch_as(OTHER) != 0
        of_one = len(sessions)
        for _ in range(REPLICA_FETCH_SESSIONS_MAX + 100):
            await fetch_as(OTHER)
        return of_nobody, of_one, len(sessions)


def test_a36_fetch_sessions_of_brokers_that_are_not_there(tmp_path: Path) -> None:
    """They take none from those that are."""
    assert asyncio.run(take_sessions(tmp_path)) == (0, 1, REPLICA_FETCH_SESSIONS_MAX)
