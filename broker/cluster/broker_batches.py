"""Batches requests to other brokers: one request is in flight to each, and items that arrive meanwhile are sent with
the next.

Kafka's senders between brokers (InterBrokerSendThread) batch in the same way: transaction markers, verifications.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

Item = TypeVar("Item")


class BrokerBatches(Generic[Item]):
    """Items that wait to be sent, by broker; owned by the event loop.

    `deliver(broker_id, waiting)` takes the items of one request out of `waiting`, at least one item, and returns when
    it has set the result of each; it must not raise. It is called again as long as items wait. `activity` names the
    purpose in log lines.
    """

    def __init__(self, activity: str, deliver: Callable[[int, deque[Item]], Awaitable[None]]) -> None:
        self._activity = activity
        self._deliver = deliver
        self._silent: set[int] = set()
        self._waiting: dict[int, deque[Item]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def add(self, broker_id: int, item: Item) -> None:
        """Send an item: together with all that are added before the event loop's next iteration, or while a request is
        in flight to that broker.
        """
        self._waiting.setdefault(broker_id, deque()).append(item)
        if broker_id not in self._tasks:
            self._tasks[broker_id] = asyncio.get_running_loop().create_task(self._send(broker_id))

    def withdraw(self, goes_elsewhere: Callable[[int, Item], bool]) -> list[Item]:
        """Remove the waiting items for which `goes_elsewhere(broker_id, item)` holds; items in flight stay."""
        withdrawn: list[Item] = []
        for broker_id, waiting in self._waiting.items():
            if any(goes_elsewhere(broker_id, item) for item in waiting):
                items = list(waiting)
                waiting.clear()
                for item in items:
                    (withdrawn if goes_elsewhere(broker_id, item) else waiting).append(item)
        return withdrawn

    async def _send(self, broker_id: int) -> None:
        waiting = self._waiting[broker_id]
        try:
            while waiting:
                count = len(waiting)
                try:
                    await self._deliver(broker_id, waiting)
                except Exception as error:  # noqa: BLE001 - a bug; the waiting items must not be lost with it
                    self.failed(broker_id, error)
                    if len(waiting) == count:
                        waiting.popleft()
        finally:
            del self._tasks[broker_id]
            del self._waiting[broker_id]

    def answered(self, broker_id: int) -> None:
        """Note that a broker has responded, so that its next failure is logged again."""
        self._silent.discard(broker_id)

    def failed(self, broker_id: int, error: Exception) -> None:
        """There was no response; logged once, until the broker responds again."""
        if broker_id not in self._silent:
            self._silent.add(broker_id)
            trace = None if isinstance(error, OSError) else error
            log.warning(
                "%s: no response from broker %d, retrying: %s", self._activity, broker_id, error, exc_info=trace
            )

    async def close(self) -> None:
        """Send nothing more; call `withdraw` for the waiting items before."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
