"""The TLS of a broker's listeners while it runs: read at the start, and replaced when settings or files change.

A replacement applies to the connections that are accepted after it. One that cannot be used is refused, and the present
one stays. Source: DynamicBrokerConfig, SslFactory (KIP-226). Kafka reads changed files only when AlterConfigs asks for
it; here they are looked at every few seconds, since the tools that renew certificates replace files.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from barnabas.broker.configuration.config import BrokerConfig, ConfigError
from barnabas.broker.configuration.listeners import HTTP, SASL_SSL
from barnabas.broker.network.tls_handshakes import TlsHandshakes
from barnabas.broker.security.tls import contexts
from barnabas.broker.security.tls.contexts import Tls, TlsSettings
from barnabas.broker.security.tls.errors import TlsConfigError
from barnabas.threads import Threads
from barnabas.timers import Timers
from barnabas.wire.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.security.tls.key_stores import Stamp

logger = logging.getLogger(__name__)


def names_with_tls(config: BrokerConfig) -> tuple[str, ...]:
    """The names of the listeners that have TLS, HTTP included."""
    names = [listener.name for listener in config.listeners if listener.has_tls]
    return (*names, HTTP) if config.has_http_tls else tuple(names)


def settings_of(config: BrokerConfig, name: str) -> TlsSettings:
    """The TLS settings of one listener. `ssl.client.auth` of a listener of the protocol SASL_SSL counts only with the
    prefix of the listener, as in Kafka."""
    prefix = f"listener.name.{name.lower()}."
    client_auth = None
    has_sasl = any(listener.security_protocol == SASL_SSL for listener in config.listeners if listener.name == name)
    if has_sasl and config.text_of(f"{prefix}ssl.client.auth") is None:
        client_auth = "none"
    return TlsSettings.read(partial(config.value_for_listener, name), prefix, client_auth)


def problems(config: BrokerConfig, *, has_others: bool) -> list[str]:
    """The errors that `TlsListeners.load` would raise. Blocking."""
    found = []
    for name in names_with_tls(config):
        try:
            _read(config, name, has_others=has_others)
        except TlsConfigError as error:
            found.append(str(error))
    return found


def _read(config: BrokerConfig, name: str, *, has_others: bool) -> Tls:
    """Read the stores of a listener for the first time. Blocking. Raises TlsConfigError."""
    tls = contexts.load(settings_of(config, name))
    if has_others and name == config.inter_broker_listener_name:
        contexts.check_among_brokers(tls, tls)
    return tls


class ListenerTls:
    """The TLS of one listener; `tls` is the present one."""

    def __init__(self, name: str, tls: Tls) -> None:
        self.name = name
        self.tls = tls
        self.refused_stamps: tuple[Stamp | None, ...] | None = None

    def principal_of(self, certificate: bytes) -> str:
        """The principal of a client with this certificate (DER). Raises NoMatchingRule."""
        return self.tls.mapping.principal_of(certificate)


class TlsListeners:
    """The TLS of all listeners of a broker that have it; owned by the event loop. `config` is the running broker's,
    `timers` end `handshakes`, those of all listeners but HTTP's. If the broker `has_others`, their listener must accept
    its own key: all brokers have the same settings (SslEngineValidator)."""

    def __init__(self, config: BrokerConfig, threads: Threads, timers: Timers, *, has_others: bool) -> None:
        self.handshakes = TlsHandshakes(timers)
        self._has_others = has_others
        self._config = config
        self._threads = threads
        self._listeners: dict[str, ListenerTls] = {}
        self._changing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def __getitem__(self, name: str) -> ListenerTls:
        """The TLS of a listener, after `load`. Errors: KeyError, if it has none."""
        return self._listeners[name]

    def __contains__(self, name: str) -> bool:
        return name in self._listeners

    async def load(self) -> None:
        """Read everything; other methods may be called afterwards. Raises ConfigError."""
        problems = []
        for name in names_with_tls(self._config):
            try:
                tls = await self._threads.call(partial(_read, self._config, name, has_others=self._has_others))
            except TlsConfigError as error:
                problems.append(str(error))
            else:
                self._listeners[name] = ListenerTls(name, tls)
                logger.info("listener %s: %s", name, _told(tls))
        if problems:
            raise ConfigError(problems)

    async def check(self, config: BrokerConfig) -> None:
        """Check that the running broker may change to this configuration. Raises ApiError(INVALID_REQUEST)."""
        for name, settings in self._changed(config):
            try:
                await self._threads.call(self._read_replacement, config, name, settings)
            except TlsConfigError as error:
                raise ApiError(ErrorCode.INVALID_REQUEST, str(error)) from error

    def follow_config(self) -> None:
        """Apply what has changed in the configuration; a listener that has not changed stays as it is."""
        task = asyncio.get_running_loop().create_task(self.apply_config(), name="TLS settings")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def apply_config(self) -> None:
        """As `follow_config`; returns when that is done."""
        async with self._changing:
            for name, settings in list(self._changed(self._config)):
                await self._replace(self._listeners[name], settings, None)

    async def reload_changed_files(self) -> None:
        """Read the stores again whose files have changed."""
        async with self._changing:
            for listener in self._listeners.values():
                settings = listener.tls.settings
                stamps = await self._threads.call(settings.stamps)
                if stamps not in (listener.tls.stamps, listener.refused_stamps):
                    await self._replace(listener, settings, stamps)

    def read_again(self) -> None:
        """Read all stores, and use them without the checks of a replacement: for tests. Blocking. Raises
        TlsConfigError."""
        for listener in self._listeners.values():
            listener.tls, listener.refused_stamps = contexts.load(listener.tls.settings), None

    async def close(self) -> None:
        """Wait for the changes that are being applied."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _changed(self, config: BrokerConfig) -> Iterable[tuple[str, TlsSettings]]:
        for name, listener in self._listeners.items():
            settings = settings_of(config, name)
            if settings != listener.tls.settings:
                yield name, settings

    async def _replace(
        self, listener: ListenerTls, settings: TlsSettings, stamps: tuple[Stamp | None, ...] | None
    ) -> None:
        try:
            tls = await self._threads.call(self._read_replacement, self._config, listener.name, settings)
        except TlsConfigError as error:
            listener.refused_stamps = stamps
            logger.error("listener %s keeps its former key and trusted certificates: %s", listener.name, error)
            return
        listener.tls, listener.refused_stamps = tls, None
        logger.info("listener %s, connections from now on: %s", listener.name, _told(tls))

    def _read_replacement(self, config: BrokerConfig, name: str, settings: TlsSettings) -> Tls:
        """Read the stores of a listener that has some. In a thread. Raises TlsConfigError."""
        tls, present = contexts.load(settings), self._listeners[name].tls
        contexts.check_replacement(present, tls)
        if self._has_others and name == config.inter_broker_listener_name:
            contexts.check_among_brokers(tls, present)
        return tls


def _told(tls: Tls) -> str:
    """The certificate, for the log."""
    certificate = tls.certificate
    until = certificate.not_valid_after_utc.strftime("%Y-%m-%d")
    return f"the certificate of {certificate.subject.rfc4514_string() or 'nobody'}, valid until {until}"
