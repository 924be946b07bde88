"""Configs changed through two brokers at the same time, on one metadata store."""

from __future__ import annotations

import asyncio
from pathlib import Path

from barnabas.broker.configuration.changes import SET, TOPIC, ConfigChanges, apply_operations
from barnabas.broker.configuration.config import load
from barnabas.broker.configuration.topics import TopicConfigs
from barnabas.clock import ManualClock
from barnabas.controller import znodes
from barnabas.controller.configs import ConfigRepository
from barnabas.controller.coordination.embedded import EmbeddedStore
from barnabas.wire.messages.incremental_alter_configs import AlterableConfig, AlterConfigsResource
from tests.support.manual_timers import ManualTimers

KEYS = {1: ("retention.ms", "60000"), 2: ("cleanup.policy", "compact")}


def test_changes_of_two_brokers_to_one_topic_both_hold(tmp_path: Path) -> None:
    """Each broker is asked for another key of the topic before it hears of what the other one changed."""
    asyncio.run(alter_both(tmp_path))


async def alter_both(tmp_path: Path) -> None:
    clock = ManualClock()
    store = EmbeddedStore(str(tmp_path / "metadata.sqlite"), clock, is_durable=False)
    await store.open()
    repositories = {}
    for node_id in KEYS:
        repositories[node_id] = ConfigRepository(await store.session(), clock, ManualTimers())
        await repositories[node_id].start()
    session = await store.session()
    await session.create(znodes.topic_path("t"))

    async def alter(node_id: int) -> None:
        key, value = KEYS[node_id]
        topic_configs = TopicConfigs(load(environ={"HOME": "/"}, properties={}), repositories[node_id])
        changes = ConfigChanges(node_id, topic_configs, repositories[node_id], {"t"})
        config = AlterableConfig(name=key, config_operation=SET, value=value)
        resource = AlterConfigsResource(resource_type=TOPIC, resource_name="t", configs=[config])
        assert await changes.alter([resource], apply_operations, lambda _: None, validate_only=False) == [None]

    await asyncio.gather(*map(alter, KEYS))
    payload, _ = await session.get(znodes.config_path("topics", "t"))
    assert znodes.decode_config("topics", "t", payload) == dict(KEYS.values())
    for repository in repositories.values():
        await repository.stop()
    await store.close()
