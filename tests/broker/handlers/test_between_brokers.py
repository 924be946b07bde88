"""Requests between brokers, over real sockets: the senders that are served, and those that are not."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from barnabas.broker.api.dispatch import REQUEST_BYTES_MAX
from barnabas.broker.api.large_requests import SERVED_BYTES_MAX
from barnabas.broker.cluster.metadata import LEADER_DURING_DELETE, TopicMetadata
from barnabas.broker.handlers import apis_between_brokers, load_handler, served_apis
from barnabas.broker.handlers.fetch import REPLICA_ELEMENTS_MAX
from barnabas.broker.network.peer_connection import PeerConnection, PeerUnavailable
from barnabas.broker.security.broker_secrets import credentials_of_broker, digest_of
from barnabas.broker.security.sasl import plain
from barnabas.broker.security.sasl.plain import Credentials
from barnabas.broker.server import Broker
from barnabas.clock import SystemClock
from barnabas.controller import znodes
from barnabas.controller.controller_election import Elected
from barnabas.controller.coordination.embedded import EmbeddedStore
from barnabas.controller.state import BrokerRegistration, EndPoint
from barnabas.controller.topics import PARTITIONS_MAX, NewTopic
from barnabas.network import BoundSocket, OsNetwork
from barnabas.wire import messages
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from barnabas.wire.messages.alter_partition import AlterPartitionRequest
from barnabas.wire.messages.api_versions import ApiVersionsRequest
from barnabas.wire.messages.controlled_shutdown import ControlledShutdownRequest
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from barnabas.wire.messages.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from barnabas.wire.messages.metadata import MetadataRequest
from barnabas.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from barnabas.wire.messages.sasl_handshake import SaslHandshakeRequest
from barnabas.wire.messages.stop_replica import StopReplicaRequest
from barnabas.wire.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from barnabas.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from barnabas.wire.reader_source import ELEMENTS_MAX
from tests.broker.running import ENVIRONMENT, running
from tools.attack.hostile import frame

LISTENERS: Final = {
    "listeners": "CLIENTS://127.0.0.1:0,BROKERS://127.0.0.1:0",
    "listener_security_protocol_map": "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT",
    "inter_broker_listener_name": "BROKERS",
    "controlled_shutdown_enable": "false",  # those who are said to be there answer nothing
}
OTHER_ID: Final = 7
NOBODY_ID: Final = 8
BETWEEN_BROKERS: Final = sorted(apis_between_brokers())

pytestmark = pytest.mark.anyio


class Loopback(OsNetwork):
    """Listens on 127.0.0.1, whatever the configured address is."""

    def bind(self, host: str | None, port: int, **buffer_bytes: int | None) -> BoundSocket:
        return super().bind("127.0.0.1", port, **buffer_bytes)


@asynccontextmanager
async def member(data_dir: Path, broker_secret: str | None = None, **configs: str) -> AsyncIterator[Broker]:
    """A broker that may have others beside it."""
    store = EmbeddedStore(":memory:", SystemClock(), is_durable=False)
    await store.open()
    environment = replace(ENVIRONMENT, metadata_store=store, broker_secret=broker_secret, network=Loopback())
    try:
        async with running(data_dir, environment, **{**LISTENERS, **configs}) as broker:
            yield broker
    finally:
        await store.close()


async def register(broker: Broker, broker_id: int) -> None:
    """Have another broker be there, which answers nothing."""
    store = broker.environment.metadata_store
    assert store is not None
    session = await store.session()
    registration = BrokerRegistration(broker_id, (EndPoint("BROKERS", "127.0.0.1", 1),))
    is_told = asyncio.Event()
    broker.metadata.listeners[is_told.set] = None
    await session.create(znodes.broker_path(broker_id), znodes.encode_broker(registration, 0), ephemeral=True)
    while broker_id not in broker.metadata.broker_ids():
        is_told.clear()
        await is_told.wait()


@asynccontextmanager
async def connection(
    broker: Broker, listener: str, credentials: Credentials | None = None
) -> AsyncIterator[PeerConnection]:
    port = broker.socket_server.ports[listener]
    found = PeerConnection(
        broker.environment.network,
        lambda: ("127.0.0.1", port),
        broker.timers,
        "broker-7-test",
        30_000,
        credentials=credentials,
    )
    try:
        yield found
    finally:
        found.close()


def from_itself(broker: Broker) -> AbstractAsyncContextManager[PeerConnection]:
    """A connection on which the broker's own secret is shown: the only one that this broker knows."""
    return connection(broker, "BROKERS", credentials_of_broker(broker.node_id, broker._secret))


