"""Producer ids out of blocks, which are never handed out twice."""

import asyncio
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from barnabas.broker.cluster.producer_ids import HANDED_OUT_MAX, ProducerIdBlocks, ProducerIds, highest_handed_out
from barnabas.testing import Broker, Cluster
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.names import ProducerId
from compat_tests.semantics.client import Connection, batch_of, produce_batch
from tools.waiting import PATIENCE_S, wait_until

BLOCK = "/latest_producer_id_block"


def test_blocks_are_used_up_and_never_overlap() -> None:
    blocks = iter([(0, 2), (3, 5), (1000, 1002)])

    async def allocate() -> tuple[int, int]:
        await asyncio.sleep(0)
        return next(blocks)

    async def take() -> list[int]:
        ids = ProducerIds(allocate)
        return [await ids.next() for _ in range(2)] + sorted(await asyncio.gather(*(ids.next() for _ in range(6))))

    assert asyncio.run(take()) == [0, 1, 2, 3, 4, 5, 1000, 1001]


def test_impossible_producer_ids_use_up_no_ids() -> None:
    assert highest_handed_out([]) == -1
    assert highest_handed_out([-1, 7, 2**63 - 1, HANDED_OUT_MAX + 1]) == 7


def test_logs_are_searched_once_and_only_if_the_store_may_forget() -> None:
    asked: list[str] = []
    trusted = iter([True, False])

    async def allocate(above: int) -> tuple[int, int]:
        asked.append(f"above {above}")
        return above + 1, above + 1000

    async def used_ids() -> list[int]:
        asked.append("logs")
        return [7, HANDED_OUT_MAX + 1]

    async def take() -> None:
        blocks = ProducerIdBlocks(allocate, used_ids, lambda: next(trusted))
        for _ in range(3):
            await blocks.next()

    asyncio.run(take())
    assert asked == ["above -1", "logs", "above 7", "above 7"]


def test_logs_that_cannot_be_asked_yet_are_asked_again() -> None:
    failing = iter([True, False])

    async def allocate(above: int) -> tuple[int, int]:
        return above + 1, above + 1000

    async def used_ids() -> list[int]:
        if next(failing):
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return [7]

    async def take() -> None:
        blocks = ProducerIdBlocks(allocate, used_ids, lambda: False)
        with pytest.raises(ApiError):
            await blocks.next()
        assert await blocks.next() == (8, 1007)

    asyncio.run(take())


class Lives:
    """A broker whose metadata store may lose its memory between its lives."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.broker = Broker(data_dir=folder, transaction_state_log_num_partitions=2, num_partitions=1)
        self.broker.start()
        self.broker.create_topic("t")

    def next_life(self, how: str, *, is_clean: bool = True) -> None:
        (self.broker.stop if is_clean else self.broker.kill)()
        store, copy = self.folder / "metadata.sqlite", self.folder.with_name("copy.sqlite")
        if how == "an earlier store":
            for path in self.folder.glob("metadata.sqlite*"):
                path.unlink()
            shutil.copy(copy, store)
        elif how == "copied":
            shutil.copy(store, copy)
        elif how in ("deleted", "emptied"):
            with sqlite3.connect(store) as database:
                change = "DELETE FROM znode" if how == "deleted" else "UPDATE znode SET data = x''"
                assert database.execute(f"{change} WHERE path = ?", (BLOCK,)).rowcount == 1
            database.close()
        self.broker.start()

    def new_id(self, transactional_id: str | None = None) -> int:
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
        with Connection(self.broker.bootstrap_servers) as connection:
            if transactional_id is not None:  # makes the coordinator's topic
                connection.ask(FindCoordinatorRequest(key_type=1, coordinator_keys=[transactional_id]), 4)
            loading = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)  # as after each start
            answer = wait_until(
                lambda: found if (found := connection.ask(request, 4)).error_code not in loading else None,
                "a coordinator that is loaded",
            )
        assert answer.error_code == ErrorCode.NONE
        return int(answer.producer_id)

    def write_as(self, *producer_ids: int) -> None:
        """A record each of producers whose ids a client made up."""
        with Connection(self.broker.bootstrap_servers) as connection:
            for producer_id in producer_ids:
                batch = batch_of([b"x"], producer_id=ProducerId(producer_id), producer_epoch=0, base_sequence=0)
                assert produce_batch(connection, "t", bytes(batch)).error_code == ErrorCode.NONE

    def write(self, count: int = 5) -> list[int]:
        """The offsets of the records of a new idempotent producer."""
        producer = Producer({"bootstrap.servers": self.broker.bootstrap_servers, "enable.idempotence": True})
        offsets: list[int] = []
        for number in range(count):
            producer.produce("t", b"%d" % number, on_delivery=lambda _error, message: offsets.append(message.offset()))
            assert producer.flush(PATIENCE_S) == 0
        return offsets


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    found = Lives(tmp_path / "data")
    yield found
    found.broker.stop()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "is_clean"),
    [("deleted", True), ("emptied", True), ("deleted", False), ("an earlier store", True), ("an earlier store", False)],
)
def test_no_id_is_handed_out_again_after_a_loss_of_the_store(lives: Lives, how: str, is_clean: bool) -> None:
    lives.next_life("copied")
    assert lives.write() == [0, 1, 2, 3, 4]
    lives.next_life(how, is_clean=is_clean)
    assert lives.write() == [5, 6, 7, 8, 9], "taken for retries of the first producer's"
    first = lives.new_id()
    assert first // 1000 == 1, "the rest of the first block may be in use as well"
    lives.next_life("nothing")
    assert lives.new_id() == 2000


def test_the_ids_of_transactions_count_though_none_has_written(lives: Lives) -> None:
    assert lives.new_id("a") == 0
    lives.next_life("deleted")
    assert lives.new_id() == 1000
    assert lives.new_id("a") == 0


def test_made_up_producer_ids_do_not_use_up_the_remaining_ones(lives: Lives) -> None:
    lives.write_as(1234, 2**63 - 1, 2**62)
    lives.next_life("nothing")
    assert lives.new_id() == 2000, "nobody has got one yet, so that the logs are asked"


def test_after_a_clean_stop_no_log_is_looked_at(lives: Lives) -> None:
    lives.write()
    lives.write_as(1_000_000)
    lives.next_life("nothing")
    assert lives.new_id() == 1000


def test_the_controller_hands_out_the_ids_of_all_brokers() -> None:
    with Cluster(brokers=2) as cluster:
        controller = cluster.brokers[cluster.controller()].server
        other = cluster.brokers[1 - controller.node_id].server
        ids = [cluster.call(server.producer_ids.next()) for server in (other, controller, other, controller)]
        assert ids == [0, 1000, 1, 1001]
        assert controller.metrics.apis[67].count == 1
        assert 67 not in other.metrics.apis
        first, last = cluster.call(other._parts._allocate_producer_ids(5_500))
        assert (first, last) == (6_000, 6_999), "the store was older than the logs"
        cluster.brokers[controller.node_id].kill()
        assert cluster.call(other._parts._allocate_producer_ids(-1)) == (7_000, 7_999), "whoever is the controller now"
