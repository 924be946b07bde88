"""What ends a command, in words for the person at the terminal."""

from __future__ import annotations

from barnabas.wire.errors import ErrorCode


class ClientError(Exception):
    """Something that ends a command; the text says what, in words for people."""


class BrokerUnavailable(ClientError):
    """No answer from an address: refused, unknown host, closed, or silent for too long."""


class ResponseError(ClientError):
    """A broker answered with an error code."""

    def __init__(self, error: ErrorCode, what: str, message: str | None = None) -> None:
        super().__init__(f"{what}: {message or error.message} ({error.name})")
        self.error = error


def timed_out(code: int, what: str) -> str:
    """What to add to the text of a change that was not done in time: nobody knows whether it will be."""
    return f"; {what}" if code == ErrorCode.REQUEST_TIMED_OUT else ""


def check(code: int, what: str, message: str | None = None) -> None:
    """Raise ResponseError unless `code` is 0; `what` tells what was being done."""
    if code:
        raise ResponseError(ErrorCode.of(code), what, message)
