"""A broker's standing in its cluster: its registration, the office of controller, the right to write that it gives."""

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Sequence

from barnabas.clock import Clock
from barnabas.controller import znodes
from barnabas.controller.admin_request import Timers
from barnabas.controller.coordination.interface import (
    BadVersion,
    Check,
    ConnectionLost,
    CoordinationStore,
    Create,
    NodeExists,
    NoNode,
    Operation,
    SetData,
    Stat,
)
from barnabas.controller.operations.plan import OperationGroup, transactions
from barnabas.controller.state import BrokerRegistration

logger = logging.getLogger(__name__)


class BrokerIdInUse(Exception):
    """Another live broker of the cluster has this broker's id."""


class ControllerElsewhere(Exception):
    """Another broker is the controller of this store."""


class Deposed(ControllerElsewhere):
    """The controller's epoch is over: a write or a command was refused."""


class Office:
    """Registration and controllership of one broker, in one session after the other; `epoch` is the controller's, 0
    before `take`.

    *Source*: kafka 3.9.1 `KafkaZkClient.registerBroker`, `CheckedEphemeral` (KAFKA-7165),
    `registerControllerAndIncrementControllerEpoch`.
    """

    def __init__(
        self, store: CoordinationStore, registration: BrokerRegistration, clock: Clock, timers: Timers
    ) -> None:
        self._store = store
        self._clock = clock
        self._timers = timers
        self._own_sessions = {store.session_id}
        self.registration = registration
        self.epoch = 0
        self._epoch_version = 0

    def enter(self, store: CoordinationStore) -> None:
        """Go on in a new session, after the one before has expired."""
        self._store = store
        self._own_sessions.add(store.session_id)

    async def register(self) -> None:
        """Create the broker's ephemeral znode; its czxid becomes the broker's epoch.

        One that is there already and belongs to an earlier session of this process is replaced: ZooKeeper may tell of
        the end of a session before it deletes its znodes. One of another session may be a dead broker's, killed and
        started again, say: it gets the time in which its session would end.

        Raises: BrokerIdInUse.
        """
        broker_id = self.registration.broker_id
        path, payload = znodes.broker_path(broker_id), znodes.encode_broker(self.registration, self._clock.now_ms())
        while True:
            try:
                # The second write is for its result: creating alone does not tell the czxid.
                results = await self._store.multi([Create(path, payload, ephemeral=True), SetData(path, payload)])
                break
            except ConnectionLost:
                continue  # if it was written, it is found and replaced
            except NodeExists as error:
                if not await self._make_way(path):
                    raise BrokerIdInUse(
                        f"a broker with id {broker_id} is registered already{await self._address(path)}:"
                        " give every broker of a cluster its own node.id"
                    ) from error
        stat = results[1]
        assert isinstance(stat, Stat)
        self.registration = self.registration._replace(epoch=stat.czxid)

    async def _make_way(self, path: str) -> bool:
        """Delete an ephemeral znode of one's own, or wait for another's end; returns whether there is none any more."""
        stat = await self._store.exists(path)
        if stat is None:
            return True
        if stat.ephemeral_owner in self._own_sessions:
            with contextlib.suppress(NoNode, BadVersion, ConnectionLost):  # creating it again will tell
                await self._store.delete(path, stat.version)
            return True
        # ZooKeeper notices the end of a session late, by a tick or two.
        return await self._gone_within(path, self._store.session_timeout_ms * 3 // 2)

    async def _gone_within(self, path: str, timeout_ms: int) -> bool:
        if timeout_ms == 0:
            return False
        logger.warning("%s is there already%s: waiting for it to go", path, await self._address(path))
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
                if await self._store.exists(path, lambda _event: news.set()) is None:
                    return True
                await news.wait()
        finally:
            timer.cancel()
        return False

    async def _address(self, path: str) -> str:
        """Where the registered broker is, for a message."""
        found = (await self._store.get_many([path]))[0]
        if found is None:
            return ""
        try:
            broker = znodes.decode_broker(self.registration.broker_id, found[0], found[1].czxid)
        except znodes.DamagedZnode:
            return ""
        return f" ({', '.join(endpoint.connection_string for endpoint in broker.endpoints)})"

    async def take(self) -> None:
        """Become the controller and raise its epoch, in one transaction.

        Raises: ControllerElsewhere.
        """
        payload = znodes.encode_controller(self.registration.broker_id, self._clock.now_ms())
        while True:
            try:
                await self._raise_epoch([Create(znodes.CONTROLLER, payload, ephemeral=True)])
                return
            except ConnectionLost:
                continue
            except (NodeExists, BadVersion) as error:
                # Ours it may be: of a session that has just ended, or written when the answer was lost.
                stat = await self._store.exists(znodes.CONTROLLER)
                if stat is None or stat.ephemeral_owner not in self._own_sessions:
                    raise ControllerElsewhere("another broker is the controller of this metadata store") from error
                await self._make_way(znodes.CONTROLLER)

    async def renew(self) -> None:
        """Raise the epoch of an office that is still this broker's: somebody has changed or deleted its znode.

        Raises: CoordinationError.
        """
        await self._raise_epoch([])

    async def _raise_epoch(self, before: list[Operation]) -> None:
        """Write an epoch above all known ones, together with what comes `before`. A znode that is gone or damaged says
        nothing, so that this broker's own epoch counts.
        """
        found = (await self._store.get_many([znodes.CONTROLLER_EPOCH]))[0]
        epoch, version = self.epoch, 0
        if found is not None:
            version = found[1].version
            try:
                found_epoch = znodes.decode_controller_epoch(found[0])
                if found_epoch == znodes.CONTROLLER_EPOCH_MAX:
                    raise znodes.DamagedZnode(znodes.CONTROLLER_EPOCH, found[0], "no epoch comes after this")
                epoch = max(epoch, found_epoch)
            except znodes.DamagedZnode as error:
                logger.error("the controller's epoch is written anew, above %d: %s", epoch, error)
        operations = list(before)
        if found is None:
            operations.append(Create(znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(epoch)))
        operations.append(SetData(znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(epoch + 1), version))
        await self._store.multi(operations)
        self.epoch, self._epoch_version = epoch + 1, version + 1

    async def write(self, groups: Sequence[OperationGroup]) -> None:
        """Write a plan in few transactions, each refused as a whole if the epoch is over.

        Raises: Deposed, CoordinationError.
        """
        fence = Check(znodes.CONTROLLER_EPOCH, self._epoch_version)
        for operations in transactions(groups, fence):
            try:
                await self._store.multi(operations)
            except (BadVersion, NoNode) as error:
                if error.operation_index == 0:
                    raise Deposed("the controller's epoch is another one") from error
                raise

    async def existing(self, paths: Iterable[str]) -> set[str]:
        """Those of the znodes that exist."""
        wanted = list(paths)
        found = await self._store.get_many(wanted) if wanted else []
        return {path for path, answer in zip(wanted, found, strict=True) if answer is not None}
