"""SASL of a client's connections: the handshake, and the exchange of a mechanism (SaslClientAuthenticator of Kafka)."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any, Final

from barnabas.broker.client import tokens
from barnabas.broker.client.errors import ClientError, OtherMechanism
from barnabas.broker.client.security import (
    MECHANISMS,
    OAUTHBEARER,
    PLAIN,
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    TokenLogin,
    UserLogin,
)
from barnabas.broker.security.sasl import plain, scram
from barnabas.broker.security.sasl.mechanism import AuthenticationFailed
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from barnabas.wire.messages.sasl_handshake import SaslHandshakeRequest
from barnabas.wire.schema import Message

Exchange = Callable[[Message], Awaitable[Any]]
"""Sends a request and returns its response."""

_BY_STRENGTH: Final = (SCRAM_SHA_512, SCRAM_SHA_256, PLAIN)


class LoginRefused(ClientError):
    """The broker does not know this user with this password, or this token."""


async def log_in(exchange: Exchange, login: UserLogin | TokenLogin, address: str, *, has_tls: bool) -> int:
    """Authenticate a new connection; returns after how many ms the broker will end it unless it authenticates again
    (KIP-368), 0 for never.

    Errors: ClientError. OtherMechanism if the login names no mechanism, and the broker offers another one to be tried:
    a user may have a password for that alone.
    """
    mechanism = OAUTHBEARER if isinstance(login, TokenLogin) else login.mechanism or SCRAM_SHA_512
    answer = await exchange(SaslHandshakeRequest(mechanism=mechanism))
    if answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        raise _not_offered(login, mechanism, answer.mechanisms, address, has_tls=has_tls)
    if answer.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        raise ClientError(f"the listener at {address} knows no users: leave --user out, or ask for its SASL listener")
    if answer.error_code:
        raise ClientError(f"the broker at {address} refuses SASL: {ErrorCode.of(answer.error_code).message}")

    async def authenticate(message: bytes) -> Any:
        response = await exchange(SaslAuthenticateRequest(auth_bytes=message))
        if response.error_code:
            weaker = _weaker(login, mechanism, answer.mechanisms)
            if weaker and (weaker != PLAIN or has_tls):
                raise OtherMechanism(weaker)
            raise LoginRefused(_refusal(login, mechanism, address, response.error_message))
        return response

    try:
        response = await _run(authenticate, login, mechanism)
    except AuthenticationFailed as error:
        raise ClientError(f"the broker at {address} cannot be believed: {error}") from error
    lifetime_ms: int = response.session_lifetime_ms
    return max(0, lifetime_ms)


async def _run(authenticate: Callable[[bytes], Awaitable[Any]], login: UserLogin | TokenLogin, mechanism: str) -> Any:
    """The last response of a mechanism's exchange."""
    if isinstance(login, TokenLogin):
        response = await authenticate(tokens.initial_message(await tokens.token_of(login), login))
        if response.auth_bytes:  # a refusal, which an error follows once it has been acknowledged
            response = await authenticate(tokens.REFUSAL_ANSWER)
        return response
    credentials = plain.Credentials(login.username, login.password)
    if mechanism == PLAIN:
        return await authenticate(plain.encode(credentials))
    exchange = scram.Client(mechanism, credentials, os.urandom).start()
    message: bytes | None = exchange.first()
    while message is not None:
        response = await authenticate(message)
        message = exchange.answer(response.auth_bytes)
    return response


def _weaker(login: UserLogin | TokenLogin, mechanism: str, offered: list[str]) -> str:
    """The strongest mechanism below `mechanism` that the broker offers and the login may use; "" for none."""
    if isinstance(login, TokenLogin) or (login.mechanism and not login.may_weaken):
        return ""
    below = _BY_STRENGTH[_BY_STRENGTH.index(mechanism) + 1 :]
    return next((each for each in below if each in offered), "")


def _not_offered(
    login: UserLogin | TokenLogin, mechanism: str, offered: list[str], address: str, *, has_tls: bool
) -> ClientError:
    """What follows if the broker does not offer a mechanism. PLAIN would show the password to whoever reads the
    network, or asks for it, so that nobody is moved to it without TLS."""
    weaker = _weaker(login, mechanism, offered)
    if weaker and (weaker != PLAIN or has_tls):
        return OtherMechanism(weaker)
    if weaker:
        return ClientError(
            f"the listener at {address} offers PLAIN alone, without TLS: everybody on the way could read the password."
            " To send it, say sasl.mechanism=PLAIN in --command-config"
        )
    ours = "" if any(each in MECHANISMS for each in offered) else "; this program knows none of them"
    names = ", ".join(offered) or "none"
    return ClientError(f"the listener at {address} does not offer {mechanism}, but {names} (sasl.mechanism){ours}")


def _refusal(login: UserLogin | TokenLogin, mechanism: str, address: str, message: str | None) -> str:
    if isinstance(login, TokenLogin):
        return f"the broker at {address} does not accept the token: {message or 'no reason given'}"
    return (
        f"the broker at {address} does not accept user {login.username} with this password ({mechanism}): try again, or"
        f" have an administrator set a new one with `barnabas users password {login.username}`"
    )
