"""Three brokers with real sockets: what a leader and its followers tell each other. (What outlives leaders that die:
`test_cluster.py`.)"""

import asyncio
import sys
from pathlib import Path

import pytest

from barnabas.broker.network.connection import Connection, Serve
from barnabas.broker.network.outcome import CloseConnection, Outcome
from barnabas.broker.replication.partition import Partition
from barnabas.controller.topics import NewTopic
from barnabas.wire.errors import ErrorCode
from barnabas.wire.headers import parse_request_header
from barnabas.wire.messages.alter_partition import AlterPartitionRequest
from barnabas.wire.messages.create_topics import CreateTopicsRequest
from barnabas.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from tests.broker.replication.leader_and_follower import content, turn_bit
from tests.broker.whole.cluster import Cluster, cluster, leader_of
from tools.processes import children
from tools.waiting import PATIENCE_S, until

pytestmark = pytest.mark.anyio

ALL = -1


async def topic_of_three(brokers: Cluster) -> Partition:
    """A topic of three replicas: its one partition, at its leader, once all three host it."""
    assert await brokers.create("t", 1, 3) is ErrorCode.NONE
    return hosted(brokers, leader_of(brokers.brokers[1], "t"))


def hosted(brokers: Cluster, node_id: int) -> Partition:
    return brokers.brokers[node_id].replicas.partition_or_error("t", 0)


async def produce(brokers: Cluster) -> ErrorCode:
    """One record with acks=all, to whoever leads."""
    return await brokers.produce(await brokers.leader("t"), "t", 0, acks=ALL)


async def test_a_record_is_acknowledged_when_three_have_it(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as brokers:
        await topic_of_three(brokers)
        for number in range(1, 21):
            assert await produce(brokers) is ErrorCode.NONE
            assert [hosted(brokers, node_id).log.log_end_offset for node_id in (1, 2, 3)] == [number] * 3
        logs = [hosted(brokers, node_id).log for node_id in (1, 2, 3)]
        await until(lambda: all(log.high_watermark == 20 for log in logs))  # followers hear of it with their next fetch


async def test_a_too_small_isr_acknowledges_nothing(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3, min_insync_replicas="3") as brokers:
        partition = await topic_of_three(brokers)
        followers = [node_id for node_id in (1, 2, 3) if node_id != partition.state.node_id]
        assert await produce(brokers) is ErrorCode.NONE
        await brokers.crash(followers[0])
        assert len(partition.state.isr) == 2
        assert await produce(brokers) is ErrorCode.NOT_ENOUGH_REPLICAS
        assert partition.has_too_few_in_sync
        await brokers.start(followers[0], min_insync_replicas="3")
        assert len(partition.state.isr) == 3
        assert await produce(brokers) is ErrorCode.NONE


async def test_records_are_deleted_on_all_three(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as brokers:
        partition = await topic_of_three(brokers)
        for _ in range(3):
            await produce(brokers)
        deletion = DeleteRecordsPartition(partition_index=0, offset=2)
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=[deletion])], timeout_ms=30_000)
        async with asyncio.timeout(PATIENCE_S):
            [result] = (await brokers.ask(partition.state.node_id, request, 2)).topics[0].partitions
        assert (result.error_code, result.low_watermark) == (0, 2)
        assert [hosted(brokers, node_id).log.log_start_offset for node_id in (1, 2, 3)] == [2, 2, 2]


async def test_a_waiting_creation_does_not_delay_the_controller(
    tmp_path: Path,
) -> None:
    """As one does whose replica finds no room; who is in sync must not wait for that."""
    released, waits = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        waits.set()
        await released.wait()
        raise CloseConnection("the creation is given up")

    def hold_creations(serve: Serve, frame: memoryview | bytearray, connection: Connection) -> Outcome:
        is_creation = parse_request_header(frame).api_key == CreateTopicsRequest.API_KEY
        return wait() if is_creation else serve(frame, connection)

    async with cluster(tmp_path, 2) as brokers:
        (controller_id,) = brokers.controller_ids
        asker = brokers.brokers[3 - controller_id]
        brokers.brokers[controller_id].intercept(hold_creations)
        creation = asyncio.ensure_future(asker.others.create_topics([NewTopic("t", 1, 1)], 60_000))
        await waits.wait()
        async with asyncio.timeout(PATIENCE_S):
            request = AlterPartitionRequest(broker_id=asker.node_id, broker_epoch=asker.controller.broker_epoch)
            await asker.others.controller_client.send(request, 3, 60_000)
            await asker.others.allocate_producer_ids()
            await asker.others.hand_over()
        assert not creation.done()
        used = [connection for _, _, connection in asker.others.peers.connections() if connection.sent_count]
        assert len(used) == 4, "one for each"
        creation.cancel()
        released.set()


async def test_the_last_broker_stops_without_a_hand_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its controller knows that before its metadata does."""
    async with cluster(tmp_path, 2) as brokers:
        assert await brokers.create("t", 2, 2) is ErrorCode.NONE
        (controller_id,) = brokers.controller_ids
        last = brokers.brokers[controller_id]
        stopping = asyncio.ensure_future(brokers.stop(3 - controller_id))
        while len(last.controller.cluster.brokers) > 1:  # noqa: ASYNC110 - in the very turn in which it knows
            await asyncio.sleep(0)
        await last.others.hand_over()
        await stopping
    assert [told for record in caplog.records if "this broker stops" in (told := record.getMessage())] == []


def test_a_broker_that_is_alone_has_none_of_it_in_memory() -> None:
    code = """
import sys
from barnabas.testing import Broker
with Broker() as broker:
    broker.create_topic("t").produce("x")
print(*sorted(name for name in sys.modules if name.startswith("barnabas.broker.")))
"""
    run = children.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = {name.rpartition(".")[2] for name in run.stdout.split()}
    assert "partition" in modules
    assert not modules & {"leadership", "followers", "replica_fetch", "alter_partitions"}
    assert not modules & {"fetcher", "fetcher_lane", "fetcher_manager", "peer_connection", "controller_client"}


@pytest.mark.parametrize("which", ["the leader", "a follower"])
async def test_a_damaged_replica_is_fetched_anew_and_joins_again(tmp_path: Path, which: str) -> None:
    """No crash leaves a log so: it is set aside when others lead, and nobody counts on it."""
    async with cluster(tmp_path, 3) as brokers:
        partition = await topic_of_three(brokers)
        for _ in range(5):
            assert await produce(brokers) is ErrorCode.NONE
        leader = partition.state.node_id
        damaged = leader if which == "the leader" else next(node for node in (1, 2, 3) if node != leader)
        path = hosted(brokers, damaged).log.segments[0].file.path
        await brokers.crash(damaged)
        turn_bit(path, 100)
        assert await produce(brokers) is ErrorCode.NONE
        await brokers.start(damaged)
        assert damaged in brokers.in_sync("t")
        assert await produce(brokers) is ErrorCode.NONE
        logs = [hosted(brokers, node_id).log for node_id in (1, 2, 3)]
        assert [(log.log_start_offset, log.log_end_offset) for log in logs] == [(0, 7)] * 3
        assert len({content(log, 7) for log in logs}) == 1
        assert [name for name in directory_names(tmp_path / str(damaged), "t-0") if name.endswith("-stray")]


def directory_names(data_dir: Path, start: str) -> list[str]:
    return [path.name for path in data_dir.glob(f"{start}*")]
