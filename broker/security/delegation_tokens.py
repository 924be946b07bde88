"""Delegation tokens: a user that has logged in gets one for others, who log in with it by SCRAM (KIP-48, KIP-373).

The HMAC of a token's id, with `delegation.token.secret.key`, is the password of the token; all brokers have the same
key. A token expires at a time that its owner and its renewers can move, up to its maximum lifetime.

Source: `DelegationTokenControlManager.java` of Kafka 4.3.0 (decisions), `DelegationTokenManagerZk.scala` of 3.9.1
(storage), `DelegationTokenCache.java` (credentials of SCRAM). Unlike there, a token that has expired and is not removed
yet cannot log in, and the credential of a mechanism is derived at the first login with it.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Collection
from hashlib import sha256
from typing import Final, NamedTuple

from barnabas.broker.security.sasl.mechanism import Identity
from barnabas.broker.security.sasl.scram import Found
from barnabas.broker.security.sasl.scram_credentials import Credential
from barnabas.clock import Clock
from barnabas.controller.token_znodes import DelegationToken, encode_token
from barnabas.controller.tokens import TokenRepository
from barnabas.threads import Threads
from barnabas.turns import Turns
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.names import random_topic_id, topic_id_to_text

_TIMESTAMP_MAX: Final = 2**63 - 1
_SALT_BYTES: Final = 26
_TOKENS_PER_TURN: Final = 500
"""The number of tokens that are looked at before others have a turn."""


class TokenLimits(NamedTuple):
    """What can be created: the number of tokens, of those of one owner, the size of a token's znode, in which the
    principals are, and the sum of these sizes. What other programs write to ZooKeeper is not refused."""

    tokens: int = 20_000
    tokens_of_owner: int = 5_000
    payload_bytes: int = 8 * 1024
    bytes: int = 16 * 1024 * 1024


LIMITS: Final = TokenLimits()


class Lifetimes(NamedTuple):
    """The times of tokens: `delegation.token.max.lifetime.ms` and `delegation.token.expiry.time.ms`."""

    max_lifetime_ms: int
    expiry_time_ms: int


# --- decisions ------------------------------------------------------------------------------------


def issued(
    token_id: str,
    owner: str,
    requester: str,
    renewers: tuple[str, ...],
    asked_lifetime_ms: int,
    lifetimes: Lifetimes,
    now_ms: int,
) -> DelegationToken:
    """A new token. It lives as long as asked, or for the maximum if that is shorter or the asked time is not above
    0."""
    lifetime_ms = lifetimes.max_lifetime_ms
    if asked_lifetime_ms > 0:
        lifetime_ms = min(lifetime_ms, asked_lifetime_ms)
    max_timestamp_ms = _sum(now_ms, lifetime_ms)
    expiry_timestamp_ms = min(max_timestamp_ms, _sum(now_ms, lifetimes.expiry_time_ms))
    return DelegationToken(token_id, owner, requester, renewers, now_ms, max_timestamp_ms, expiry_timestamp_ms)


def renewed(
    token: DelegationToken | None, principal: str, period_ms: int, lifetimes: Lifetimes, now_ms: int
) -> DelegationToken:
    """A token with its expiry at the end of a period from now: `delegation.token.expiry.time.ms`, or the asked one if
    that is shorter and above 0. Errors: DELEGATION_TOKEN_NOT_FOUND, DELEGATION_TOKEN_EXPIRED,
    DELEGATION_TOKEN_OWNER_MISMATCH."""
    if token is None:
        raise ApiError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
    _check_not_expired(token, now_ms)
    _check_may_renew(token, principal)
    renewed_for_ms = lifetimes.expiry_time_ms
    if period_ms > 0:
        renewed_for_ms = min(renewed_for_ms, period_ms)
    return token._replace(expiry_timestamp_ms=min(token.max_timestamp_ms, _sum(now_ms, renewed_for_ms)))


def expiring(token: DelegationToken | None, principal: str, period_ms: int, now_ms: int) -> DelegationToken | None:
    """A token with its expiry at the end of a period from now; None, which removes it, if the period is negative.
    Errors: DELEGATION_TOKEN_NOT_FOUND, DELEGATION_TOKEN_OWNER_MISMATCH, DELEGATION_TOKEN_EXPIRED."""
    if token is None:
        raise ApiError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
    _check_may_renew(token, principal)
    if period_ms < 0:
        return None
    _check_not_expired(token, now_ms)
    return token._replace(expiry_timestamp_ms=min(token.max_timestamp_ms, _sum(now_ms, period_ms)))


def has_expired(token: DelegationToken, now_ms: int) -> bool:
    """Whether a token is past its expiry or its maximum lifetime."""
    return token.max_timestamp_ms < now_ms or token.expiry_timestamp_ms < now_ms


def _check_may_renew(token: DelegationToken, principal: str) -> None:
    if principal != token.owner and principal not in token.renewers:
        raise ApiError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)


def _check_not_expired(token: DelegationToken, now_ms: int) -> None:
    if has_expired(token, now_ms):
        raise ApiError(ErrorCode.DELEGATION_TOKEN_EXPIRED)


def _sum(now_ms: int, duration_ms: int) -> int:
    return min(now_ms + duration_ms, _TIMESTAMP_MAX)


# --- the tokens of a broker -----------------------------------------------------------------------


class DelegationTokens:
    """Issues, changes and lists delegation tokens, and finds the credentials of logins with them; owned by the event
    loop.

    Args:
        repository: where they are kept.
        secret_key: `delegation.token.secret.key`.
        lifetimes: the times of new and renewed tokens.
        clock: tells what has expired.
        threads: derive credentials.
        random_bytes: for ids and salts.
    """

    def __init__(
        self,
        repository: TokenRepository,
        secret_key: str,
        lifetimes: Lifetimes,
        clock: Clock,
        threads: Threads,
        random_bytes: Callable[[int], bytes],
        limits: TokenLimits = LIMITS,
    ) -> None:
        self.repository = repository
        self._secret_key = secret_key.encode()
        self._lifetimes = lifetimes
        self._clock = clock
        self._threads = threads
        self._random_bytes = random_bytes
        self._limits = limits
        self._ids: dict[bytes, str] = {}
        """The ids of tokens, by the SHA-256 of their HMACs: how long a look-up takes tells nothing about an HMAC."""
        self._credentials: dict[str, dict[str, Credential]] = {}
        """The credentials of tokens that have logged in, by id and mechanism."""
        self._known: dict[str, tuple[str, int]] = {}
        """The owners of tokens, and the sizes of their znodes, by id."""
        self._of_owners: Counter[str] = Counter()
        self._bytes = 0
        repository.subscribe(self._changed)

    def _changed(self, token_id: str) -> None:
        """A token was created, changed or removed."""
        token = self.repository.tokens.get(token_id)
        digest = sha256(self.hmac_of(token_id)).digest()
        self._uncount(token_id)
        if token is None:
            self._ids.pop(digest, None)
            self._credentials.pop(token_id, None)
            return
        self._count(token)
        self._ids[digest] = token_id

    def _count(self, token: DelegationToken) -> None:
        size = len(encode_token(token))
        self._known[token.token_id] = token.owner, size
        self._of_owners[token.owner] += 1
        self._bytes += size

    def _uncount(self, token_id: str) -> None:
        if token_id not in self._known:
            return
        owner, size = self._known.pop(token_id)
        self._bytes -= size
        self._of_owners[owner] -= 1
        if not self._of_owners[owner]:
            del self._of_owners[owner]

    def hmac_of(self, token_id: str) -> bytes:
        """The HMAC of a token: its secret."""
        return hmac.digest(self._secret_key, token_id.encode(), "sha512")

    async def create(
        self, owner: str, requester: str, renewers: Collection[str], asked_lifetime_ms: int
    ) -> DelegationToken:
        """Issue a token. Errors: POLICY_VIOLATION where it exceeds `TokenLimits`; those of `TokenRepository.change`."""
        token_id = topic_id_to_text(random_topic_id(self._random_bytes))
        token = issued(
            token_id, owner, requester, tuple(renewers), asked_lifetime_ms, self._lifetimes, self._clock.now_ms()
        )
        self._check_room(token)
        self._count(token)  # before it is there: others are created while it is written
        try:
            await self.repository.change(token_id, lambda _: token)
        except BaseException:
            if token_id not in self.repository.tokens:
                self._uncount(token_id)
            raise
        return token

    def _check_room(self, token: DelegationToken) -> None:
        limits, size = self._limits, len(encode_token(token))
        if (
            len(self._known) >= limits.tokens
            or self._of_owners[token.owner] >= limits.tokens_of_owner
            or size > limits.payload_bytes
            or self._bytes + size > limits.bytes
        ):
            raise ApiError(ErrorCode.POLICY_VIOLATION)

    async def renew(self, principal: str, token_hmac: bytes, period_ms: int) -> int:
        """Renew a token; returns its expiry, in ms since the epoch. Errors: those of `renewed` and of
        `TokenRepository.change`."""
        token = await self.repository.change(
            self._id_of(token_hmac),
            lambda token: renewed(token, principal, period_ms, self._lifetimes, self._clock.now_ms()),
        )
        assert token is not None
        return token.expiry_timestamp_ms

    async def expire(self, principal: str, token_hmac: bytes, period_ms: int) -> int:
        """Move the expiry of a token, or remove it; returns its expiry, in ms since the epoch. Errors: those of
        `expiring` and of `TokenRepository.change`."""
        now_ms = self._clock.now_ms()
        token = await self.repository.change(
            self._id_of(token_hmac), lambda token: expiring(token, principal, period_ms, now_ms)
        )
        return now_ms if token is None else token.expiry_timestamp_ms

    def _id_of(self, token_hmac: bytes) -> str:
        """The id of the token with this HMAC. Errors: DELEGATION_TOKEN_NOT_FOUND."""
        token_id = self._ids.get(sha256(token_hmac).digest())
        if token_id is None or not hmac.compare_digest(self.hmac_of(token_id), token_hmac):
            raise ApiError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
        return token_id

    async def describe(self, is_wanted: Callable[[DelegationToken], bool]) -> list[DelegationToken]:
        """The wanted tokens, in the order of their ids."""
        found, turns, tokens = [], Turns(_TOKENS_PER_TURN), self.repository.tokens
        for token_id in sorted(tokens):
            await turns.after_one()
            token = tokens.get(token_id)
            if token is not None and is_wanted(token):
                found.append(token)
        return found

    async def remove_expired(self) -> None:
        """Remove the tokens that have expired. Errors: those of `TokenRepository.change`."""
        now_ms = self._clock.now_ms()
        for token in [each for each in self.repository.tokens.values() if has_expired(each, now_ms)]:
            await self.repository.change(
                token.token_id, lambda found: None if found is None or has_expired(found, now_ms) else found
            )

    async def find(self, mechanism: str, token_id: str) -> Found | None:
        """The credential of a token for a mechanism of SCRAM, and the identity of its owner; None if there is no such
        token, or if it has expired."""
        token = self.repository.tokens.get(token_id)
        if token is None or has_expired(token, self._clock.now_ms()):
            return None
        credential = self._credentials.get(token_id, {}).get(mechanism)
        if credential is None:
            password = b64encode(self.hmac_of(token_id)).decode()
            salt = self._random_bytes(_SALT_BYTES)
            credential = await self._threads.call(Credential.of_password, mechanism, password, salt)
            token = self.repository.tokens.get(token_id)  # which may have been changed meanwhile
            if token is None or has_expired(token, self._clock.now_ms()):
                return None
            credential = self._credentials.setdefault(token_id, {}).setdefault(mechanism, credential)
        name = token.owner.partition(":")[2]
        return Found(credential, Identity(name, is_token=True, expires_ms=token.expiry_timestamp_ms))
