"""The SASL state of one connection, from the handshake to the end of its session.

Source: SaslServerAuthenticator and KafkaChannel of Kafka. A session ends after `connections.max.reauth.ms`, or with the
client's token; the client may authenticate again before and after that, by the same mechanism and with the same
principal (KIP-368).
"""

from __future__ import annotations

from typing import Final

from barnabas.broker.security.sasl.listeners import SaslListener
from barnabas.broker.security.sasl.mechanism import MESSAGE_BYTES_MAX, AuthenticationFailed, Exchange, Identity
from barnabas.clock import Clock

REAUTHENTICATION_INTERVAL_MS: Final = 1_000
"""The time between two re-authentications of a connection (KafkaChannel.MIN_REAUTH_INTERVAL_ONE_SECOND_NANOS)."""

BROKER_MECHANISM: Final = "BARNABAS-BROKER"
"""The mechanism by which a broker that has logged in on a listener of SASL sends its secret as well. Its messages are
those of PLAIN."""

NOT_SERVED: Final = -1


class Login:
    """The login of one connection; owned by the event loop.

    `identity` is the client's, None before the first login is complete. `ends_ms` is the monotonic time at which the
    session ends, None if it does not. Requests are served while the time is not after `served_until_ms`, which is
    NOT_SERVED before and while the client authenticates, and where the session does not end.
    """

    __slots__ = (
        "_clock",
        "_exchange",
        "_listener",
        "_of_broker",
        "_reauthenticated_ms",
        "ends_ms",
        "has_headers",
        "identity",
        "lifetime_ms",
        "mechanism",
        "served_until_ms",
    )

    def __init__(self, listener: SaslListener, clock: Clock) -> None:
        self._listener = listener
        self._clock = clock
        self._exchange: Exchange | None = None
        self._of_broker = False
        self._reauthenticated_ms: int | None = None
        self.mechanism = ""
        self.identity: Identity | None = None
        self.has_headers = True
        self.ends_ms: int | None = None
        self.lifetime_ms = 0
        """The lifetime of the session when it began, for the client; 0 if it does not end."""
        self.served_until_ms = NOT_SERVED

    @property
    def is_under_way(self) -> bool:
        """Whether the client's next message is expected."""
        return self._exchange is not None

    @property
    def is_complete(self) -> bool:
        """Whether the client has authenticated, and is not doing so again."""
        return self.identity is not None and self._exchange is None

    @property
    def has_ended(self) -> bool:
        """Whether the session is past its end."""
        return self.ends_ms is not None and self._clock.monotonic_ms() > self.ends_ms

    @property
    def is_again(self) -> bool:
        """Whether the login in progress is a re-authentication."""
        return self.identity is not None and not self._of_broker

    def may_begin(self, mechanism: str) -> bool:
        """Whether a handshake is allowed now: the first one, one of a session that ends and has not just been renewed,
        and that of a broker which sends its secret."""
        if self._exchange is not None:
            return False
        if self.identity is None:
            return True
        if mechanism == BROKER_MECHANISM or self.ends_ms is None:
            return self._is_of_broker(mechanism)
        last_ms = self._reauthenticated_ms
        return last_ms is None or self._clock.monotonic_ms() - last_ms >= REAUTHENTICATION_INTERVAL_MS

    def _is_of_broker(self, mechanism: str) -> bool:
        return (
            mechanism == BROKER_MECHANISM and self.identity is not None and self._listener.broker_mechanism is not None
        )

    def begin(self, mechanism: str, *, has_headers: bool) -> bool:
        """Begin a login, if the mechanism is enabled. With `has_headers` the client's messages come in SaslAuthenticate
        requests, else as they are. Re-authentication by another mechanism fails with the next message, as in Kafka."""
        self._of_broker = self._is_of_broker(mechanism)
        found = self._listener.broker_mechanism if self._of_broker else self._listener.mechanisms.get(mechanism)
        if found is None:
            return False
        self.has_headers = has_headers
        self.served_until_ms = NOT_SERVED
        if self.is_again:
            self._reauthenticated_ms = self._clock.monotonic_ms()
        if self.is_again and mechanism != self.mechanism:
            self._exchange = _Refusing(
                f"SASL mechanism '{mechanism}' requested by client is not supported for re-authentication of mechanism"
                f" '{self.mechanism}'"
            )
        else:
            self._exchange = found.start()
            if not self._of_broker:
                self.mechanism = mechanism
        return True

    async def take(self, message: bytes) -> bytes:
        """Take the client's message; returns the answer. Raises AuthenticationFailed, always with a message for the
        client, after which the connection has to be closed; and what the mechanism's own sources raise."""
        exchange = self._exchange
        assert exchange is not None
        try:
            if len(message) > MESSAGE_BYTES_MAX:
                raise AuthenticationFailed(reason=f"a message of {len(message)} bytes; {MESSAGE_BYTES_MAX} are allowed")
            answer = exchange.take(message)
            if not isinstance(answer, bytes):
                answer = await answer
            if exchange.identity is not None:
                self._complete(exchange.identity)
        except AuthenticationFailed as failure:
            if failure.message:
                raise
            raise AuthenticationFailed(self._general_message(), str(failure)) from failure
        return answer

    def _general_message(self) -> str:
        """Kafka's message, which reveals nothing about the user."""
        what = "re-authentication" if self.is_again else "authentication"
        return f"Authentication failed during {what} due to invalid credentials with SASL mechanism {self.mechanism}"

    def _complete(self, identity: Identity) -> None:
        if self._of_broker:
            assert self.identity is not None
            self.identity = self.identity._replace(broker_id=identity.broker_id)
            self.served_until_ms = NOT_SERVED if self.ends_ms is None else self.ends_ms
        else:
            if self.identity is not None and self.identity.name != identity.name:
                raise AuthenticationFailed(
                    f"Cannot change principals during re-authentication from User.{self.identity.name}:"
                    f" User.{identity.name}"
                )
            if identity.expires_ms is not None and identity.expires_ms <= self._clock.now_ms():
                raise AuthenticationFailed(reason="the token has expired")  # a lifetime of 0 would have no end
            if self.identity is not None:
                identity = identity._replace(broker_id=self.identity.broker_id)
            self._set_lifetime(identity)
            self.identity = identity
        self._exchange = None

    def _set_lifetime(self, identity: Identity) -> None:
        limits = []
        if identity.expires_ms is not None:
            limits.append(identity.expires_ms - self._clock.now_ms())
        if (max_reauth_ms := self._listener.max_reauth_ms.get(self.mechanism, 0)) > 0:
            limits.append(max_reauth_ms)
        self.lifetime_ms = max(0, min(limits, default=0))
        self.ends_ms = self._clock.monotonic_ms() + self.lifetime_ms if limits else None
        self.served_until_ms = NOT_SERVED if self.ends_ms is None else self.ends_ms


class _Refusing:
    """An exchange that fails with the client's next message."""

    def __init__(self, message: str) -> None:
        self.identity: Identity | None = None
        self._message = message

    def take(self, message: bytes) -> bytes:
        raise AuthenticationFailed(self._message)
