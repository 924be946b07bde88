"""The election of the controller, the controller's epoch, and the writes that only the controller may make."""

import contextlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from barnabas.clock import Clock
from barnabas.controller import znodes
from barnabas.controller.coordination.interface import (
    BadVersion,
    Check,
    ConnectionLost,
    Create,
    Delete,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    SetData,
)
from barnabas.controller.plan import OperationGroup, transactions
from barnabas.controller.sessions import StoreSessions

logger = logging.getLogger(__name__)

_ANOTHER_EPOCH: Final = "the controller epoch has changed"

_EPOCHS_UNSEEN_MAX: Final = 1_000
"""The maximum number of consecutive controllers that may have been elected without writing a state."""

_VERSIONS_PASSED_MAX: Final = 1_000
"""The maximum number of versions of a new znode that are skipped in one transaction."""

_CLEARINGS_MAX: Final = 3
"""The number of retries of a transaction that failed because a deleted znode had children: another client may still
create some.
"""


class Elected(NamedTuple):
    """The newest controller epoch, and the id of the controller; None if there is none at the moment."""

    epoch: int
    controller_id: int | None


class ControllerElsewhere(Exception):
    """Another broker is the controller."""


class Deposed(ControllerElsewhere):
    """The controller's epoch is outdated: a write or a command was refused."""