def sent_as(request: Any, broker_id: int) -> Any:
    """A request that names its sender."""
    setattr(request, "controller_id" if hasattr(request, "controller_id") else "broker_id", broker_id)
    return request


@pytest.mark.parametrize("key", BETWEEN_BROKERS)
async def test_clients_are_not_obeyed(tmp_path: Path, key: int) -> None:
    async with member(tmp_path) as broker:
        api, version = messages.api(key), load_handler(key).max_version
        async with connection(broker, "CLIENTS") as client:
            answer = await client.send(api.request_class(), version)
            assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert not any(each.session.is_broker for each in broker.connections)


@pytest.mark.parametrize("key", BETWEEN_BROKERS)
async def test_brokers_are_heard_on_their_listener(tmp_path: Path, key: int) -> None:
    """Here: refused, as they name epochs of before, by the part that knows these."""
    async with member(tmp_path) as broker, from_itself(broker) as peer:
        api, version = messages.api(key), load_handler(key).max_version
        request = sent_as(api.request_class(), broker.node_id)
        request.broker_epoch = 0  # of an earlier life
        answer = await peer.send(request, version)
        assert answer.error_code in (
            ErrorCode.STALE_CONTROLLER_EPOCH,
            ErrorCode.STALE_BROKER_EPOCH,
            ErrorCode.BROKER_NOT_AVAILABLE,
            ErrorCode.BROKER_ID_NOT_REGISTERED,
        )


@pytest.mark.parametrize("key", BETWEEN_BROKERS)
async def test_strangers_are_not_obeyed_where_brokers_are(tmp_path: Path, key: int) -> None:
    """For any claimed identity: a broker that has a secret, or one that does not exist."""
    async with member(tmp_path) as broker, connection(broker, "BROKERS") as peer:
        api, version = messages.api(key), load_handler(key).max_version
        for broker_id in (broker.node_id, NOBODY_ID, -1):
            answer = await peer.send(sent_as(api.request_class(), broker_id), version)
            assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED, broker_id
        assert [each.session.is_broker for each in broker.connections] == [False]


@pytest.mark.parametrize("key", BETWEEN_BROKERS)
async def test_limits_of_clients_do_not_delay_registered_brokers(tmp_path: Path, key: int) -> None:
    async with member(tmp_path) as broker, connection(broker, "BROKERS") as peer:
        await register(broker, OTHER_ID)
        api, version = messages.api(key), load_handler(key).max_version
        for broker_id, is_broker in ((broker.node_id, False), (NOBODY_ID, False), (OTHER_ID, True)):
            request = sent_as(api.request_class(), broker_id)
            request.broker_epoch = 0  # of an earlier life: it is refused
            await peer.send(request, version)
            assert [each.session.is_broker for each in broker.connections] == [is_broker], broker_id


@pytest.mark.parametrize("key", BETWEEN_BROKERS)
async def test_a_broker_that_can_have_no_others_serves_nothing_to_them(tmp_path: Path, key: int) -> None:
    async with running(tmp_path) as broker, connection(broker, "PLAINTEXT") as peer:
        api, version = messages.api(key), load_handler(key).max_version
        with pytest.raises(PeerUnavailable, match="closed the connection"):
            await peer.send(api.request_class(), version)


async def test_api_versions_hides_requests_between_brokers(tmp_path: Path) -> None:
    async with member(tmp_path) as broker:
        for listener in ("CLIENTS", "BROKERS"):
            async with connection(broker, listener) as peer:
                answer = await peer.send(ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3)
                assert {api.api_key for api in answer.api_keys} == set(served_apis())
    assert set(served_apis()).isdisjoint(apis_between_brokers())


@pytest.mark.parametrize("key", BETWEEN_BROKERS)
def test_a_handler_between_brokers_says_so_and_is_of_one_version(key: int) -> None:
    handler = load_handler(key)
    assert handler.is_inter_broker
    assert handler.min_version == handler.max_version


