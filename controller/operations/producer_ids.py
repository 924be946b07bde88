"""AllocateProducerIds: blocks of producer ids, unique in the cluster for ever.

The controller takes them from the store, for its own broker and for others (`producer_id_grants.py`). A write that
compares versions makes them unique whichever process writes, so it needs no check of the controller's epoch, as in
Kafka: a broker whose logs are ahead of the store repairs the store by itself.

*Source*: kafka 3.9.1 `ZkProducerIdManager.getNewProducerIdBlock`.
"""

import contextlib
import logging
from collections.abc import Callable

from barnabas.controller import znodes
from barnabas.controller.bootstrap import create_missing
from barnabas.controller.coordination.interface import (
    BadVersion,
    CoordinationStore,
    NoNode,
    SessionExpired,
    StoreUnavailable,
    WatchedEvent,
    Watcher,
)
from barnabas.controller.event_queue import EventQueue
from barnabas.controller.sessions import StoreSessions
from barnabas.timers import Timers, time_limit
from barnabas.wire.errors import ApiError, ErrorCode

PRODUCER_ID_BLOCK_SIZE = 1000
"""The size of a block of producer ids (`ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE`)."""

PRODUCER_ID_MAX = 2**63 - 1

logger = logging.getLogger(__name__)


class AllocateProducerIds:
    """`Controller.allocate_producer_ids`: called by the task that assigns producer ids.

    It remembers the last allocated id, so that a deleted or damaged znode can be written again: `keep` is called at a
    start, in a new session, and by the controller's task whenever the znode has changed.
    """

    def __init__(
        self, sessions: StoreSessions, broker_id: int, events: EventQueue, timers: Timers, timeout_ms: int
    ) -> None:
        self._sessions = sessions
        self._broker_id = broker_id
        self._events = events
        self._timers = timers
        self._timeout_ms = timeout_ms
        self._last = -1

    @property
    def knows_what_was_allocated(self) -> bool:
        """Whether the metadata store records, or recorded, which producer ids were allocated."""
        return self._last >= 0

    async def __call__(self, above: int = -1, *, broker_id: int | None = None) -> tuple[int, int]:
        """A new block of producer ids, all of them greater than `above`: its first and last id, both included. It is
        for the broker of that id, or for this one.

        Raises: ApiError(COORDINATOR_LOAD_IN_PROGRESS) if the store is unreachable, its disk full, or the allocated ids
        are unknown: the producer retries.

        *Source*: `ZkProducerIdManager.getNewProducerIdBlock`; the error is `RPCProducerIdManager`'s.
        """
        try:
            async with time_limit(self._timers, self._timeout_ms):
                first, last = await allocate_block(
                    self._sessions.store, self._broker_id if broker_id is None else broker_id, above
                )
        except (StoreUnavailable, SessionExpired, TimeoutError, znodes.DamagedZnode, NoNode) as error:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS) from error
        self._last = max(last, self._last)
        return first, last

    async def keep(self) -> None:
        """Read the last allocated producer id, and again whenever its znode changes.

        Raises: CoordinationError.
        """

        def changed(_event: WatchedEvent) -> None:
            self._events.submit(self.keep, needs_controllership=False)

        last = await keep_block(self._sessions.store, self._broker_id, lambda: self._last, changed)
        self._last = max(self._last, last)


async def keep_block(store: CoordinationStore, broker_id: int, last_known: Callable[[], int], watcher: Watcher) -> int:
    """The last allocated id, -1 if there is none or it is unknown; `last_known` returns the currently known one, at any
    time: blocks are allocated meanwhile.

    A missing or damaged znode is written again from that, at once: the broker's next run knows nothing else. The
    watcher is called for the next change.

    Raises: CoordinationError.
    """

    def known() -> bytes:
        above = last_known()
        return znodes.encode_producer_id_block(znodes.ProducerIdBlock(broker_id, above, above)) if above >= 0 else b""

    while True:
        if await create_missing(store, {znodes.PRODUCER_ID_BLOCK: known()}) and last_known() >= 0:
            logger.error("%s was gone: producer ids go on above %d", znodes.PRODUCER_ID_BLOCK, last_known())
        found = (await store.get_many([znodes.PRODUCER_ID_BLOCK], watcher))[0]
        if found is None:
            continue
        try:
            last = znodes.decode_producer_id_block(found[0]).last if found[0] else -1
            if last >= last_known():
                return last
            error = f"it says {last}"
        except znodes.DamagedZnode as damage:
            error = str(damage)
        if last_known() < 0:
            logger.error("no producer gets an id until this znode is corrected: %s", error)
            return -1
        logger.error("producer ids go on above %d: %s", last_known(), error)
        with contextlib.suppress(BadVersion, NoNode):
            await store.set(znodes.PRODUCER_ID_BLOCK, known(), found[1].version)


async def allocate_block(store: CoordinationStore, broker_id: int, above: int = -1) -> tuple[int, int]:
    """Allocate the next block to a broker, behind the block of any id that is known to be used: its first and last id,
    both included.

    Raises: CoordinationError, DamagedZnode, ApiError(UNKNOWN_SERVER_ERROR) when all ids have been used.
    """
    while True:
        payload, stat = await store.get(znodes.PRODUCER_ID_BLOCK)
        first = znodes.decode_producer_id_block(payload).last + 1 if payload else 0
        if above >= first:
            logger.warning("%s is older than the logs: producer ids go on above %d", znodes.PRODUCER_ID_BLOCK, above)
            first = (above // PRODUCER_ID_BLOCK_SIZE + 1) * PRODUCER_ID_BLOCK_SIZE
        last = first + PRODUCER_ID_BLOCK_SIZE - 1
        if last > PRODUCER_ID_MAX:
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "All producer ids have been handed out.")
        block = znodes.ProducerIdBlock(broker_id, first, last)
        try:
            await store.set(znodes.PRODUCER_ID_BLOCK, znodes.encode_producer_id_block(block), stat.version)
        except BadVersion:
            continue  # another broker took this block
        return first, last
