"""Whether this broker is the controller: it is elected where there is none, resigns where another one is, and takes the
cluster over again after whatever went wrong.

*Source*: kafka 3.9.1 `KafkaController.elect`, `processControllerChange`, `processReelect`.
"""

import logging

from barnabas.clock import Clock
from barnabas.controller import znodes
from barnabas.controller.context import ControllerContext
from barnabas.controller.controller_election import ControllerElsewhere, Deposed
from barnabas.controller.coordination.interface import ConnectionLost, CoordinationError, SessionExpired, WatchedEvent
from barnabas.controller.operations.broker_changes import BrokerChanges
from barnabas.controller.operations.take_over import TakeOver
from barnabas.set_aside import SetAside

logger = logging.getLogger(__name__)

RECOVERY_RETRY_DELAY_MS = 1_000
"""When a controller that could not read or tell the cluster's state tries again: a disk may be full for a while."""


class Controllership:
    """Says in `ControllerContext.is_active` whether this broker is the controller, and sees to it that it knows the
    cluster then.

    Called by the controller's task, which also does what becomes of a change of the controller's znode; by
    `Controller.start` before there is one; `resign` by anybody on the event loop.
    """

    def __init__(
        self, context: ControllerContext, broker_changes: BrokerChanges, take_over: TakeOver, clock: Clock
    ) -> None:
        self._context = context
        self._broker_changes = broker_changes
        self._take_over = take_over
        self.set_aside = SetAside[str]("taking over the cluster", clock, first_delay_ms=RECOVERY_RETRY_DELAY_MS)
        """The cluster's id, while the cluster cannot be read."""

    async def begin(self) -> None:
        """Become the controller and take the cluster over, or, where another broker is the controller, stand by.

        Raises: CoordinationError.
        """
        context, store = self._context, self._context.store
        while True:
            try:
                await context.election.elect()
            except ControllerElsewhere:
                if await store.exists(znodes.CONTROLLER, self._znode_changed) is None:
                    continue  # it has gone meanwhile
                logger.info("another broker is the controller: broker %d stands by", context.brokers.own_id)
                await self._broker_changes.follow()
                return
            context.is_active = True
            await store.exists(znodes.CONTROLLER, self._znode_changed)
            await self._take_over.run()
            return

    def resign(self, reason: str) -> None:
        """Decide no more, if this broker is the controller."""
        context = self._context
        if context.is_active:
            context.is_active = False
            context.brokers.part_from(context.brokers.others)
            logger.error("broker %d is no longer the controller: %s", context.brokers.own_id, reason)

    def deposed(self, error: Deposed) -> None:
        """A write or a command was refused, as there is a newer epoch: resign, and look whose it is."""
        self.resign(str(error))
        self._look_who_is_controller()

    async def recover(self) -> None:
        """Take over the cluster again. Until that succeeds, this controller does not decide."""
        context = self._context
        while context.is_active:
            try:
                await self._take_over.run()
            except ConnectionLost:
                continue  # the next attempt waits for a connection
            except SessionExpired:
                return None
            except Deposed as error:
                return self.deposed(error)
            except Exception as error:  # noqa: BLE001 - told once, and tried again
                if not self.set_aside.members:
                    self.resign("it does not know the state of the cluster")
                context.is_active = False
                reason = str(error) if isinstance(error, CoordinationError) else ""
                self.set_aside.put(context.cluster_id, error, reason=reason)
                break
            else:
                return self.set_aside.release(context.cluster_id)
        # Also where an event could not be done that was to make this broker the controller.
        context.timers.call_later(RECOVERY_RETRY_DELAY_MS, self._look_who_is_controller)
        return None

    def _znode_changed(self, _event: WatchedEvent) -> None:
        self._look_who_is_controller()

    def _look_who_is_controller(self) -> None:
        self._context.events.submit(self._check, needs_controllership=False)

    async def _check(self) -> None:
        """Somebody has touched the controller's znode: resign, or, if it is gone, be elected anew. If it is still ours
        although this controller had to resign, go on.
        """
        context, store = self._context, self._context.store
        stat = await store.exists(znodes.CONTROLLER, self._znode_changed)
        if stat is None:
            level = logging.WARNING if context.is_active else logging.INFO
            logger.log(level, "the controller's znode is gone: electing a controller")
            await self._take_over.restore()
            try:
                await context.election.elect()
            except ControllerElsewhere:
                return self.resign("another broker has been elected")
            context.is_active = True
            await self._take_over.run()
        elif stat.ephemeral_owner != store.session_id:
            self.resign("another broker has taken over")
        elif not context.is_active:
            if not self.set_aside.members:
                logger.info("broker %d tries to be the controller again", context.brokers.own_id)
            await context.election.renew()
            context.is_active = True
            await self.recover()
        return None
