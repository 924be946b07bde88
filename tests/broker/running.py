"""A whole broker on the event loop of the test."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from barnabas.broker.configuration import config
from barnabas.broker.environment import Environment
from barnabas.broker.server import Broker
from barnabas.clock import ManualClock
from barnabas.storage.os_files import UnsyncedFiles

ENVIRONMENT = Environment(files=UnsyncedFiles())


@asynccontextmanager
async def running(data_dir: Path, environment: Environment = ENVIRONMENT, **configs: str) -> AsyncIterator[Broker]:
    """A broker whose time stands still, with internal topics of one partition; what ends it fails the test. `configs`
    are Kafka's keys with underscores for dots.
    """
    keys = {
        "log.dirs": str(data_dir),
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
        **{key.replace("_", "."): value for key, value in configs.items()},
    }
    failures: list[str] = []
    broker = Broker(config.load(options=keys), replace(environment, clock=ManualClock()), failures.append)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()
    assert failures == []
