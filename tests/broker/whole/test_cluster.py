"""Several brokers on one loop, with one metadata store and real sockets: who is the controller, who leads, and what
becomes of that when one of them stops or dies."""

import asyncio
import logging
import threading
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer

from barnabas.broker.configuration import config
from barnabas.broker.environment import Environment
from barnabas.broker.network.peer_connection import PeerUnavailable
from barnabas.broker.server import Broker
from barnabas.clock import ManualClock
from barnabas.storage.os_files import UnsyncedFiles
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.metadata import MetadataRequest
from tests.broker.whole.cluster import ONE_REPLICA, cluster, creation, leader_of
from tests.support.files import RuledFiles
from tools.waiting import PATIENCE_S, until

pytestmark = [pytest.mark.slow, pytest.mark.anyio]


async def test_each_broker_knows_all_and_leads_its_share(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as brokers:
        assert brokers.controller_ids == [1]
        assert brokers.brokers[3].metadata.broker_ids() == [1, 2, 3]
        assert await brokers.create("t", 6, 1) is ErrorCode.NONE
        assert {broker.metadata.controller_id for broker in brokers.brokers.values()} == {1}
        leaders = await brokers.leaders(3, "t")
        assert sorted(leaders) == [1, 1, 2, 2, 3, 3]
        assert leaders == await brokers.leaders(1, "t") == await brokers.leaders(2, "t")
        for partition, leader in enumerate(leaders):
            for node_id in (1, 2, 3):
                expected = ErrorCode.NONE if node_id == leader else ErrorCode.NOT_LEADER_OR_FOLLOWER
                assert await brokers.produce(node_id, "t", partition) is expected


async def test_only_the_controller_makes_topics(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2) as brokers:
        answer = await brokers.ask(2, creation("t", 1, 1), 7)
        assert answer.topics[0].error_code == ErrorCode.NOT_CONTROLLER
        assert await brokers.create("t", 1, 2) is ErrorCode.NONE


async def test_a_broker_that_stops_hands_over_what_it_leads(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as brokers:
        await brokers.create("t", 6, 3)
        # The controller has decided that before the broker is gone, which others hear of later.
        await brokers.stop(3, heard=False)
        assert 3 not in {leader_of(brokers.brokers[1], "t", index) for index in range(6)}
        assert 3 not in brokers.brokers[1].metadata.broker_ids() or brokers.controller_ids == [1]
        await brokers.settle()
        assert brokers.brokers[2].metadata.broker_ids() == [1, 2]
        assert 3 not in await brokers.leaders(2, "t")


@pytest.mark.parametrize("asks", ["true", "false"])
async def test_a_broker_may_stop_without_asking(tmp_path: Path, asks: str, caplog: pytest.LogCaptureFixture) -> None:
    async with cluster(tmp_path, 2, controlled_shutdown_enable=asks) as brokers:
        await brokers.create("t", 2, 2)
        with caplog.at_level(logging.INFO):
            await brokers.stop(2)
        assert brokers.brokers[1].metadata.broker_ids() == [1]
        led_by_others = "broker 2 stops: 1 partition(s) have other leaders now"
        told = [line for line in caplog.messages if line.startswith(led_by_others)]
        assert len(told) == (asks == "true"), caplog.messages
        assert leader_of(brokers.brokers[1], "t", 0) == leader_of(brokers.brokers[1], "t", 1) == 1


@pytest.mark.parametrize("is_crash", [False, True])
async def test_another_broker_becomes_the_controller(tmp_path: Path, is_crash: bool) -> None:
    async with cluster(tmp_path, 3) as brokers:
        await brokers.create("t", 3, 3)
        await (brokers.crash(1) if is_crash else brokers.stop(1))
        (controller_id,) = brokers.controller_ids
        assert controller_id in (2, 3)
        for broker in brokers.brokers.values():
            assert broker.metadata.broker_ids() == [2, 3]
            assert all(leader_of(broker, "t", index) in (2, 3) for index in range(3))
        assert await brokers.create("u", 2, 2) is ErrorCode.NONE
        await brokers.start(1)
        assert sorted(await brokers.leaders(1, "u")) == [2, 3]


async def test_a_silent_follower_leaves_the_isr(tmp_path: Path) -> None:
    """Each broker leads one partition: one of them has the controller beside it, the other asks it over a socket."""
    async with cluster(tmp_path, 2, replica_lag_time_max_ms="500") as brokers:
        await brokers.create("t", 2, 2)
        leaders = await brokers.leaders(2, "t")
        assert sorted(leaders) == [1, 2]
        for broker in brokers.brokers.values():
            assert broker.replicas.fetchers is not None
            await broker.replicas.fetchers.stop()
        for partition, leader in enumerate(leaders):
            assert await brokers.produce(leader, "t", partition, acks=-1) is ErrorCode.NONE
            hosted = brokers.brokers[leader].replicas.partition_or_error("t", partition)
            assert hosted.state.isr == (leader,)


async def test_acknowledged_records_outlive_their_leaders(tmp_path: Path) -> None:
    """Each of them dies once, and comes back; the records are where they were, in all logs."""
    async with cluster(tmp_path, 3, min_insync_replicas="2") as brokers:
        await brokers.create("t", 1, 3)
        count = 0
        for _ in range(3):
            leader = await brokers.leader("t")
            for _ in range(5):
                assert await brokers.produce(leader, "t", 0, acks=-1) is ErrorCode.NONE
                count += 1
            await brokers.crash(leader)
            successor = await brokers.leader("t")
            assert brokers.log(successor, "t").log_end_offset == count
            assert await brokers.produce(successor, "t", 0, acks=-1) is ErrorCode.NONE
            count += 1
            await brokers.start(leader, min_insync_replicas="2")
            assert len(brokers.in_sync("t")) == 3
        await until(lambda: {brokers.log(node_id, "t").high_watermark for node_id in (1, 2, 3)} == {count})
        epochs = [brokers.log(node_id, "t").leader_epochs.entries for node_id in (1, 2, 3)]
        assert epochs[0] == epochs[1] == epochs[2]


async def test_a_broker_without_metadata_sends_clients_away(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1) as brokers:
        brokers.brokers[1].welcome.serves_clients.clear()
        with pytest.raises(PeerUnavailable):
            await brokers.ask(1, MetadataRequest(topics=[]), 8)


async def test_an_unreachable_broker_says_why_it_is_not_ready(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    async with cluster(tmp_path, 1) as brokers:
        keys = {
            "node.id": "2",
            "log.dirs": str(tmp_path / "2"),
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "advertised.listeners": "PLAINTEXT://127.0.0.1:1",  # nobody listens there
        }
        environment = Environment(files=UnsyncedFiles(), metadata_store=brokers._store, clock=clock)
        broker = Broker(config.load(options=keys), environment)
        start = asyncio.create_task(broker.start())
        await until(lambda: broker._opening is not None and broker._opening.get_name() == "first metadata")
        clock.advance(9_999)
        broker.timers.fire_due()
        assert "advertised.listeners" not in caplog.text
        clock.advance(1)
        broker.timers.fire_due()
        start.cancel()
        await asyncio.wait([start])
        assert "other brokers must be able to reach it at 127.0.0.1:1 (advertised.listeners)" in caplog.text


async def test_a_transaction_ends_in_partitions_of_all_brokers(tmp_path: Path) -> None:
    """Its coordinator leads one partition, so that markers go to other brokers; and whether a batch is part of it, they
    ask there."""
    async with cluster(tmp_path, 3, **ONE_REPLICA) as brokers:
        await brokers.create("t", 6, 1)
        await asyncio.to_thread(write_transactions, brokers.bootstrap_servers)
        assert await asyncio.to_thread(read_committed, brokers.bootstrap_servers) == [
            (partition, b"committed %d" % partition) for partition in range(6)
        ]


def write_transactions(bootstrap_servers: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": "p", "linger.ms": 0})
    producer.init_transactions(PATIENCE_S)
    for outcome in ("committed", "aborted"):
        producer.begin_transaction()
        for partition in range(6):
            producer.produce("t", b"%s %d" % (outcome.encode(), partition), partition=partition)
        producer.flush(PATIENCE_S)
        if outcome == "committed":
            producer.commit_transaction(PATIENCE_S)
        else:
            producer.abort_transaction(PATIENCE_S)


def read_committed(bootstrap_servers: str) -> list[tuple[int, bytes]]:
    """The records that a group reads until it has reached all ends, behind which aborted records lie."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["t"])
    found: list[tuple[int, bytes]] = []
    at_end: set[int] = set()
    while len(at_end) < 6:
        message = consumer.poll(PATIENCE_S)
        assert message is not None, f"read {found}, then nothing more"
        error, partition = message.error(), message.partition()
        if error is None:
            found.append((partition or 0, message.value() or b""))
        else:
            assert error.code() == KafkaError._PARTITION_EOF, error
            at_end.add(partition or 0)
    consumer.commit(asynchronous=False)
    consumer.close()
    return sorted(found)


async def test_a_hanging_disk_of_the_controller_delays_no_election(tmp_path: Path) -> None:
    """A topic is deleted there meanwhile."""
    async with cluster(tmp_path, 0) as brokers:
        disk = RuledFiles()
        hangs, goes_on = threading.Event(), threading.Event()

        def hang(_: str) -> None:
            hangs.set()
            goes_on.wait()

        brokers.files = lambda: disk
        own = await brokers.start(1)
        brokers.files = UnsyncedFiles
        others = {node_id: await brokers.start(node_id) for node_id in (2, 3)}
        assert brokers.controller_ids == [1]
        assert await brokers.create("going", 1, 3) is ErrorCode.NONE
        assert await brokers.create("t", 3, 3) is ErrorCode.NONE
        await until(lambda: all(broker.log_manager.get("going", 0) is not None for broker in others.values()))
        disk.before["sync_directory"] = hang
        deletion = asyncio.ensure_future(own.controller.delete_topics(["going"]))
        try:
            await until(hangs.is_set)
            await until(lambda: own.controller.context.deletions.holders("going") == {1})  # the others have deleted it
            assert all(broker.log_manager.get("going", 0) is None for broker in others.values())
            led = next(p for p in range(3) if leader_of(others[3], "t", p) == 2)
            await brokers.crash(2, heard=False)  # what is held up on the disk is not done meanwhile
            await until(lambda: leader_of(others[3], "t", led) in (1, 3))
            assert not deletion.done()
        finally:
            goes_on.set()
        assert (await deletion)["going"] is None
