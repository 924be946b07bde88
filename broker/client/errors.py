"""The errors that end a command, with a text for the user at the terminal."""

from __future__ import annotations

from typing import Final

from barnabas.wire.errors import ErrorCode

NO_ROOM: Final = "the broker has no room for another connection (try again later)"
"""A cause of connections that are closed at once: limits of connections, of handshakes, or of descriptors."""


class ClientError(Exception):
    """Ends a command; the text is for users."""


class BrokerUnavailable(ClientError):
    """No response from an address: refused, unknown host, closed, or timed out."""


class ResponseError(ClientError):
    """A broker responded with an error code."""

    def __init__(self, error: ErrorCode, what: str, message: str | None = None) -> None:
        super().__init__(f"{what}: {message or error.message} ({error.name})")
        self.error = error


class OtherMechanism(ClientError):
    """The broker does not offer SASL's default mechanism, but `mechanism`, which the same user may try on a new
    connection."""

    def __init__(self, mechanism: str) -> None:
        super().__init__(f"the broker offers the SASL mechanism {mechanism}")
        self.mechanism = mechanism


def timed_out(code: int, what: str) -> str:
    """The addition to the text of a change that timed out: whether it will be carried out is unknown."""
    return f"; {what}" if code == ErrorCode.REQUEST_TIMED_OUT else ""


def check(code: int, what: str, message: str | None = None) -> None:
    """Raise ResponseError unless `code` is 0; `what` names the failed action."""
    if code:
        raise ResponseError(ErrorCode.of(code), what, message)
