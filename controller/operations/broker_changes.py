"""The registered brokers, followed while registrations change.

*Source*: kafka 3.9.1 `KafkaController.BrokerChangeHandler`, `BrokerModificationsHandler`.
"""

import logging
from collections.abc import Callable, Iterable

from barnabas.controller import znodes
from barnabas.controller.context import ControllerContext
from barnabas.controller.coordination.interface import CoordinationStore, WatchedEvent
from barnabas.controller.loading import registered
from barnabas.controller.registration import Registration
from barnabas.controller.state import BrokerRegistration, Registrations

logger = logging.getLogger(__name__)


class RegistrationWatch:
    """Reads the registrations and registers itself as a watcher: `on_change` is called once, for the first change after
    each `read`.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._is_reported = False

    def __call__(self, _event: WatchedEvent) -> None:
        """Called by the store after a change."""
        if not self._is_reported:
            self._is_reported = True
            self._on_change()

    async def read(self, store: CoordinationStore) -> Registrations:
        """The current registrations. An unreadable one counts as a broker without details.

        Raises: CoordinationError.
        """
        self._is_reported = False
        while True:
            before = await store.exists(znodes.BROKER_IDS)
            names = await store.get_children(znodes.BROKER_IDS, self)
            ids = [broker_id for name in names if (broker_id := znodes.broker_id_of(name)) is not None]
            answers = await store.get_many([znodes.broker_path(broker_id) for broker_id in ids], self)
            after = await store.exists(znodes.BROKER_IDS)
            # A zxid must not be returned with older or newer registrations.
            if before is not None and after is not None and before.pzxid == after.pzxid and None not in answers:
                break
        found = [(broker_id, *answer) for broker_id, answer in zip(ids, answers, strict=True) if answer is not None]
        return Registrations(
            tuple(registered(*each) for each in found), max(after.pzxid, *(stat.mzxid for _, _, stat in found), 0)
        )


def _secret_digests(brokers: Iterable[BrokerRegistration]) -> dict[int, str]:
    """The digests of brokers whose registrations can be read: a damaged one does not imply that its broker has no
    secret.
    """
    return {broker.broker_id: broker.secret_digest for broker in brokers if broker.endpoints}


class BrokerChanges:
    """Follows the registrations, whether this broker is the controller or not; `on_registrations` is called after each
    change. If it is the controller, it handles new and lost brokers.

    `follow` is called when the cluster is taken over, and when a broker stands by; `change` by the controller's task
    after each change.
    """

    def __init__(
        self, context: ControllerContext, own: Registration, on_registrations: Callable[[Registrations], None]
    ) -> None:
        self._context = context
        self._own = own
        self._on_registrations = on_registrations
        self._watch = RegistrationWatch(lambda: context.events.submit(self._change, needs_controllership=False))
        self._strangers: tuple[int, ...] = ()
        self.secret_digests: dict[int, str] = {}
        """The digests of the registered brokers, as far as known; "" for a registration without one."""

    async def look_up(self, broker_id: int) -> None:
        """Read the digest of one broker's secret again, registered or not: this may be earlier than its watch event.
        Raises: CoordinationError.
        """
        if not 0 <= broker_id < 2**31:
            return
        (found,) = await self._context.store.get_many([znodes.broker_path(broker_id)])
        self.secret_digests.pop(broker_id, None)
        if found is not None:
            self.secret_digests |= _secret_digests([registered(broker_id, *found)])

    async def _change(self) -> None:
        context = self._context
        former_zxid = context.election.registrations_zxid
        registrations = await self.follow()
        if not context.is_active:
            return
        found = {
            broker.broker_id: broker for broker in registrations.brokers if context.brokers.reaches(broker.broker_id)
        }
        found[self._own.broker.broker_id] = self._own.broker
        if found != context.cluster.brokers:
            from barnabas.controller.operations.broker_lives import govern

            context.election.registrations_zxid = former_zxid
            await govern(context, found, registrations.zxid)

    async def follow(self) -> Registrations:
        """Read the registrations, and repair this broker's own znode if it was changed or deleted.

        Raises: BrokerIdInUse, CoordinationError.
        """
        store, own = self._context.store, self._own.broker
        registrations = await self._watch.read(store)
        found = next((broker for broker in registrations.brokers if broker.broker_id == own.broker_id), None)
        if found is None or (own.endpoints and not found.endpoints):
            logger.error("this broker's registration is %s: writing it anew", "gone" if found is None else "damaged")
            if found is not None:
                await store.delete(self._own.path)
            await self._own.register()
            registrations = await self._watch.read(store)
        self._context.election.registrations_zxid = registrations.zxid
        self.secret_digests = _secret_digests(registrations.brokers)
        self._tell_of_strangers(broker.broker_id for broker in registrations.brokers)
        self._on_registrations(registrations)
        return registrations

    def _tell_of_strangers(self, broker_ids: Iterable[int]) -> None:
        """Log, once, the brokers that this controller cannot reach."""
        strangers = tuple(broker_id for broker_id in broker_ids if not self._context.brokers.reaches(broker_id))
        if strangers == self._strangers:
            return
        if strangers:
            logger.error(
                "other brokers are registered (id %s), though this one's metadata store is its own:"
                " they get no partitions and no requests",
                ", ".join(map(str, strangers)),
            )
        else:
            logger.info("the other brokers have gone (id %s)", ", ".join(map(str, self._strangers)))
        self._strangers = strangers