class ControllerElection:
    """One broker's candidacy, renewed in each session. `epoch` is that of its last election, 0 before the first;
    `predecessor_epoch` that of the previous controller, its own if no other broker was elected in between.

    Every write of the controller goes through `write`, which checks that the epoch is still the newest: a controller
    that does not know yet that it was replaced can change nothing. It stores with each partition state the zxid up to
    which it knows registrations (`registrations_zxid`): a paused controller may still decide about a registration that
    has ended, and the next controller has to detect that.

    Called by the controller's task, and by `Controller.start` before the task exists.

    *Source*: kafka 3.9.1 `KafkaZkClient.registerControllerAndIncrementControllerEpoch`.
    """

    def __init__(self, sessions: StoreSessions, broker_id: int, clock: Clock, transaction_bytes_max: int) -> None:
        self._sessions = sessions
        self._broker_id = broker_id
        self._clock = clock
        self._transaction_bytes_max = transaction_bytes_max
        self.epoch = 0
        self.predecessor_epoch = 0
        self._epoch_version = 0
        self.registrations_zxid = 0

    async def elect(self) -> None:
        """Become the controller and raise its epoch, in one transaction.

        Raises: ControllerElsewhere, CoordinationError.
        """
        payload = znodes.encode_controller(self._broker_id, self._clock.now_ms())
        while True:
            try:
                election = Create(znodes.CONTROLLER, payload, ephemeral=True)
                self.predecessor_epoch = await self._raise_epoch([election], unseen=_EPOCHS_UNSEEN_MAX)
                return
            except ConnectionLost:
                continue
            except (NodeExists, BadVersion) as error:
                stat = await self._sessions.store.exists(znodes.CONTROLLER)
                if stat is None or not self._sessions.own(stat):
                    raise ControllerElsewhere("another broker is the controller of this metadata store") from error
                await self._sessions.delete_own(znodes.CONTROLLER, stat)

    async def elected(self) -> Elected | None:
        """The controller that was elected last; None while one of the znodes is missing or damaged.

        Raises: CoordinationError.
        """
        # In this order the id never belongs to an older controller than the epoch.
        epoch, controller = await self._sessions.store.get_many([znodes.CONTROLLER_EPOCH, znodes.CONTROLLER])
        if epoch is None:
            return None
        try:
            return Elected(
                znodes.decode_controller_epoch(epoch[0]),
                None if controller is None else znodes.decode_controller(controller[0]),
            )
        except znodes.DamagedZnode:
            return None

    async def renew(self) -> None:
        """Raise the epoch of the elected controller: its epoch znode was changed or deleted by another client.

        Raises: CoordinationError.
        """
        own_epoch = self.epoch
        await self._raise_epoch([], unseen=0)
        self.predecessor_epoch = own_epoch

    async def _raise_epoch(self, before: list[Operation], *, unseen: int) -> int:
        """Write an epoch above all known ones, together with the operations `before`; returns the greatest known epoch.
        If the znode is missing or damaged, the known epochs are this broker's own and those in partition states, plus
        `unseen` ones that may have followed, as no epoch may be used twice.
        """
        found = (await self._sessions.store.get_many([znodes.CONTROLLER_EPOCH]))[0]
        known, version = self.epoch, 0
        is_told = False
        if found is not None:
            version = found[1].version
            try:
                found_epoch = znodes.decode_controller_epoch(found[0])
                if found_epoch == znodes.CONTROLLER_EPOCH_MAX:
                    raise znodes.DamagedZnode(znodes.CONTROLLER_EPOCH, found[0], "it is the largest possible epoch")
                known, is_told = max(known, found_epoch), True
            except znodes.DamagedZnode as error:
                logger.error("the controller epoch is written again: %s", error)
        if not is_told:
            known = max(known, await self._greatest_epoch_in_states())
        epoch = known if is_told or known == 0 else known + unseen
        operations, writes = list(before), 1
        if found is None:
            operations.append(Create(znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(epoch)))
            # The versions of a new znode start at 0: the one that a former controller checks for must not reappear.
            writes = min(1 + epoch, _VERSIONS_PASSED_MAX)
        raised = znodes.encode_controller_epoch(epoch + 1)
        operations += [SetData(znodes.CONTROLLER_EPOCH, raised, version + passed) for passed in range(writes)]
        await self._sessions.store.multi(operations)
        self.epoch, self._epoch_version = epoch + 1, version + writes
        return known

    async def _greatest_epoch_in_states(self) -> int:
        """The greatest controller epoch in an existing partition state; 0 if none can be read."""
        store = self._sessions.store
        names = await self.children(znodes.TOPICS)
        partitions = [(name, index) for name in names for index in await self.children(znodes.partitions_path(name))]
        paths = [f"{znodes.partitions_path(name)}/{index}/state" for name, index in partitions]
        epochs = [0]
        for (name, _), answer in zip(partitions, await store.get_many(paths), strict=True):
            if answer is not None:
                with contextlib.suppress(znodes.DamagedZnode):
                    epochs.append(znodes.decode_partition_state(name, 0, answer[0], answer[1].version).controller_epoch)
        return max(epoch for epoch in epochs if epoch < znodes.CONTROLLER_EPOCH_MAX // 2)

    async def write(self, groups: Sequence[OperationGroup]) -> None:
        """Write a plan in few transactions, each refused as a whole if the epoch is outdated. A deletion includes
        znodes that others have created below, as in Kafka.

        Raises: Deposed, CoordinationError.
        """
        marked = (tuple(znodes.marked(each, self.registrations_zxid) for each in group) for group in groups)
        for operations in self._fenced(marked):
            for _ in range(_CLEARINGS_MAX):
                try:
                    await self._commit(operations)
                    break
                except NotEmpty:
                    await self._clear_below([each.path for each in operations if isinstance(each, Delete)])
            else:
                await self._commit(operations)

    async def confirm(self) -> None:
        """Check that the epoch is still the newest, so that everything read before is up to date.

        Raises: Deposed, CoordinationError.
        """
        (found,) = await self._sessions.store.get_many([znodes.CONTROLLER_EPOCH])
        if found is None or found[1].version != self._epoch_version:
            raise Deposed(_ANOTHER_EPOCH)

    def _fenced(self, groups: Iterable[OperationGroup]) -> Iterator[list[Operation]]:
        fence = Check(znodes.CONTROLLER_EPOCH, self._epoch_version)
        return transactions(groups, fence, self._transaction_bytes_max)

    async def _commit(self, operations: Sequence[Operation]) -> None:
        try:
            await self._sessions.store.multi(operations)
        except (BadVersion, NoNode) as error:
            if error.operation_index == 0:
                raise Deposed(_ANOTHER_EPOCH) from error
            raise

    async def _clear_below(self, paths: Sequence[str]) -> None:
        """Delete the descendants of znodes, except those among `paths`."""
        found = dict.fromkeys([each for path in paths for each in await self._below(path)])
        kept = set(paths)
        strange = [each for each in found if each not in kept]
        if strange:
            logger.warning("%d unknown znode(s) are deleted with their parent, first %s", len(strange), strange[0])
        for operations in self._fenced((Delete(each),) for each in strange):
            await self._commit(operations)

    async def _below(self, path: str) -> list[str]:
        """The paths of all znodes below a path, children before their parents."""
        found = [path]
        for parent in found:  # the list grows in the loop
            found += [f"{parent}/{name}" for name in await self.children(parent)]
        return found[:0:-1]

    async def children(self, path: str) -> list[str]:
        """The names of a znode's children; none if the znode is gone: another controller may have deleted it, which
        this one does not know yet.
        """
        try:
            return await self._sessions.store.get_children(path)
        except NoNode:
            return []

    async def existing(self, paths: Iterable[str]) -> set[str]:
        """The existing ones of these znodes."""
        wanted = list(paths)
        found = await self._sessions.store.get_many(wanted) if wanted else []
        return {path for path, answer in zip(wanted, found, strict=True) if answer is not None}
