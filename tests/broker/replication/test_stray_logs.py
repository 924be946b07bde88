"""Logs of topics that the metadata store does not have: they are set aside at a full LeaderAndIsr, their names are free
for new topics, and no log is lost."""

import asyncio
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from barnabas.clock import SystemClock
from barnabas.controller.coordination.embedded import EmbeddedStore
from barnabas.controller.coordination.interface import Delete
from barnabas.controller.requests import FULL
from barnabas.testing import Broker
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.leader_and_isr import LeaderAndIsrRequest
from tests.controller.conftest import own_broker_obeys
from tools.waiting import wait_until


def stray_logs(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name.endswith("-stray"))


def records(broker: Broker, topic: str = "w") -> list[bytes | None]:
    return [record.value for record in broker.topic(topic).records()]


def create_again(broker: Broker) -> None:
    broker.create_topic("w", partitions=2)
    broker.topic("w").produce("new", partition=0)
    assert records(broker) == [b"new"]
    broker.restart()
    assert records(broker) == [b"new"]
    broker.topic("w").produce("newer", partition=0)
    broker.delete_topic("w")
    broker.create_topic("w")
    assert records(broker) == []


async def remove_znodes(broker: Broker, topic: str) -> None:
    session = broker.server._session
    parent = f"/brokers/topics/{topic}"
    partitions = await session.get_children(f"{parent}/partitions")
    paths = [path for p in partitions for path in (f"{parent}/partitions/{p}/state", f"{parent}/partitions/{p}")]
    await session.multi([Delete(path) for path in (*paths, f"{parent}/partitions", parent)])


def test_a_topic_whose_znodes_were_removed_may_be_created_again(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path / "data") as broker:
        broker.create_topic("w", partitions=2)
        for number in range(3):
            broker.topic("w").produce(str(number), partition=0)
        broker.call(remove_znodes(broker, "w"))
        wait_until(lambda: "w" not in broker.server.controller.cluster.topics)
        create_again(broker)
        kept = stray_logs(broker.data_dir)
        assert [path.name.partition(".")[0] for path in kept] == ["w-0", "w-1"]
        assert (kept[0] / "00000000000000000000.log").stat().st_size > 0, "the records of before are there"


def test_a_topic_unknown_to_the_store_can_be_created_again(tmp_path: Path) -> None:
    broker = Broker(data_dir=tmp_path / "data")
    with broker:
        broker.stop()
        store, copy = tmp_path / "data" / "metadata.sqlite", tmp_path / "copy"
        shutil.copy(store, copy)
        broker.start()
        broker.create_topic("w", partitions=2)
        broker.topic("w").produce("old", partition=0)
        broker.stop()
        for path in store.parent.glob("metadata.sqlite*"):
            path.unlink()
        shutil.copy(copy, store)
        broker.start()
        assert [path.name.partition(".")[0] for path in stray_logs(tmp_path / "data")] == ["w-0", "w-1"]
        create_again(broker)
        assert [path.name.partition(".")[0] for path in stray_logs(tmp_path / "data")] == ["w-0", "w-1"]


def test_logs_that_no_topic_claims_are_set_aside_at_a_start(tmp_path: Path) -> None:
    """Not while the broker runs: then the controller sends it each deletion."""
    with Broker(data_dir=tmp_path / "data") as broker:
        for name in ("kept", "w"):
            broker.create_topic(name)
            broker.topic(name).produce("0", partition=0)
        broker.call(remove_znodes(broker, "w"))
        broker.call(tell_everything(broker))
        assert stray_logs(broker.data_dir) == []
        broker.restart()
        (aside,) = stray_logs(broker.data_dir)
        assert aside.name.startswith("w-0.")
        assert records(broker, "kept") == [b"0"]
        broker.restart()
        assert stray_logs(broker.data_dir) == [aside], "it is the operator's"


async def tell_everything(broker: Broker) -> None:
    """Send what a new controller sends in a cluster without topics."""
    epoch = broker.server.controller.epoch
    response = await broker.server.commands.leader_and_isr(
        LeaderAndIsrRequest(controller_id=broker.server.node_id, controller_epoch=epoch, type=FULL)
    )
    assert response.error_code == ErrorCode.NONE


def test_an_interrupted_deletion_leaves_nothing_behind(tmp_path: Path) -> None:
    """At the start the topic is deleted before its logs count as stray."""

    async def queue_deletion() -> None:
        store = EmbeddedStore(str(tmp_path / "data" / "metadata.sqlite"), SystemClock())
        await store.open()
        session = await store.session()
        await session.create("/admin/delete_topics/w")
        await session.close()
        await store.close()

    with Broker(data_dir=tmp_path / "data") as broker:
        for name in ("kept", "w"):
            broker.create_topic(name)
            broker.topic(name).produce("0", partition=0)
        broker.stop()
        asyncio.run(queue_deletion())
        broker.start()
        broker.call(own_broker_obeys(broker.server.controller))
        assert "w" not in broker.server.controller.cluster.topics
        assert stray_logs(broker.data_dir) == []
        assert not (broker.data_dir / "w-0").exists()
        assert records(broker, "kept") == [b"0"]


def test_logs_of_a_topic_whose_znode_cannot_be_read_stay(tmp_path: Path) -> None:
    """An administrator may correct the znode."""
    with Broker(data_dir=tmp_path / "data") as broker:
        broker.create_topic("w")
        broker.topic("w").produce("0", partition=0)
        [(payload, _)] = broker.call(broker.server._session.get_many(["/brokers/topics/w"]))
        broker.stop()
        with closing(sqlite3.connect(tmp_path / "data" / "metadata.sqlite")) as store, store:
            store.execute("UPDATE znode SET data = CAST('nonsense' AS BLOB) WHERE path = '/brokers/topics/w'")
        broker.start()
        assert "w" not in broker.server.controller.cluster.topics
        assert stray_logs(broker.data_dir) == []
        broker.call(broker.server._session.set("/brokers/topics/w", payload))
        broker.restart()
        assert records(broker) == [b"0"]
