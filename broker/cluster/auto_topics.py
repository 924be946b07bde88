"""Creates missing topics on request: by Metadata (`auto.create.topics.enable`), and the internal ones by
FindCoordinator.

Creation runs in the background, once per name at a time; the client's response is a retriable error (Kafka's
AutoTopicCreationManager).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from barnabas.clock import Clock
from barnabas.controller.topics import NewTopic, TopicOutcome
from barnabas.set_aside import SetAside
from barnabas.wire.errors import ApiError, ErrorCode

logger = logging.getLogger(__name__)

IN_FLIGHT_MAX = 100
"""The number of topics that are created at a time; one request can name many more. The clients of the others retry."""

_ASKED_FOR = "topics that were asked for"

Create = Callable[[list[NewTopic]], Awaitable[list[TopicOutcome]]]


class AutoTopicCreation:
    """Creates missing topics; `internal_topic(name)` returns the properties of an internal topic, None for other names.
    Topics for which `waits_for_brokers` returns a reason are not created yet.
    """

    def __init__(
        self,
        create: Create,
        internal_topic: Callable[[str], NewTopic | None],
        waits_for_brokers: Callable[[str], str | None],
        clock: Clock,
    ) -> None:
        self._create = create
        self._internal_topic = internal_topic
        self._waits_for_brokers = waits_for_brokers
        self.set_aside = SetAside[str]("creating", clock, first_delay_ms=0)
        self._in_flight: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._refusals: dict[str, str] = {}
        """The reasons why internal topics were not created at the last request."""

    def why_missing(self, name: str) -> str | None:
        """The reason why an internal topic was not created at the last request; None if that is unknown."""
        return self._waits_for_brokers(name) or self._refusals.get(name)

    def create(self, names: Iterable[str]) -> None:
        """Start to create topics that are not being created already."""
        topics = []
        for name in names:
            has_room = name not in self._in_flight and len(self._in_flight) < IN_FLIGHT_MAX
            if has_room and not self._waits_for_brokers(name):
                self._in_flight.add(name)
                topics.append(self._internal_topic(name) or NewTopic(name))
        if topics:
            task = asyncio.get_running_loop().create_task(self._run(topics))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, topics: list[NewTopic]) -> None:
        try:
            for outcome in await self._create(topics):
                self._refusals.pop(outcome.name, None)
                if outcome.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                    logger.warning(
                        "automatic creation of topic %s failed: %s %s",
                        outcome.name,
                        outcome.error.name,
                        outcome.message,
                    )
                    if self._internal_topic(outcome.name) is not None:
                        told = outcome.message or outcome.error.message
                        self._refusals[outcome.name] = f"{outcome.name} cannot be created: {told}"
        except ApiError as error:
            logger.warning("automatic creation of topics failed: %s", error)
        except Exception as error:  # noqa: BLE001 - the client retries
            self.set_aside.put(_ASKED_FOR, error)
        else:
            self.set_aside.release(_ASKED_FOR)
        finally:
            self._in_flight.difference_update(topic.name for topic in topics)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
