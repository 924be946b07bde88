"""The listeners of a configuration: `listeners`, `advertised.listeners` and related keys, checked together.

Source: AbstractKafkaConfig.java, SocketServerConfigs.java.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from barnabas.broker.configuration.definitions import ConfigValue

PORT_MAX: Final = 65_535

BROKERS_LISTENER: Final = "BARNABAS_BROKERS"
"""The listener for connections between the brokers of a parent (`serve --brokers`), besides the configured ones."""

HTTP: Final = "HTTP"
"""The name of the HTTP port among the listeners, for its keys: they begin with `listener.name.http.`"""

_LISTENER: Final = re.compile(r"(.*)://\[?([0-9a-zA-Z\-%._:]*)\]?:(-?[0-9]+)")
PLAINTEXT: Final = "PLAINTEXT"
SSL: Final = "SSL"
SASL_PLAINTEXT: Final = "SASL_PLAINTEXT"
SASL_SSL: Final = "SASL_SSL"
SECURITY_PROTOCOLS: Final = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)
"""The security protocols of listeners (Kafka's SecurityProtocol)."""

_LOOPBACK: Final = ("127.", "localhost", "::1")


class Endpoint(NamedTuple):
    """An address at which clients can reach a broker."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Listener:
    """One address to listen on, and the advertised address for clients of this listener.

    `host` None binds all addresses. `advertised_host` None means this machine's name, `advertised_port` None the bound
    port (`port` may be 0: any free one). `advertised` is False if `advertised.listeners` does not contain the listener.
    `security_protocol` is one of SECURITY_PROTOCOLS.
    """

    name: str
    host: str | None
    port: int
    advertised: bool = True
    advertised_host: str | None = None
    advertised_port: int | None = None
    security_protocol: str = PLAINTEXT

    @property
    def has_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.security_protocol in (SSL, SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        """Whether clients authenticate by SASL."""
        return self.security_protocol in (SASL_PLAINTEXT, SASL_SSL)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        return self.host is not None and self.host.lower().startswith(_LOOPBACK)


class Settings(Protocol):
    """A configuration that is being resolved; collects errors."""

    raw: dict[str, str]
    errors: list[str]

    def value(self, key: str) -> ConfigValue: ...

    def text(self, key: str) -> str | None: ...

    def names(self, key: str) -> tuple[str, ...]: ...

    def fail(self, key: str, reason: str) -> None: ...


class ListenerResolver:
    """Reads the listeners of `settings`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._value, self._text, self._names = settings.value, settings.text, settings.names
        self._fail = settings.fail

    def _security_protocols(self) -> dict[str, str]:
        """Listener name -> security protocol, from listener.security.protocol.map."""
        key = "listener.security.protocol.map"
        protocols = {}
        for entry in filter(None, (part.strip() for part in (self._text(key) or "").split(","))):
            name, colon, protocol = (part.strip().upper() for part in entry.rpartition(":"))
            if not colon or protocol not in SECURITY_PROTOCOLS:
                self._fail(
                    key,
                    f"Invalid value {entry} for configuration {key}: Expected NAME:PROTOCOL with a protocol of "
                    f"{', '.join(SECURITY_PROTOCOLS)}",
                )
            protocols[name] = protocol
        return protocols

    def _endpoints(self, key: str) -> dict[str, tuple[str | None, int]]:
        """Listener name -> (host or None for all addresses, port), without the controllers' listeners."""
        controllers = {name.upper() for name in self._names("controller.listener.names")}
        endpoints: dict[str, tuple[str | None, int]] = {}
        for entry in self._names(key):
            match = _LISTENER.fullmatch(entry)
            if match is None:
                self._fail(
                    key, f"Invalid value {entry} for configuration {key}: Expected NAME://HOST:PORT, comma separated"
                )
                continue
            name, host, port = match[1].upper(), match[2] or None, int(match[3])
            if name in controllers:
                continue
            if not 0 <= port <= PORT_MAX:
                self._fail(
                    key, f"Invalid value {entry} for configuration {key}: The port must be between 0 and {PORT_MAX}"
                )
            elif name in endpoints:
                self._fail(key, f"Invalid value {entry} for configuration {key}: Each listener must have its own name")
            else:
                endpoints[name] = (host, port)
        return endpoints

    def listeners(self) -> tuple[Listener, ...]:
        """The listeners, with their advertised addresses."""
        bound = self._endpoints("listeners")
        if not bound and not self._settings.errors:
            self._fail("listeners", "listeners names no listener for clients (all belong to controller.listener.names)")
        protocols = self._protocols_of(bound)
        self._check_ports(bound)
        advertised = (
            self._endpoints("advertised.listeners") if self._value("advertised.listeners") is not None else None
        )
        if advertised is not None:
            self._check_advertised(bound, advertised)
        listeners = []
        for name, (host, port) in bound.items():
            if advertised is None:
                if host == "0.0.0.0":
                    self._fail(
                        "listeners",
                        f"{name}://{host}:{port} cannot be advertised: set advertised.listeners, or leave the "
                        f"host out ({name}://:{port}) to advertise this machine's name",
                    )
                listeners.append(Listener(name, host, port, True, host, None, protocols[name]))
            elif name in advertised:
                told_host, told_port = advertised[name]
                listeners.append(Listener(name, host, port, True, told_host, told_port or None, protocols[name]))
            else:
                listeners.append(Listener(name, host, port, False, security_protocol=protocols[name]))
        return tuple(listeners)

    def _protocols_of(self, bound: Mapping[str, object]) -> dict[str, str]:
        """The security protocol of each listener."""
        problems = len(self._settings.errors)
        protocols = self._security_protocols()
        for name in bound:
            if name not in protocols and len(self._settings.errors) == problems:
                self._fail("listeners", f"listener {name} has no entry in listener.security.protocol.map")
        return {name: protocols.get(name, PLAINTEXT) for name in bound}

    def _check_ports(self, bound: Mapping[str, tuple[str | None, int]]) -> None:
        """Two listeners may share a port only if one is IPv4 and the other IPv6 (AbstractKafkaConfig.validate)."""
        by_port: dict[int, list[str | None]] = {}
        for host, port in bound.values():
            if port:
                by_port.setdefault(port, []).append(host)
        for port, hosts in by_port.items():
            kinds = [_address_family(host) for host in hosts]
            if len(hosts) > 1 and sorted(kinds) != ["ipv4", "ipv6"]:
                self._fail(
                    "listeners", f"Each listener must have a different port, but {port} is used {len(hosts)} times"
                )

    def _check_advertised(self, bound: Mapping[str, object], advertised: Mapping[str, tuple[str | None, int]]) -> None:
        key = "advertised.listeners"
        for name, (host, _) in advertised.items():
            if name not in bound:
                self._fail(key, f"{key} names {name}, which is not in listeners ({', '.join(bound)})")
            if host in ("0.0.0.0", "::"):
                self._fail(key, f"{key} cannot use the nonroutable address {host}: name one that clients can reach")
        if not advertised and not self._settings.errors:
            self._fail(key, f"{key} names no listener for clients")

    def inter_broker_listener_name(self, listeners: tuple[Listener, ...]) -> str:
        """The name of the listener for other brokers."""
        names = [listener.name for listener in listeners if listener.advertised]
        wanted = self._text("inter.broker.listener.name")
        if wanted not in (None, BROKERS_LISTENER) and "security.inter.broker.protocol" in self._settings.raw:
            self._fail(
                "inter.broker.listener.name",
                "Only one of inter.broker.listener.name and security.inter.broker.protocol should be set",
            )
        if wanted is not None and wanted.upper() not in names and names:
            self._fail(
                "inter.broker.listener.name",
                f"Invalid value {wanted} for configuration inter.broker.listener.name: "
                f"must be an advertised listener, one of {', '.join(names)}",
            )
        if wanted is not None:
            return wanted.upper()
        # With security.inter.broker.protocol the listener of that name, as in Kafka; a single PLAINTEXT listener of
        # another name needs no key at all.
        protocol = self._text("security.inter.broker.protocol") or PLAINTEXT
        if protocol in names or not names:
            return protocol
        if "security.inter.broker.protocol" in self._settings.raw:
            self._fail(
                "security.inter.broker.protocol",
                f"security.inter.broker.protocol is {protocol}, but there is no advertised listener of that name: "
                f"set inter.broker.listener.name to one of {', '.join(names)} instead",
            )
        return names[0]


def _address_family(host: str | None) -> str:
    if host is not None and ":" in host:
        return "ipv6"
    return "ipv4" if host is not None and host.replace(".", "").isdecimal() else "name"
