"""The CreateTopics request of this broker to a controller in another broker, for missing topics that clients request
(Kafka's AutoTopicCreationManager). Imported by the first such request.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from barnabas.controller.topics import NewTopic, TopicOutcome
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

CREATE_TOPICS_VERSION: Final = 7

Send = Callable[[CreateTopicsRequest, int], Awaitable[CreateTopicsResponse]]
"""Sends a request to the controller, in a version; raises OSError when no controller has responded in time."""


async def create_topics(send: Send, topics: Sequence[NewTopic], timeout_ms: int) -> list[TopicOutcome]:
    """Create topics at the controller, given by their counts and configs, within `timeout_ms`.

    Errors: ApiError REQUEST_TIMED_OUT: there is no controller, or it did not respond.
    """
    request = CreateTopicsRequest(topics=[_creatable(topic) for topic in topics], timeout_ms=timeout_ms)
    try:
        response = await send(request, CREATE_TOPICS_VERSION)
    except OSError as error:
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT, f"The controller does not answer: {error}") from error
    return [
        TopicOutcome(
            result.name,
            ErrorCode.of(result.error_code),
            result.error_message,
            result.topic_id,
            result.num_partitions,
            result.replication_factor,
        )
        for result in response.topics
    ]


def _creatable(topic: NewTopic) -> CreatableTopic:
    assert not topic.assignments, "no topic is created by itself with a manual assignment"
    return CreatableTopic(
        name=topic.name,
        num_partitions=topic.partition_count,
        replication_factor=topic.replication_factor,
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()],
    )
