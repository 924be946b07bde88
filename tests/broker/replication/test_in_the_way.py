"""Files at the path of a new topic's directory."""

import asyncio
from pathlib import Path

from barnabas.broker.configuration import config
from barnabas.broker.environment import Environment
from barnabas.broker.server import Broker
from barnabas.clock import ManualClock
from barnabas.controller.topics import NewTopic
from barnabas.wire.errors import ErrorCode
from tools.waiting import PATIENCE_S


def test_a_file_in_the_way_of_a_topic_concerns_that_topic_alone(tmp_path: Path) -> None:
    """No disk failed: other topics are created, a start succeeds, and the creation succeeds once the file is gone."""
    failures: list[str] = []
    clock = ManualClock()
    (tmp_path / "foo-0").write_bytes(b"x")

    def new_broker() -> Broker:
        keys = {"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"}
        return Broker(config.load(options=keys), Environment(clock=clock), failures.append)

    def has_leader(broker: Broker, topic: str) -> bool:
        return broker.replicas.partition(topic, 0) is not None

    async def scenario() -> None:
        broker = new_broker()
        await broker.start()
        creation = asyncio.ensure_future(broker.controller.create_topics([NewTopic("foo", 1)]))
        (other,) = await broker.controller.create_topics([NewTopic("other", 1)])
        assert other.error is ErrorCode.NONE
        assert not has_leader(broker, "foo")
        await broker.stop()
        creation.cancel()
        await asyncio.gather(creation, return_exceptions=True)
        broker = new_broker()
        await broker.start()
        await broker.settle()
        assert has_leader(broker, "other")
        assert not has_leader(broker, "foo")
        (tmp_path / "foo-0").unlink()
        clock.advance(60_000)
        broker.timers.fire_due()
        await broker.settle()
        assert has_leader(broker, "foo")
        await broker.stop()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))
    assert failures == []
    assert (tmp_path / "foo-0").is_dir()
