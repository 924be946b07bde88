"""The SASL of each listener of a broker: its mechanisms, the delays of failed logins, and the number of logins."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from barnabas.broker.security.sasl.failure_delays import FailureDelays
from barnabas.broker.security.sasl.mechanism import Mechanism, PreparedMechanism
from barnabas.clock import Clock
from barnabas.threads import Threads
from barnabas.timers import Timers, pause

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class LoginCounts:
    """The logins on a listener since the start (Kafka's successful-authentication-total and so on)."""

    succeeded: int = 0
    failed: int = 0
    succeeded_again: int = 0
    failed_again: int = 0


@dataclass(frozen=True, slots=True)
class SaslListener:
    """The SASL of one listener.

    Args:
        mechanisms: the enabled mechanisms, by name, in the order of the configuration.
        max_reauth_ms: `connections.max.reauth.ms` by mechanism; 0 or missing where sessions do not end.
        failure_delay_ms: the first delay of failures; 0 answers at once.
        broker_mechanism: takes the secrets of brokers that have logged in; None on other listeners.
    """

    mechanisms: Mapping[str, Mechanism]
    max_reauth_ms: Mapping[str, int] = field(default_factory=dict)
    failure_delay_ms: int = 0
    broker_mechanism: Mechanism | None = None
    counts: LoginCounts = field(default_factory=LoginCounts)

    @property
    def names(self) -> list[str]:
        """The enabled mechanisms, for clients."""
        return list(self.mechanisms)


class Sasl:
    """The SASL of a broker; owned by the event loop. Listeners without SASL are not in `listeners`, but for one on
    which brokers send their secrets."""

    def __init__(self, listeners: Mapping[str, SaslListener], clock: Clock, timers: Timers) -> None:
        self.listeners = listeners
        self.clock: Final = clock
        self._timers = timers
        self._delays = FailureDelays()

    async def failed(self, listener_name: str, host: str, reason: str, *, is_again: bool) -> None:
        """Count and log a failed login, and wait before it is answered."""
        listener = self.listeners[listener_name]
        if is_again:
            listener.counts.failed_again += 1
        else:
            listener.counts.failed += 1
        logger.warning(
            "a client at %s has failed to %s on listener %s: %s",
            host,
            "authenticate again" if is_again else "authenticate",
            listener_name,
            reason,
        )
        if listener.failure_delay_ms > 0:
            await pause(self._timers, self._delays.failed(host, listener.failure_delay_ms, self.clock.monotonic_ms()))

    async def prepare(self, threads: Threads) -> None:
        """Let mechanisms check what they read from files, when the broker starts. Raises PreparationFailed."""
        for listener in self.listeners.values():
            for mechanism in listener.mechanisms.values():
                if isinstance(mechanism, PreparedMechanism):
                    await threads.call(mechanism.prepare)

    def succeeded(self, listener_name: str, host: str, *, is_again: bool) -> None:
        """Count a login."""
        counts = self.listeners[listener_name].counts
        if is_again:
            counts.succeeded_again += 1
        else:
            counts.succeeded += 1
        self._delays.succeeded(host)
