"""The keys of a tokens' issuer: a JWK set (RFC 7517) in a file or at a URL.   KIP-768.

Source: RefreshingHttpsJwks and JwksFileVerificationKeyResolver of Kafka. A set is read in a thread. It is read again
after `refresh_ms`, while the keys that are known serve, and when a token names an unknown key, unless the last attempt
is too recent: a client that makes key ids up causes few requests.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from cryptography.exceptions import InternalError, UnsupportedAlgorithm
from joserfc.errors import JoseError
from joserfc.jwk import Key, import_key

from barnabas.backoff import Backoff
from barnabas.broker.security.sasl.oauthbearer import InvalidToken
from barnabas.broker.security.sasl.urls import check_url, read_url
from barnabas.clock import Clock
from barnabas.threads import Threads

logger = logging.getLogger(__name__)

_KEY_TYPES: Final = ("RSA", "EC", "OKP")


def parse(content: bytes) -> dict[str, Key]:
    """The public keys of a JWK set by id; a key without one has a number. Keys that verify no signatures are left out.
    Raises ValueError."""
    try:
        found = json.loads(content)
        entries = found["keys"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError("it is not a JWK set") from error
    keys: dict[str, Key] = {}
    for number, entry in enumerate(entries if isinstance(entries, list) else []):
        key = _key_of(entry)
        if key is not None:
            keys[str(entry.get("kid", f"#{number}"))] = key
    if not keys:
        raise ValueError("it has no public key for signatures")
    return keys


def _key_of(entry: Any) -> Key | None:
    if not isinstance(entry, dict) or entry.get("kty") not in _KEY_TYPES or entry.get("use", "sig") != "sig":
        return None
    try:
        return import_key(entry)
    except (JoseError, ValueError, TypeError, KeyError, UnsupportedAlgorithm, InternalError) as error:
        logger.warning("a key of the JWK set is left out: %s", type(error).__name__)
        return None


class Jwks:
    """The key set at a URL; owned by the event loop.

    Args:
        url: file://, http:// or https:// (`sasl.oauthbearer.jwks.endpoint.url`).
        refresh_ms: the age at which it is read again.
        retry_backoff_ms: the time between two attempts. It doubles with each failure up to `retry_backoff_max_ms`.
        threads: where it is read.
        read: reads a URL.
    """

    def __init__(
        self,
        url: str,
        refresh_ms: int,
        retry_backoff_ms: int,
        retry_backoff_max_ms: int,
        threads: Threads,
        clock: Clock,
        read: Callable[[str, Clock], bytes] = read_url,
    ) -> None:
        check_url(url)
        self._url = url
        self._refresh_ms = refresh_ms
        self._retry_backoff_ms = retry_backoff_ms
        self._backoff = Backoff(retry_backoff_ms, retry_backoff_max_ms)
        self._next_attempt_ms: int | None = None
        self._threads = threads
        self._clock = clock
        self._read = read
        self._keys: Mapping[str, Key] = {}
        self._read_ms = 0
        self._reading: asyncio.Task[None] | None = None

    async def keys(self) -> Mapping[str, Key]:
        """The keys by id. Raises InvalidToken if there are none."""
        if not self._keys:
            return await self.newer_keys()
        if self._clock.monotonic_ms() - self._read_ms >= self._refresh_ms:
            self._begin_to_read()
        return self._keys

    async def newer_keys(self) -> Mapping[str, Key]:
        """The keys, after a refresh unless the last attempt is too recent. Raises InvalidToken if there are none."""
        reading = self._begin_to_read()
        if reading is not None:
            await asyncio.shield(reading)
        if not self._keys:
            raise InvalidToken("the keys of the issuer are unknown (sasl.oauthbearer.jwks.endpoint.url)")
        return self._keys

    def _begin_to_read(self) -> asyncio.Task[None] | None:
        """Read the set, unless that is under way; None if the last attempt is too recent."""
        if self._reading is None:
            now_ms = self._clock.monotonic_ms()
            if self._next_attempt_ms is not None and now_ms < self._next_attempt_ms:
                return None
            self._next_attempt_ms = now_ms + self._backoff.next_ms()
            self._reading = asyncio.create_task(self._read_again(), name="JWK set")
        return self._reading

    async def _read_again(self) -> None:
        try:
            self._keys = await self._threads.call(self._read_keys)
            self._read_ms = self._clock.monotonic_ms()
            self._backoff.reset()
            self._next_attempt_ms = self._read_ms + self._retry_backoff_ms
        except (OSError, ValueError, RuntimeError) as error:
            logger.error("the JWK set at %s cannot be read: %s", self._url, error)
        finally:
            self._reading = None

    def _read_keys(self) -> dict[str, Key]:
        return parse(self._read(self._url, self._clock))
