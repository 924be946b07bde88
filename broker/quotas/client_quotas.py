"""All quotas of a broker's clients, as their configs say. Made when the first quota is configured.

Source: kafka 3.9.1 QuotaFactory.QuotaManagers, QuotaConfigHandler, IpConfigHandler.
"""

import logging
from collections.abc import Mapping
from typing import Final, NamedTuple

from barnabas.broker.quotas.connection_quotas import ConnectionQuotas
from barnabas.broker.quotas.entities import (
    CLIENT_QUOTAS,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    DEFAULT,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    Name,
    QuotaEntity,
    bound_of,
    normal_address,
)
from barnabas.broker.quotas.managers import ClientQuotaManager, ControllerMutationQuotaManager
from barnabas.broker.quotas.rates import QuotaWindow
from barnabas.clock import Clock
from barnabas.controller.sanitizer import DEFAULT_NAME, desanitize

logger = logging.getLogger(__name__)

CLIENTS_OF_USER: Final = "/clients/"


class QuotaUsage(NamedTuple):
    """What became of one type of quota: throttles, the sum of their times, and clients whose usage is known."""

    quota: str
    throttle_count: int
    throttle_ms: int
    client_count: int


class ClientQuotas:
    """The managers of each type of quota; owned by the event loop.

    Args:
        window: the samples of rates (`quota.window.num`, `quota.window.size.seconds`).
        controller_window: those of controller mutations (`controller.quota.window.*`).
        clock: the broker's clock.
        network_clock: the clock of sockets.
    """

    def __init__(self, window: QuotaWindow, controller_window: QuotaWindow, clock: Clock, network_clock: Clock) -> None:
        self.produce = ClientQuotaManager(window, clock)
        self.fetch = ClientQuotaManager(window, clock)
        self.request = ClientQuotaManager(window, clock, throttle_time_ms_max=window.sample_ms)
        self.controller_mutation = ControllerMutationQuotaManager(controller_window, clock)
        self.connections = ConnectionQuotas(window, network_clock)
        self._managers: dict[str, ClientQuotaManager | ControllerMutationQuotaManager] = {
            PRODUCER_BYTE_RATE: self.produce,
            CONSUMER_BYTE_RATE: self.fetch,
            REQUEST_PERCENTAGE: self.request,
            CONTROLLER_MUTATION_RATE: self.controller_mutation,
        }

    def usages(self) -> list[QuotaUsage]:
        """The throttles so far, and the clients with a usage, of each type of quota; for metrics."""
        named: list[tuple[str, ClientQuotaManager | ControllerMutationQuotaManager]] = [
            ("produce", self.produce),
            ("fetch", self.fetch),
            ("request", self.request),
            ("controller-mutation", self.controller_mutation),
        ]
        usages = [
            QuotaUsage(quota, each.throttles.count, each.throttles.total_ms, len(each.sensors)) for quota, each in named
        ]
        connections, throttles = self.connections, self.connections.throttles
        return [*usages, QuotaUsage("connection", throttles.count, throttles.total_ms, len(connections))]

    def change(self, entity_type: str, name: str, overrides: Mapping[str, str]) -> None:
        """Obey the configs of an entity, `users`, `clients` or `ips`, whose name is that of its znode. Configs that
        are no quotas of such an entity are logged, and leave those of before."""
        if entity_type == "ips":
            self._change_address(name, overrides)
            return
        entity = _entity(entity_type, name)
        for key in CLIENT_QUOTAS:
            try:
                self._managers[key].limits.set(entity, bound_of(overrides, key))
            except ValueError as error:
                logger.error("the quota %s of %s %s cannot be read: %s", key, entity_type, name, error)

    def _change_address(self, name: str, overrides: Mapping[str, str]) -> None:
        address: Name | None = DEFAULT if name == DEFAULT_NAME else normal_address(desanitize(name))
        if address is None:
            logger.error("the quota of %s is ignored: it is no address", name)
            return
        try:
            self.connections.set(address, bound_of(overrides, CONNECTION_CREATION_RATE))
        except ValueError as error:
            logger.error("the quota %s of address %s cannot be read: %s", CONNECTION_CREATION_RATE, name, error)


def _entity(entity_type: str, name: str) -> QuotaEntity:
    """The entity that a znode belongs to."""
    if entity_type == "clients":
        return QuotaEntity(None, _name(name))
    user, _, client_id = name.partition(CLIENTS_OF_USER)
    return QuotaEntity(_name(user), _name(client_id) if client_id else None)


def _name(sanitized: str) -> Name:
    return DEFAULT if sanitized == DEFAULT_NAME else desanitize(sanitized)
