"""The SASL of a broker's listeners, made when the broker starts and knows its dynamic configuration.

Source: DynamicBrokerConfig of Kafka (KIP-226). AlterConfigs may change keys of SASL, but a listener keeps the SASL that
it began with: the change applies at the next start. Values in the metadata store that do not work are left out, as in
Kafka, so that they keep no broker from starting.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from barnabas.broker.configuration import sasl_changes
from barnabas.broker.configuration.config import BrokerConfig, ConfigError
from barnabas.broker.configuration.live_config import LiveConfig
from barnabas.broker.security.sasl import plain
from barnabas.broker.security.sasl.listeners import Sasl, SaslListener
from barnabas.broker.security.sasl.mechanism import Mechanism, PreparationFailed
from barnabas.threads import Threads

if TYPE_CHECKING:
    from barnabas.broker.security.sasl.making import Sources

logger = logging.getLogger(__name__)


async def load(
    sasl: Sasl,
    config: LiveConfig,
    threads: Threads,
    sources: Callable[[], Sources],
    of_brokers: Mechanism | None,
    make_login: Callable[[BrokerConfig], None],
) -> None:
    """Make the mechanisms of the listeners, and check the files that they read.

    On the inter-broker listener brokers send their secrets, which `of_brokers` checks; it is None if there can be no
    others. `make_login` makes the login by which this broker connects to them. Raises ConfigError.
    """

    async def load_by(each: BrokerConfig) -> None:
        sasl.listeners = _make_listeners(each, sources, of_brokers)
        await sasl.prepare(threads)
        if of_brokers is not None:
            make_login(each)

    try:
        try:
            await load_by(config)
        except (ValueError, PreparationFailed) as error:
            if not any(map(sasl_changes.is_dynamic, config.changed_keys())):
                raise
            logger.error("the dynamic configuration of SASL is left out: %s", error)
            await load_by(LiveConfig(config))
    except (ValueError, PreparationFailed) as error:
        raise ConfigError([str(error)]) from error


def _make_listeners(
    config: BrokerConfig, sources: Callable[[], Sources], of_brokers: Mechanism | None
) -> dict[str, SaslListener]:
    """The SASL of the listeners that ask for it, and that by which brokers show their secrets. Raises MechanismError,
    a ValueError."""
    brokers = config.inter_broker_listener_name
    listeners: dict[str, SaslListener] = {}
    for name in [each.name for each in config.listeners if each.has_sasl]:
        from barnabas.broker.security.sasl.making import make_listener

        listeners[name] = make_listener(
            name, config.value_for_listener, sources(), of_brokers if name == brokers else None
        )
    if of_brokers is not None and brokers not in listeners:
        listeners[brokers] = SaslListener({plain.MECHANISM: of_brokers})
    return listeners