async def test_an_active_controller_answers_registered_brokers(tmp_path: Path) -> None:
    async with member(tmp_path) as broker, from_itself(broker) as peer:
        named: dict[str, int] = {"broker_id": broker.node_id, "broker_epoch": broker.controller.broker_epoch}
        blocks = [await peer.send(AllocateProducerIdsRequest(**named), 0) for _ in range(2)]
        assert [block.error_code for block in blocks] == [0, 0]
        assert blocks[1].producer_id_start == blocks[0].producer_id_start + blocks[0].producer_id_len
        nobody = AlterPartitionRequest(broker_id=broker.node_id, broker_epoch=broker.controller.broker_epoch)
        assert (await peer.send(nobody, 3)).error_code == ErrorCode.NONE
        relieved = await peer.send(ControlledShutdownRequest(**named), 3)
        assert (relieved.error_code, relieved.remaining_partitions) == (ErrorCode.NONE, [])


def new_partitions(request_class: type[Any], broker: Broker, count: int) -> Any:
    """The controller's word on `count` partitions that the broker leads, each of a topic of its own."""
    is_role = request_class is LeaderAndIsrRequest
    partition_class: type[Any] = LeaderAndIsrPartitionState if is_role else UpdateMetadataPartitionState
    topic_class: type[Any] = LeaderAndIsrTopicState if is_role else UpdateMetadataTopicState
    node = broker.node_id
    topics = [
        topic_class(
            topic_name=f"t-{number:06d}",
            topic_id=number.to_bytes(16, "big"),
            partition_states=[partition_class(partition_index=0, leader=node, replicas=[node], isr=[node])],
        )
        for number in range(1, count + 1)
    ]
    return request_class(
        controller_id=node,
        controller_epoch=broker.controller.epoch,
        broker_epoch=broker.controller.broker_epoch,
        topic_states=topics,
    )


async def test_commands_of_a_non_broker_are_refused(tmp_path: Path) -> None:
    """Nor does its epoch count."""
    async with member(tmp_path) as broker, connection(broker, "BROKERS") as peer:
        named: Any = {"controller_id": 7, "controller_epoch": 2**31 - 1, "broker_epoch": -1}
        for command, version in (
            (UpdateMetadataRequest(**named), 8),
            (LeaderAndIsrRequest(**named), 7),
            (StopReplicaRequest(**named), 4),
        ):
            assert (await peer.send(command, version)).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        (outcome,) = await broker.controller.create_topics([NewTopic("t", 1, 1)])
        assert outcome.error is ErrorCode.NONE


async def elect(broker: Broker, controller_id: int, epoch: int) -> None:
    """Write into the metadata store who is the controller."""
    store = broker.environment.metadata_store
    assert store is not None
    session = await store.session()
    await session.set(znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(epoch))
    await session.set(znodes.CONTROLLER, znodes.encode_controller(controller_id, 0))


async def test_a_controller_is_one_that_is_elected(tmp_path: Path) -> None:
    """Of a greater epoch than the known one, the metadata store tells; it is asked once, not for each command. (The
    other broker is one that has no secret.)"""
    async with member(tmp_path) as broker, connection(broker, "BROKERS") as peer:
        await register(broker, OTHER_ID)
        asked = 0
        elected = broker.commands._elected

        async def counted() -> Elected | None:
            nonlocal asked
            asked += 1
            return await elected()

        broker.commands._elected = counted
        epoch = broker.controller.epoch

        async def tell(controller_epoch: int) -> ErrorCode:
            named: Any = {"controller_id": OTHER_ID, "controller_epoch": controller_epoch, "broker_epoch": -1}
            return ErrorCode.of((await peer.send(UpdateMetadataRequest(**named), 8)).error_code)

        assert await tell(epoch) is ErrorCode.STALE_CONTROLLER_EPOCH, "another one has that epoch"
        assert asked == 0
        for claimed in (epoch + 1, 2**31 - 1):
            with pytest.raises(PeerUnavailable, match="closed the connection"):
                await tell(claimed)
        assert asked == 2
        await elect(broker, broker.node_id, epoch + 2)
        assert await tell(epoch + 1) is ErrorCode.STALE_CONTROLLER_EPOCH, "another one was elected meanwhile"
        await elect(broker, OTHER_ID, epoch + 3)
        asked = 0
        for _ in range(3):
            assert await tell(epoch + 3) is ErrorCode.NONE
        assert asked == 1


