"""The topic that most clients of a run use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from barnabas.broker.client.client import KafkaClient
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest

TOPIC: Final = "events"
PARTITIONS: Final = 3
TIMESTAMP_TYPE: Final = "LogAppendTime"
"""A topic config that differs from the default, to detect a broker that has not read the topic's configs."""


async def create_topic(bootstrap_servers: str, tell: Callable[[str], None]) -> None:
    """Create the topic, as soon as a controller is there."""
    settings = [CreatableTopicConfig(name="message.timestamp.type", value=TIMESTAMP_TYPE)]
    topic = CreatableTopic(name=TOPIC, num_partitions=PARTITIONS, replication_factor=-1, configs=settings)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
    async with KafkaClient(bootstrap_servers) as client:
        while True:
            reply = await client.send_to_controller(request)
            error = ErrorCode.of(reply.topics[0].error_code)
            if error in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                return
            tell(f"admin: {error.name}")
            await asyncio.sleep(0.5)
            await client.metadata([])
