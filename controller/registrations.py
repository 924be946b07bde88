"""Who is registered as a broker, followed while registrations come and go.

*Source*: kafka 3.9.1 `KafkaController.BrokerChangeHandler`, `BrokerModificationsHandler`.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

from barnabas.controller import znodes
from barnabas.controller.coordination.interface import CoordinationStore, Stat, WatchedEvent
from barnabas.controller.state import BrokerRegistration

logger = logging.getLogger(__name__)


class Registrations(NamedTuple):
    """The live brokers; `zxid` is that of the last change among them, and the same for everybody who sees them."""

    brokers: tuple[BrokerRegistration, ...]
    zxid: int


class RegistrationWatch:
    """Watches over the registrations; `on_change` is called for the first change after each `read`."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._is_reported = False

    def __call__(self, _event: WatchedEvent) -> None:
        """The watcher to leave with a store."""
        if not self._is_reported:
            self._is_reported = True
            self._on_change()

    async def read(self, store: CoordinationStore) -> Registrations:
        """The registrations as they are. One that cannot be read counts as a broker that has told nothing of itself.

        Raises: CoordinationError.
        """
        self._is_reported = False
        while True:
            before = await store.exists(znodes.BROKER_IDS)
            names = await store.get_children(znodes.BROKER_IDS, self)
            ids = [broker_id for name in names if (broker_id := znodes.broker_id_of(name)) is not None]
            answers = await store.get_many([znodes.broker_path(broker_id) for broker_id in ids], self)
            after = await store.exists(znodes.BROKER_IDS)
            # A zxid must not be told with registrations that are older or newer than it.
            if before is not None and after is not None and before.pzxid == after.pzxid and None not in answers:
                break
        found = [(broker_id, *answer) for broker_id, answer in zip(ids, answers, strict=True) if answer is not None]
        return Registrations(
            tuple(registered(*each) for each in found), max(after.pzxid, *(stat.mzxid for _, _, stat in found), 0)
        )


def registered(broker_id: int, payload: bytes, stat: Stat) -> BrokerRegistration:
    """A broker's registration; if it cannot be read, that of a broker that has told nothing of itself."""
    try:
        return znodes.decode_broker(broker_id, payload, stat.czxid)
    except znodes.DamagedZnode as error:
        logger.error("the registration of broker %d cannot be read: %s", broker_id, error)
        return BrokerRegistration(broker_id, (), epoch=stat.czxid)
