"""Topics that this broker has a controller in another broker create."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.cluster.controller_requests import create_topics
from barnabas.broker.cluster.metadata import GROUP_METADATA_TOPIC
from barnabas.controller.topics import NewTopic
from barnabas.testing.contents.requests import ask
from barnabas.wire.errors import ApiError, ErrorCode
from tests.broker.running import running


def test_topics_are_created_as_this_broker_would(tmp_path: Path) -> None:
    async def create() -> None:
        async with running(tmp_path, num_partitions="3") as controller:
            offsets = controller.internal_topics.new_topic(GROUP_METADATA_TOPIC)
            assert offsets is not None
            outcomes = await create_topics(
                lambda request, version: ask(controller, request, version),
                [NewTopic("t"), offsets, NewTopic("?")],
                1000,
            )
            told = {outcome.name: (outcome.error, outcome.partition_count) for outcome in outcomes}
            assert told == {
                "t": (ErrorCode.NONE, 3),
                GROUP_METADATA_TOPIC: (ErrorCode.NONE, 1),
                "?": (ErrorCode.INVALID_TOPIC_EXCEPTION, -1),
            }
            assert {outcome.topic_id for outcome in outcomes if outcome.error is ErrorCode.NONE} == {
                controller.metadata.topic_id("t"),
                controller.metadata.topic_id(GROUP_METADATA_TOPIC),
            }
            assert controller.configs.overrides("topics", GROUP_METADATA_TOPIC) == offsets.configs

    asyncio.run(create())


def test_no_controller_answers() -> None:
    async def send(_request: Any, _version: int) -> Any:
        raise ConnectionRefusedError("refused")

    with pytest.raises(ApiError, match="The controller does not answer: refused") as caught:
        asyncio.run(create_topics(send, [NewTopic("t")], 1000))
    assert caught.value.error is ErrorCode.REQUEST_TIMED_OUT