async def test_a_controller_elsewhere_has_a_broker_lead(tmp_path: Path) -> None:
    async with member(tmp_path) as broker, from_itself(broker) as peer:
        answers = [
            peer.send(new_partitions(UpdateMetadataRequest, broker, 3), 8),
            peer.send(new_partitions(LeaderAndIsrRequest, broker, 3), 7),
        ]
        told, roles = [await answer for answer in answers]
        assert told.error_code == roles.error_code == ErrorCode.NONE
        assert [partition.error_code for topic in roles.topics for partition in topic.partition_errors] == [0, 0, 0]
        assert all(broker.replicas.partition_or_error(f"t-{number:06d}", 0).state.is_leader for number in (1, 2, 3))


async def test_a_topics_deletion_survives_a_broken_connection(tmp_path: Path) -> None:
    """The controller tells it again, and then the topic is in the metadata no more."""
    async with member(tmp_path) as broker:
        begun, go_on = asyncio.Event(), asyncio.Event()
        forgotten: list[str] = []

        async def forget(removed: Sequence[TopicMetadata]) -> None:
            begun.set()
            await go_on.wait()  # as there are many groups, and others have turns
            forgotten.extend(topic.name for topic in removed)

        async with from_itself(broker) as peer:
            assert (await peer.send(new_partitions(UpdateMetadataRequest, broker, 1), 8)).error_code == ErrorCode.NONE
            broker.commands._on_update = forget
            deletion = new_partitions(UpdateMetadataRequest, broker, 1)
            deletion.topic_states[0].partition_states[0].leader = LEADER_DURING_DELETE
            lost = peer.send(deletion, 8)
            await begun.wait()
        with pytest.raises(PeerUnavailable):
            await lost
        async with from_itself(broker) as peer:
            await peer.send(ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3)
            assert len(broker.connections) == 1, "that the other one has broken is known"
            go_on.set()
            assert (await peer.send(deletion, 8)).error_code == ErrorCode.NONE
        assert "t-000001" not in broker.metadata
        assert forgotten == ["t-000001"]


@pytest.mark.slow
async def test_a_broker_can_be_told_of_more_than_clients_may_ask_for(tmp_path: Path) -> None:
    """20,000 partitions are 60,000 elements with their replicas; a client's request may have 50,000."""
    async with member(tmp_path) as broker, from_itself(broker) as peer:
        answer = await peer.send(new_partitions(UpdateMetadataRequest, broker, 20_000), 8)
        assert answer.error_code == ErrorCode.NONE
        assert len(list(broker.metadata.topics())) == 20_000


def replica_fetch(topics: int) -> FetchRequest:
    """The request of a follower of partitions of so many topics, in a session that it begins: 2 elements each."""
    return FetchRequest(
        replica_state=ReplicaState(replica_id=OTHER_ID, replica_epoch=1),
        max_wait_ms=0,
        min_bytes=1,
        topics=[
            FetchTopic(topic_id=number.to_bytes(16, "big"), partitions=[FetchPartition(partition=0)])
            for number in range(1, topics + 1)
        ],
    )


