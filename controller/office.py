"""A broker's standing in its cluster: its registration, the office of controller, the right to write that it gives."""

from collections.abc import Iterable, Sequence

from barnabas.clock import Clock
from barnabas.controller import znodes
from barnabas.controller.coordination.interface import (
    BadVersion,
    Check,
    CoordinationStore,
    Create,
    NodeExists,
    Operation,
    SetData,
    Stat,
)
from barnabas.controller.plan import OperationGroup, transactions
from barnabas.controller.state import BrokerRegistration


class BrokerIdInUse(Exception):
    """Another live broker of the cluster has this broker's id."""


class ControllerElsewhere(Exception):
    """Another broker is the controller of this store."""


class Deposed(ControllerElsewhere):
    """The controller's epoch is over: a write or a command was refused."""


class Office:
    """Registration and controllership of one broker in one session; `epoch` is the controller's, 0 before `take`.

    *Source*: kafka 3.9.1 `KafkaZkClient.registerBroker`, `registerControllerAndIncrementControllerEpoch`.
    """

    def __init__(self, store: CoordinationStore, registration: BrokerRegistration, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self.registration = registration
        self.epoch = 0
        self._epoch_version = 0

    async def register(self) -> None:
        """Create the broker's ephemeral znode; its czxid becomes the broker's epoch.

        Raises: BrokerIdInUse.
        """
        broker_id = self.registration.broker_id
        path, payload = znodes.broker_path(broker_id), znodes.encode_broker(self.registration, self._clock.now_ms())
        try:
            # The second write is for its result: creating alone does not tell the czxid.
            results = await self._store.multi([Create(path, payload, ephemeral=True), SetData(path, payload)])
        except NodeExists as error:
            raise BrokerIdInUse(
                f"a broker with id {broker_id} is registered already: give every broker of a cluster its own node.id"
            ) from error
        stat = results[1]
        assert isinstance(stat, Stat)
        self.registration = self.registration._replace(epoch=stat.czxid)

    async def take(self) -> None:
        """Become the controller and raise its epoch, in one transaction.

        Raises: ControllerElsewhere.
        """
        found = (await self._store.get_many([znodes.CONTROLLER_EPOCH]))[0]
        epoch, version = (0, 0) if found is None else (znodes.decode_controller_epoch(found[0]), found[1].version)
        payload = znodes.encode_controller(self.registration.broker_id, self._clock.now_ms())
        operations: list[Operation] = [
            Create(znodes.CONTROLLER, payload, ephemeral=True),
            SetData(znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(epoch + 1), version),
        ]
        if found is None:
            operations.insert(1, Create(znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(epoch)))
        try:
            await self._store.multi(operations)
        except (NodeExists, BadVersion) as error:
            raise ControllerElsewhere("another broker is the controller of this metadata store") from error
        self.epoch, self._epoch_version = epoch + 1, version + 1

    async def write(self, groups: Sequence[OperationGroup]) -> None:
        """Write a plan in few transactions, each refused as a whole if the epoch is over.

        Raises: Deposed, CoordinationError.
        """
        fence = Check(znodes.CONTROLLER_EPOCH, self._epoch_version)
        for operations in transactions(groups, fence):
            try:
                await self._store.multi(operations)
            except BadVersion as error:
                if error.operation_index == 0:
                    raise Deposed("another broker has taken over as the controller") from error
                raise

    async def existing(self, paths: Iterable[str]) -> set[str]:
        """Those of the znodes that exist."""
        wanted = list(paths)
        found = await self._store.get_many(wanted) if wanted else []
        return {path for path, answer in zip(wanted, found, strict=True) if answer is not None}
