"""The foundation of a broker: what its parts are made of, and what it has before it starts."""

import asyncio
from dataclasses import dataclass, field

from barnabas.broker.cluster.metadata import MetadataCache
from barnabas.broker.configuration.config import BrokerConfig
from barnabas.broker.configuration.live_config import LiveConfig
from barnabas.broker.environment import Environment
from barnabas.broker.network.connections import Connections
from barnabas.broker.observability.request_metrics import RequestMetrics
from barnabas.broker.observability.unforeseen import UnforeseenErrors
from barnabas.broker.security.broker_secrets import SECRET_BYTES
from barnabas.broker.timers import Timers
from barnabas.clock import Clock


@dataclass(frozen=True, slots=True)
class Foundation:
    """Made without I/O, inside the event loop that then owns the broker.

    `network_clock` and `network_timers` are those of sockets and of responses of other brokers: a test that lets no
    time pass still waits for them in real time. If the broker `may_have_others`, other brokers can share its metadata
    store. `secret` authenticates it to them; it is empty where there can be none.
    """

    config: LiveConfig
    environment: Environment
    clock: Clock
    network_clock: Clock
    timers: Timers
    network_timers: Timers
    may_have_others: bool
    secret: str = field(repr=False)
    metadata: MetadataCache
    metrics: RequestMetrics
    unforeseen: UnforeseenErrors
    connections: Connections

    @classmethod
    def of(cls, config: BrokerConfig, environment: Environment) -> "Foundation":
        """The foundation of a broker with this configuration."""
        loop = asyncio.get_running_loop()
        live, clock, work_s = LiveConfig(config), environment.clock, environment.work_s
        network_clock = environment.socket_clock or clock
        timers = Timers(clock, loop, work_s)
        may_have_others = config.zookeeper_connect is not None or environment.metadata_store is not None
        return cls(
            config=live,
            environment=environment,
            clock=clock,
            network_clock=network_clock,
            timers=timers,
            network_timers=timers if network_clock is clock else Timers(network_clock, loop, work_s),
            may_have_others=may_have_others,
            secret=environment.broker_secret
            or (environment.random_bytes(SECRET_BYTES).hex() if may_have_others else ""),
            metadata=MetadataCache(config.node_id, clock),
            metrics=RequestMetrics(),
            unforeseen=UnforeseenErrors(clock),
            connections=Connections(
                live,
                environment.threads,
                network_clock,
                work_s,
                is_reserved_descriptor=environment.is_reserved_descriptor,
            ),
        )