@pytest.mark.full
async def test_a_replica_may_ask_for_more_partitions_than_clients(tmp_path: Path) -> None:
    """With the first request of a connection, before any other has told whose that is."""
    fetch = replica_fetch(ELEMENTS_MAX // 2 + 1)
    async with member(tmp_path) as broker:
        async with connection(broker, "BROKERS") as peer:
            with pytest.raises(PeerUnavailable, match="closed the connection"):
                await peer.send(fetch, 17)  # it is not registered
        await register(broker, OTHER_ID)
        async with connection(broker, "CLIENTS") as client:
            with pytest.raises(PeerUnavailable, match="closed the connection"):
                await client.send(fetch, 17)
        async with connection(broker, "BROKERS") as peer:
            for _ in range(2):
                answer = await peer.send(fetch, 17)
                assert answer.error_code == ErrorCode.NONE
                assert len(answer.responses) == ELEMENTS_MAX // 2 + 1


@pytest.mark.full
@pytest.mark.slow
async def test_a_replica_may_follow_as_many_partitions_as_allowed(tmp_path: Path) -> None:
    async with member(tmp_path) as broker, connection(broker, "BROKERS") as peer:
        await register(broker, OTHER_ID)
        assert (await peer.send(replica_fetch(PARTITIONS_MAX), 17)).error_code == ErrorCode.NONE
        with pytest.raises(PeerUnavailable, match="closed the connection"):
            await peer.send(replica_fetch(REPLICA_ELEMENTS_MAX // 2 + 1), 17)


async def test_the_first_state_for_a_new_broker_may_have_any_size(tmp_path: Path) -> None:
    """Nobody knows yet that its connection is one of the controller's."""
    async with member(tmp_path) as broker, from_itself(broker) as peer:
        told = new_partitions(UpdateMetadataRequest, broker, 1)
        told.topic_states[0].partition_states[0].offline_replicas = [OTHER_ID] * (REQUEST_BYTES_MAX // 4 + 1)
        assert (await peer.send(told, 8)).error_code == ErrorCode.NONE
        async with connection(broker, "CLIENTS") as client:
            with pytest.raises(PeerUnavailable, match="closed the connection"):
                await client.send(told, 8)


@pytest.mark.parametrize("listener", ["CLIENTS", "BROKERS"])
async def test_a_stranger_has_no_more_decoded_than_a_client(tmp_path: Path, listener: str) -> None:
    """Also of what brokers alone may ask: it would hold up the event loop before it is refused. A broker of Apache
    Kafka shows nothing, so that what is on its listener may be its."""
    many = UpdateMetadataRequest(controller_id=NOBODY_ID, live_brokers=[UpdateMetadataBroker()] * (ELEMENTS_MAX + 1))
    large = UpdateMetadataRequest(controller_id=NOBODY_ID, topic_states=[UpdateMetadataTopicState()])
    replicas = [OTHER_ID] * (REQUEST_BYTES_MAX // 4 + 1)
    large.topic_states[0].partition_states = [UpdateMetadataPartitionState(offline_replicas=replicas)]
    async with member(tmp_path) as broker:
        for request in (many, large):
            async with connection(broker, listener) as stranger:
                with pytest.raises(PeerUnavailable, match="closed the connection"):
                    await stranger.send(request, 8)
        await register(broker, OTHER_ID)
        for request in (many, large):
            async with connection(broker, "BROKERS") as peer:
                assert (await peer.send(request, 8)).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


async def test_large_client_requests_do_not_delay_a_new_brokers_state(tmp_path: Path) -> None:
    async with member(tmp_path) as broker, from_itself(broker) as peer:
        assert broker.dispatcher is not None
        clients = broker.dispatcher._large_requests
        await clients.enter(SERVED_BYTES_MAX)
        told = new_partitions(UpdateMetadataRequest, broker, 1_000)
        assert (await peer.send(told, 8)).error_code == ErrorCode.NONE
        clients.leave(SERVED_BYTES_MAX)


async def register_secret(broker: Broker, secret: str) -> None:
    """Have another broker be there that has a secret; the broker under test need not have heard of it."""
    store = broker.environment.metadata_store
    assert store is not None
    session = await store.session()
    registration = BrokerRegistration(OTHER_ID, (EndPoint("BROKERS", "127.0.0.1", 1),), secret_digest=digest_of(secret))
    path, payload = znodes.broker_path(OTHER_ID), znodes.encode_broker(registration, 0)
    if await session.exists(path) is None:
        await session.create(path, payload, ephemeral=True)
    else:
        await session.set(path, payload)


async def fetched_as_other(peer: PeerConnection) -> ErrorCode:
    request = FetchRequest(
        replica_state=ReplicaState(replica_id=OTHER_ID, replica_epoch=2**62),
        max_wait_ms=0,
        topics=[FetchTopic(topic_id=b"\1" * 16, partitions=[FetchPartition(partition=0)])],
    )
    (topic,) = (await peer.send(request, 17)).responses
    return ErrorCode.of(topic.partitions[0].error_code)


@pytest.mark.parametrize("shown", [b"", b"\0broker-7\0wrong", b"\0broker-99999999999999999999\0x", b"\0\xff\0"])
async def test_each_try_to_show_a_secret_costs_a_connection(tmp_path: Path, shown: bytes) -> None:
    """It is answered, and what was sent behind it is not looked at."""
    wrong = SaslAuthenticateRequest(auth_bytes=shown)
    async with member(tmp_path) as broker:
        await register_secret(broker, "first")
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.socket_server.ports["BROKERS"])
        try:
            writer.write(frame(SaslHandshakeRequest(mechanism="PLAIN"), 1) + frame(wrong, 2) * 100)
            answers = await reader.read()
        finally:
            writer.close()
    assert answers.count(b"Authentication failed: ") + answers.count(b"Invalid SASL/PLAIN response") == 1


async def test_a_secret_authenticates_its_broker_only(tmp_path: Path) -> None:
    async with member(tmp_path) as broker:
        await register_secret(broker, "first")
        await register_secret(broker, "second")  # of its next life
        async with connection(broker, "BROKERS", credentials_of_broker(OTHER_ID, "second")) as peer:
            assert await fetched_as_other(peer) is ErrorCode.UNKNOWN_TOPIC_ID
            (session,) = [each.session for each in broker.connections]
            assert (session.broker_id, session.principal) == (OTHER_ID, f"User:broker-{OTHER_ID}")
            answer = await peer.send(ControlledShutdownRequest(broker_id=broker.node_id), 3)
            assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        async with connection(broker, "BROKERS") as peer:
            assert await fetched_as_other(peer) is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        for strangers in ("first", digest_of("second"), "\N{SNOWMAN}"):
            async with connection(broker, "BROKERS", credentials_of_broker(OTHER_ID, strangers)) as peer:
                with pytest.raises(PeerUnavailable, match="does not accept the identity of this broker"):
                    await peer.send(ControlledShutdownRequest(broker_id=OTHER_ID), 3)


NOTHING_SHOWN: Final = [
    b"", b"\0broker-7", b"\0broker-7\0", b"\0\0x", b"admin\0broker-7\0x", b"\xff\0a\0b", b"\0a\0" + 5000 * b"b",
]  # fmt: skip


@pytest.mark.parametrize("message", NOTHING_SHOWN)
async def test_handshakes_without_a_valid_secret_are_refused(tmp_path: Path, message: bytes) -> None:
    async with member(tmp_path) as broker, connection(broker, "BROKERS") as peer:
        early = await peer.send(SaslAuthenticateRequest(auth_bytes=message), 2)
        assert early.error_code == ErrorCode.ILLEGAL_SASL_STATE, "there was no handshake"
        assert (await peer.send(SaslHandshakeRequest(mechanism="PLAIN"), 1)).error_code == ErrorCode.NONE
        answer = await peer.send(SaslAuthenticateRequest(auth_bytes=message), 2)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert not any(each.session.is_authenticated for each in broker.connections)


async def test_each_guess_costs_a_connection(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As Kafka has it: the refusal is the last answer, and nobody looks whether guesses behind it are right."""
    guesses = [
        SaslAuthenticateRequest(auth_bytes=plain.encode(credentials_of_broker(OTHER_ID, guess)))
        for guess in ("a", "b", "c")
    ]
    async with member(tmp_path) as broker, connection(broker, "BROKERS") as peer:
        await register_secret(broker, "secret")
        assert (await peer.send(SaslHandshakeRequest(mechanism="PLAIN"), 1)).error_code == ErrorCode.NONE
        first, *others = await asyncio.gather(*(peer.send(each, 2) for each in guesses), return_exceptions=True)
        assert first.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert [type(each) for each in others] == 2 * [PeerUnavailable]
    assert caplog.text.count("has failed to authenticate on listener BROKERS") == 1


async def test_an_unknown_mechanism_ends_the_connection(tmp_path: Path) -> None:
    async with member(tmp_path) as broker, connection(broker, "BROKERS") as peer:
        requests = [peer.send(SaslHandshakeRequest(mechanism=name), 1) for name in ("GSSAPI", "PLAIN")]
        unknown, known = await asyncio.gather(*requests, return_exceptions=True)
        assert (unknown.error_code, unknown.mechanisms) == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, ["PLAIN"])
        assert isinstance(known, PeerUnavailable)


async def test_a_second_authentication_is_refused(tmp_path: Path) -> None:
    async with member(tmp_path) as broker, from_itself(broker) as peer:
        for request, version in ((SaslHandshakeRequest(mechanism="PLAIN"), 1), (SaslAuthenticateRequest(), 2)):
            assert (await peer.send(request, version)).error_code == ErrorCode.ILLEGAL_SASL_STATE


async def test_the_listener_of_brokers_serves_after_the_handshake_only(
    tmp_path: Path,
) -> None:
    """Not even what clients may ask elsewhere, but for ApiVersions."""
    secret = "ab" * 32
    async with member(tmp_path, broker_secret=secret) as broker:
        versions = ApiVersionsRequest(client_software_name="a", client_software_version="1")
        for request, version in ((MetadataRequest(), 8), (replica_fetch(1), 17), (UpdateMetadataRequest(), 8)):
            async with connection(broker, "BROKERS") as peer:
                assert (await peer.send(versions, 3)).error_code == ErrorCode.NONE
                with pytest.raises(PeerUnavailable, match="closed the connection"):
                    await peer.send(request, version)
        async with connection(broker, "BROKERS", credentials_of_broker(OTHER_ID, "cd" * 32)) as peer:
            with pytest.raises(PeerUnavailable, match="does not accept the identity of this broker"):
                await peer.send(MetadataRequest(), 8)
        async with connection(broker, "BROKERS", credentials_of_broker(OTHER_ID, secret)) as peer:
            assert await fetched_as_other(peer) is ErrorCode.UNKNOWN_TOPIC_ID
        store = broker.environment.metadata_store
        assert store is not None
        payload, _ = await (await store.session()).get(znodes.broker_path(broker.node_id))
        assert b"secret" not in payload
        async with connection(broker, "CLIENTS") as client:
            assert (await client.send(MetadataRequest(), 8)).brokers


@pytest.mark.parametrize(
    ("of_clients", "of_brokers", "secret", "warned"),
    [
        ("127.0.0.1", "192.0.2.7", None, 1),
        ("192.0.2.7", "192.0.2.7", None, 1),
        ("192.0.2.7", "127.0.0.1", None, 0),
        ("127.0.0.1", "127.0.0.1", None, 0),
        ("192.0.2.7", "192.0.2.7", "ab" * 32, 0),
    ],
    ids=["brokers' listener", "both", "clients' listener", "loopback", "serve --brokers"],
)
async def test_a_listener_that_exposes_secrets_is_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, of_clients: str, of_brokers: str, secret: str | None, warned: int
) -> None:
    """Not where a parent has given all brokers one secret: it chooses their listener itself."""
    listeners = f"CLIENTS://{of_clients}:0,BROKERS://{of_brokers}:0"
    async with member(tmp_path, secret, listeners=listeners):
        pass
    told = [record for record in caplog.records if "secrets" in record.getMessage()]
    assert [record.levelname for record in told] == ["WARNING"] * warned
    for record in told:
        assert "unencrypted on listener BROKERS, and brokers of Apache Kafka have none" in record.getMessage()
        assert "every client, on every listener, can end open transactions by WriteTxnMarkers" in record.getMessage()


async def test_warnings_of_listeners_with_an_authorizer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Clients that have not authenticated may do what ACLs permit; the brokers' secrets are to be seen all the same."""
    listeners = "CLIENTS://192.0.2.7:0,BROKERS://192.0.2.7:0"
    authorizer = {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"}
    async with member(tmp_path, listeners=listeners, **authorizer):
        pass
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert ["secrets unencrypted on listener BROKERS" in line for line in told] == [True], told
    assert "WriteTxnMarkers" not in told[0]


@pytest.mark.parametrize("listener", ["CLIENTS", "BROKERS"])
async def test_transaction_markers_are_read_from_everybody(tmp_path: Path, listener: str) -> None:
    """As the warning says: who sends them shows no secret. (Which markers: `tests/broker/whole/test_strangers.py`.)"""
    topic = WritableTxnMarkerTopic(name="nowhere", partition_indexes=[0])
    marker = WritableTxnMarker(producer_id=1, producer_epoch=0, transaction_result=False, topics=[topic])
    async with member(tmp_path) as broker, connection(broker, listener) as peer:
        answer = await peer.send(WriteTxnMarkersRequest(markers=[marker]), 1)
    (partition,) = answer.markers[0].topics[0].partitions
    assert partition.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
