"""The role of the controller: this broker is elected if there is none, resigns if another broker is elected, and takes
the cluster over again after errors.

*Source*: kafka 3.9.1 `KafkaController.elect`, `processControllerChange`, `processReelect`.
"""

import logging

from barnabas.clock import Clock
from barnabas.controller import znodes
from barnabas.controller.context import ControllerContext
from barnabas.controller.controller_election import ControllerElsewhere, Deposed
from barnabas.controller.coordination.interface import (
    ConnectionLost,
    CoordinationError,
    NoNode,
    SessionExpired,
    WatchedEvent,
)
from barnabas.controller.operations.broker_changes import BrokerChanges
from barnabas.controller.operations.take_over import TakeOver
from barnabas.set_aside import SetAside

logger = logging.getLogger(__name__)

RECOVERY_RETRY_DELAY_MS = 1_000
"""The delay before a controller that could not load the cluster or inform brokers retries: a disk may be full for a
while.
"""

RENEWALS_AT_ONCE = 100
"""The number of new epochs that a controller takes without delay when it is deposed while the znode is still its own,
as the metadata store may have lost some; after that one per RECOVERY_RETRY_DELAY_MS, until a minute has passed without
one.
"""

RENEWALS_FORGOTTEN_MS = 60_000


class Controllership:
    """Maintains `ControllerContext.is_active`, which says whether this broker is the controller, and loads the cluster
    when it becomes the controller.

    Called by the controller's task, which also processes changes of the controller's znode, and by `Controller.start`
    before the task exists; `resign` may be called by any code on the event loop.
    """

    def __init__(
        self, context: ControllerContext, broker_changes: BrokerChanges, take_over: TakeOver, clock: Clock
    ) -> None:
        self._context = context
        self._broker_changes = broker_changes
        self._take_over = take_over
        self._clock = clock
        self._renewals = 0
        self._renewed_ms = 0
        self.set_aside = SetAside[str]("taking over the cluster", clock, first_delay_ms=RECOVERY_RETRY_DELAY_MS)
        """Contains the cluster's id while the cluster cannot be read."""

    async def begin(self) -> None:
        """Become the controller and take the cluster over, or stand by if another broker is the controller.

        Raises: CoordinationError.
        """
        context, store = self._context, self._context.store
        while True:
            try:
                await context.election.elect()
            except ControllerElsewhere:
                if await store.exists(znodes.CONTROLLER, self._znode_changed) is None:
                    continue  # it was deleted meanwhile
                logger.info("another broker is the controller: broker %d stands by", context.brokers.own_id)
                await self._broker_changes.follow()
                return
            context.is_active = True
            await self._take_over_first()
            return

    async def _take_over_first(self) -> None:
        """Take over the cluster at a start; retries after a lost connection."""
        while True:
            try:
                await self._context.store.exists(znodes.CONTROLLER, self._znode_changed)
                return await self._take_over.run()
            except ConnectionLost:
                continue  # the next attempt waits for a connection
            except Deposed as error:
                return self.deposed(error)

    def resign(self, reason: str) -> None:
        """Stop deciding, if this broker is the controller."""
        context = self._context
        if context.is_active:
            context.is_active = False
            context.brokers.part_from(context.brokers.met)
            context.deletions.give_up()
            context.refusals.give_up(context.cluster)
            logger.error("broker %d is no longer the controller: %s", context.brokers.own_id, reason)

    def deposed(self, error: Deposed) -> None:
        """A write or a command was refused because of a newer epoch: resign, and check the controller's znode."""
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
            except Exception as error:  # noqa: BLE001 - logged once, and retried
                if not self.set_aside.members:
                    self.resign("it does not know the state of the cluster")
                context.is_active = False
                reason = str(error) if isinstance(error, CoordinationError) else ""
                self.set_aside.put(context.cluster_id, error, reason=reason)
                break
            else:
                return self.set_aside.release(context.cluster_id)
        # Also if the event that would have made this broker the controller failed.
        return self._look_later(RECOVERY_RETRY_DELAY_MS)

    def _znode_changed(self, _event: WatchedEvent) -> None:
        self._look_who_is_controller()

    def _look_who_is_controller(self) -> None:
        self._context.events.submit(self._check, needs_controllership=False)

    def _look_later(self, delay_ms: int) -> None:
        self._context.timers.call_later(delay_ms, self._look_who_is_controller)

    def _until_renewal_ms(self) -> int:
        """The delay before this controller may take a new epoch; 0 counts as a renewal. A broker that believes in a
        newer controller than ever existed deposes it each time.
        """
        since_ms = self._clock.monotonic_ms() - self._renewed_ms
        if since_ms >= RENEWALS_FORGOTTEN_MS:
            self._renewals = 0
        elif self._renewals >= RENEWALS_AT_ONCE and since_ms < RECOVERY_RETRY_DELAY_MS:
            return RECOVERY_RETRY_DELAY_MS - since_ms
        self._renewals += 1
        self._renewed_ms += since_ms
        return 0

    async def _check(self) -> None:
        """Process a change of the controller's znode: resign, or elect a controller if it is gone. If it is still this
        broker's although this controller had to resign, continue.
        """
        context, store = self._context, self._context.store
        stat = await store.exists(znodes.CONTROLLER, self._znode_changed)
        if stat is None:
            level = logging.WARNING if context.is_active else logging.INFO
            logger.log(level, "the controller's znode is gone: electing a controller")
            try:
                await self._elect()
            except ControllerElsewhere:
                return await self._stand_by("another broker has been elected")
            context.is_active = True
            await self._take_over.run()
        elif stat.ephemeral_owner != store.session_id:
            await self._stand_by("another broker has taken over")
        elif not context.is_active:
            wait_ms = self._until_renewal_ms()
            if wait_ms > 0:
                return self._look_later(wait_ms)
            if not self.set_aside.members:
                logger.info("broker %d tries to be the controller again", context.brokers.own_id)
            await context.election.renew()
            context.is_active = True
            await self.recover()
        return None

    async def _stand_by(self, reason: str) -> None:
        """Another broker is the controller. Registrations are read here, too: after a failed read this broker is not
        notified of their next change, and retries through the controller's znode (`recover`).
        """
        self.resign(reason)
        await self._broker_changes.follow()

    async def _elect(self) -> None:
        """Become the controller, without other reads before: partitions wait for it.

        Raises: ControllerElsewhere, CoordinationError.
        """
        try:
            await self._context.election.elect()
        except NoNode:  # not even the root exists
            await self._take_over.restore()
            await self._context.election.elect()
