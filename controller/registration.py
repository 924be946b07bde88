"""This broker's registration: the ephemeral znode that proves that it is alive, and its epoch.

Every broker of a cluster has one, whether it is the controller or not.
"""

import asyncio
import logging

from barnabas.clock import Clock
from barnabas.controller import znodes
from barnabas.controller.coordination.interface import ConnectionLost, Create, NodeExists, SetData, Stat
from barnabas.controller.sessions import StoreSessions
from barnabas.controller.state import BrokerRegistration
from barnabas.timers import Timers

logger = logging.getLogger(__name__)


class BrokerIdInUse(Exception):
    """Another live broker of the cluster has this broker's id."""


class Registration:
    """Registers one broker, again in each of its sessions. `broker` is its registration data; its `epoch` is -1 before
    the first registration, `first_epoch` that of the first one: the start of this process's life in the cluster.

    Called by the controller's task, and by `Controller.start` before the task exists.

    *Source*: kafka 3.9.1 `KafkaZkClient.registerBroker`, `CheckedEphemeral` (KAFKA-7165).
    """

    def __init__(self, sessions: StoreSessions, broker: BrokerRegistration, clock: Clock, timers: Timers) -> None:
        self.broker = broker
        self.first_epoch = -1
        self.is_known = asyncio.Event()
        """Set when the broker has an epoch."""
        self._sessions = sessions
        self._clock = clock
        self._timers = timers

    @property
    def path(self) -> str:
        """The znode of the registration."""
        return znodes.broker_path(self.broker.broker_id)

    async def register(self) -> None:
        """Create the broker's znode; its czxid becomes the broker's epoch.

        An existing znode of this process is replaced. One of another process may be that of a dead broker, for instance
        one that was killed and restarted: registration waits as long as its session may last.

        Raises: BrokerIdInUse, CoordinationError.
        """
        payload = znodes.encode_broker(self.broker, self._clock.now_ms())
        while True:
            try:
                # The second write is for its result: a creation does not return the czxid.
                results = await self._sessions.store.multi(
                    [Create(self.path, payload, ephemeral=True), SetData(self.path, payload)]
                )
                break
            except ConnectionLost:
                continue  # if it was written, it is found and replaced
            except NodeExists as error:
                if not await self._make_way():
                    raise BrokerIdInUse(
                        f"a broker with id {self.broker.broker_id} is registered already{await self._address()}:"
                        " give every broker of a cluster its own node.id"
                    ) from error
        stat = results[1]
        assert isinstance(stat, Stat)
        self.broker = self.broker._replace(epoch=stat.czxid)
        if self.first_epoch < 0:
            self.first_epoch = stat.czxid
        self.is_known.set()

    def lacks_nothing(self) -> None:
        """Drop from later registrations that the broker may lack records."""
        self.broker = self.broker._replace(may_lack_records=False, damaged=frozenset())

    async def _make_way(self) -> bool:
        """Delete the znode if it is this process's, or wait for its end; returns whether it is gone."""
        stat = await self._sessions.store.exists(self.path)
        if stat is None:
            return True
        if self._sessions.own(stat):
            await self._sessions.delete_own(self.path, stat)
            return True
        # ZooKeeper detects the end of a session late, by a tick or two.
        return await self._is_gone_within(self._sessions.store.session_timeout_ms * 3 // 2)

    async def _is_gone_within(self, timeout_ms: int) -> bool:
        if timeout_ms == 0:
            return False
        logger.warning("%s is there already%s: waiting for it to go", self.path, await self._address())
        news = asyncio.Event()
        is_over = False

        def give_up() -> None:
            nonlocal is_over
            is_over = True
            news.set()

        timer = self._timers.call_later(timeout_ms, give_up)
        try:
            while not is_over:
                news.clear()
                if await self._sessions.store.exists(self.path, lambda _event: news.set()) is None:
                    return True
                await news.wait()
        finally:
            timer.cancel()
        return False

    async def _address(self) -> str:
        """The address of the registered broker, for a message."""
        found = (await self._sessions.store.get_many([self.path]))[0]
        if found is None:
            return ""
        try:
            broker = znodes.decode_broker(self.broker.broker_id, found[0], found[1].czxid)
        except znodes.DamagedZnode:
            return ""
        return f" ({', '.join(endpoint.connection_string for endpoint in broker.endpoints)})"
