"""Several brokers on one loop, with one metadata store and real sockets: for tests of what they do together."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from barnabas.broker.configuration import config
from barnabas.broker.environment import Environment
from barnabas.broker.network.peer_connection import PeerConnection
from barnabas.broker.security.broker_secrets import credentials_of_broker
from barnabas.broker.server import Broker
from barnabas.clock import SystemClock
from barnabas.controller.coordination.embedded import EmbeddedSession, EmbeddedStore
from barnabas.storage.log import PartitionLog
from barnabas.storage.os_files import OsFiles, UnsyncedFiles
from barnabas.testing.contents.settled import unsettled
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.records import Record, build_batch
from barnabas.wire.schema import Message
from tools.waiting import until

ONE_REPLICA: Final = {
    "offsets_topic_replication_factor": "1",
    "transaction_state_log_replication_factor": "1",
    "transaction_state_log_min_isr": "1",
}
"""Settings that give internal topics one replica."""


class Cluster:
    """Brokers with ids from 1 on, and a client that asks each of them.

    Who starts, stops or dies is heard of by all on return, and so are topics that are created, unless `heard` is False:
    a test of what happens before that says so.
    """

    def __init__(self, data_dir: Path, store: EmbeddedStore) -> None:
        self._data_dir = data_dir
        self._store = store
        self._clients: dict[tuple[int, int | None], PeerConnection] = {}
        self.brokers: dict[int, Broker] = {}
        self.files: Callable[[], OsFiles] = UnsyncedFiles
        """The disk of whoever starts next."""

    async def start(self, node_id: int, *, heard: bool = True, **configs: str) -> Broker:
        keys = {
            "node.id": str(node_id),
            "log.dirs": str(self._data_dir / str(node_id)),
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.num.partitions": "1",
            **{key.replace("_", "."): value for key, value in configs.items()},
        }
        environment = Environment(files=self.files(), metadata_store=self._store)
        broker = self.brokers[node_id] = Broker(config.load(options=keys), environment)
        await broker.start()
        await self._settle(heard)
        return broker

    async def stop(self, node_id: int, *, heard: bool = True) -> None:
        await self._leave(node_id).stop()
        await self._settle(heard)

    async def crash(self, node_id: int, *, heard: bool = True) -> None:
        await self._leave(node_id).crash()
        await self._settle(heard)

    async def expire_session(self, node_id: int) -> None:
        """Have the metadata store take a broker for dead, which then joins again."""
        broker = self.brokers[node_id]
        session, epoch = broker._store._session, broker.controller.broker_epoch  # the present ones
        assert isinstance(session, EmbeddedSession)
        await self._store.expire(session)
        await until(lambda: broker.controller.broker_epoch > epoch)
        await self.settle()

    async def session(self) -> EmbeddedSession:
        """Another session with the metadata store, as an administrator's tool has one."""
        return await self._store.session()

    async def settle(self) -> None:
        """Wait until all have heard what the controller decided, and done it."""
        await until(lambda: unsettled(list(self.brokers.values())) is None)

    async def _settle(self, heard: bool) -> None:
        if heard:
            await self.settle()

    def _leave(self, node_id: int) -> Broker:
        for key in [key for key in self._clients if key[0] == node_id]:
            self._clients.pop(key).close()
        return self.brokers.pop(node_id)

    async def close(self) -> None:
        for node_id in sorted(self.brokers):
            await self.stop(node_id, heard=False)  # as this is the end of all

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(broker.socket_server.bootstrap_servers for broker in self.brokers.values())

    @property
    def controller_ids(self) -> list[int]:
        """The ids of the brokers that say that they are the controller."""
        return [node_id for node_id, broker in self.brokers.items() if broker.controller.is_active]

    async def ask(self, node_id: int, request: Message, version: int, *, sent_by: int | None = None) -> Any:
        """The answer to a client, or to the broker that is `sent_by`."""
        broker = self.brokers[node_id]
        if (node_id, sent_by) not in self._clients:
            address = ("127.0.0.1", broker.socket_server.ports["PLAINTEXT"])
            self._clients[node_id, sent_by] = PeerConnection(
                broker.environment.network,
                lambda: address,
                broker.timers,
                "client",
                30_000,
                credentials=None if sent_by is None else credentials_of_broker(sent_by, self.brokers[sent_by]._secret),
            )
        return await self._clients[node_id, sent_by].send(request, version)

    async def create(self, topic: str, partitions: int, replicas: int) -> ErrorCode:
        (controller_id,) = self.controller_ids
        answer = await self.ask(controller_id, creation(topic, partitions, replicas), 7)
        await self.settle()
        return ErrorCode.of(answer.topics[0].error_code)

    async def leaders(self, node_id: int, topic: str) -> list[int]:
        """By partition, as one broker tells it."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        answer = await self.ask(node_id, request, 8)
        found = sorted(answer.topics[0].partitions, key=lambda each: each.partition_index)
        return [partition.leader_id for partition in found]

    async def leader(self, topic: str, but_not: int = -1) -> int:
        """The leader of partition 0, by its own metadata: another one than `but_not`."""
        found: list[int] = []

        def is_led() -> bool:
            found[:] = [
                node_id
                for node_id, broker in self.brokers.items()
                if (hosted := broker.replicas.partition(topic, 0)) is not None and hosted.state.is_leader
            ]
            return bool(found) and but_not not in found

        await until(is_led)
        return found[0]

    def in_sync(self, topic: str) -> Sequence[int]:
        """The ISR of partition 0, as its leader knows it."""
        for broker in self.brokers.values():
            hosted = broker.replicas.partition(topic, 0)
            if hosted is not None and hosted.state.is_leader:
                return hosted.state.isr
        return ()

    def log(self, node_id: int, topic: str) -> PartitionLog:
        return self.brokers[node_id].replicas.partition_or_error(topic, 0).log

    async def produce(self, node_id: int, topic: str, partition: int, acks: int = 1) -> ErrorCode:
        batch = build_batch([Record(0, 1_700_000_000_000, None, b"x", [], 0)])
        data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=partition, records=batch)])
        answer = await self.ask(node_id, ProduceRequest(acks=acks, timeout_ms=20_000, topic_data=[data]), 9)
        return ErrorCode.of(answer.responses[0].partition_responses[0].error_code)


def creation(topic: str, partitions: int, replicas: int) -> CreateTopicsRequest:
    topics = [CreatableTopic(name=topic, num_partitions=partitions, replication_factor=replicas)]
    return CreateTopicsRequest(topics=topics, timeout_ms=10_000)


@asynccontextmanager
async def cluster(data_dir: Path, count: int, **configs: str) -> AsyncIterator[Cluster]:
    store = EmbeddedStore(":memory:", SystemClock(), is_durable=False)
    await store.open()
    found = Cluster(data_dir, store)
    try:
        for node_id in range(1, count + 1):
            await found.start(node_id, heard=False, **configs)  # as this is waited for once
        await found.settle()
        yield found
    finally:
        await found.close()
        await store.close()


def leader_of(broker: Broker, topic: str, partition: int = 0) -> int:
    found = broker.metadata.partition(topic, partition)
    return -1 if found is None else found.leader
