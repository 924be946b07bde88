"""The foundation of a broker: the objects that exist before it starts, from which its parts are made."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from barnabas.broker.cluster.metadata import MetadataCache
from barnabas.broker.configuration.config import BrokerConfig
from barnabas.broker.configuration.live_config import LiveConfig
from barnabas.broker.environment import Environment
from barnabas.broker.network.connections import Connections
from barnabas.broker.observability.request_metrics import RequestMetrics
from barnabas.broker.observability.unforeseen import UnforeseenErrors
from barnabas.broker.security.broker_secrets import SECRET_BYTES
from barnabas.broker.timers import Timers

if TYPE_CHECKING:
    from barnabas.broker.network.listener_tls import TlsListeners
    from barnabas.broker.security.tls.contexts import Tls


class Foundation:
    """Made without I/O, inside the event loop that then owns the broker; its attributes stay.

    `network_clock` and `network_timers` are those of sockets and of responses of other brokers: a test that lets no
    time pass still waits for them in real time. If the broker `may_have_others`, other brokers can share its metadata
    store. `secret` authenticates it to them; it is empty where there can be none. `tls` is the TLS of its listeners;
    None, and not imported, if no listener has any.
    """

    def __init__(self, config: BrokerConfig, environment: Environment) -> None:
        loop, work_s = asyncio.get_running_loop(), environment.work_s
        self.config = LiveConfig(config)
        self.environment = environment
        self.clock = environment.clock
        self.network_clock = environment.socket_clock or self.clock
        self.may_have_others = config.zookeeper_connect is not None or environment.metadata_store is not None
        self.secret = environment.broker_secret or (
            environment.random_bytes(SECRET_BYTES).hex() if self.may_have_others else ""
        )
        self.timers = self.network_timers = Timers(self.clock, loop, work_s)
        if self.network_clock is not self.clock:
            self.network_timers = Timers(self.network_clock, loop, work_s)
        self.metadata = MetadataCache(config.node_id, self.clock)
        self.metrics = RequestMetrics()
        self.unforeseen = UnforeseenErrors(self.clock)
        self.tls = self._listener_tls()
        self.connections = Connections(
            self.config,
            environment.threads,
            self.network_clock,
            work_s,
            is_reserved_descriptor=environment.is_reserved_descriptor,
        )
        if self.tls is not None:
            self.connections.tls_handshakes = self.tls.handshakes

    def inter_broker_tls(self) -> "Callable[[], Tls] | None":
        """The present TLS of the inter-broker listener, once listeners are loaded; None if it has none."""
        tls, name = self.tls, self.config.inter_broker_listener_name
        if tls is None or not any(listener.has_tls for listener in self.config.listeners if listener.name == name):
            return None
        return lambda: tls[name].tls

    def _listener_tls(self) -> "TlsListeners | None":
        config = self.config
        if not config.has_http_tls and not any(listener.has_tls for listener in config.listeners):
            return None
        from barnabas.broker.network.listener_tls import TlsListeners

        return TlsListeners(config, self.environment.threads, self.network_timers, has_others=self.may_have_others)
