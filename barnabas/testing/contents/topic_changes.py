"""Changes of a topic's records: appends, changes of leaders, creation and deletion of topics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

from barnabas.wire.errors import ApiError
from barnabas.wire.names import TopicId

if TYPE_CHECKING:
    from barnabas.broker.replication.partition import Partition
    from barnabas.broker.server import Broker as Server
    from barnabas.testing.contents.partitions import Partitions

Ends = dict[tuple[TopicId, int], int]
"""The ends of partitions' committed records, by topic id and index."""


class TopicChanges:
    """Sets `changed` at every event that may change a topic's records, during its `with` block. Broker's loop only."""

    def __init__(self, owner: Partitions, topic: str, changed: asyncio.Event) -> None:
        self._owner = owner
        self._topic = topic
        self._changed = changed
        self._servers: set[Server] = set()
        self._watched: set[Partition] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self._servers:
            server.metadata.listeners.pop(self._changed.set, None)
        for partition in self._watched:
            partition.remove_listener(self._has_progressed)

    def partitions(self) -> list[Partition]:
        """The partitions that have a leader now; this listens to them, and to the running brokers, from now on."""
        for server in self._owner.live_servers():
            server.metadata.listeners[self._changed.set] = None
            self._servers.add(server)
        partitions = partitions_if_any(self._owner, self._topic)
        for partition in partitions:
            partition.add_listener(self._has_progressed)
        self._watched.update(partitions)
        return partitions

    async def wait(self, time_ms: int | None = None) -> None:
        """Wait until something has changed, a check is due, or this much of the brokers' time (if given) has passed."""
        servers = self._owner.live_servers() if time_ms is not None else []
        alarms = [server.timers.call_later(time_ms or 0, self._changed.set) for server in servers]
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._owner._recheck_s):
                    await self._changed.wait()
        finally:
            for alarm in alarms:
                alarm.cancel()

    def _has_progressed(self, partition: Partition) -> None:
        self._changed.set()


def partitions_if_any(owner: Partitions, topic: str) -> list[Partition]:
    """The partitions that have a leader, none for a topic that does not exist (yet) or is being deleted."""
    try:
        led = [owner._led(topic, index) for index in sorted(owner._known_topic(topic).partitions)]
    except ApiError:
        return []
    return [found.partition for found in led if found is not None]


def ends_of(partitions: Iterable[Partition]) -> Ends:
    """The current ends of partitions' committed records."""
    return {(partition.topic_id, partition.index): partition.log.last_stable_offset for partition in partitions}


async def wait_for_offsets(owner: Partitions, topic: str, ends: Ends, count: int, changed: asyncio.Event) -> None:
    """Wait until the topic exists and at least `count` offsets are committed beyond `ends`; checks whenever `changed`
    is set.

    A topic that was deleted and created again has other partitions, so all of its offsets are new.
    """

    def added(partition: Partition) -> int:
        seen = ends.get((partition.topic_id, partition.index), 0)
        return max(0, partition.log.last_stable_offset - max(seen, partition.log.log_start_offset))

    with TopicChanges(owner, topic, changed) as changes:
        while True:
            await asyncio.sleep(0)  # lets a timeout end this, however fast the topic grows
            changed.clear()
            partitions = changes.partitions()
            if partitions and sum(map(added, partitions)) >= count:
                return
            await changes.wait()
