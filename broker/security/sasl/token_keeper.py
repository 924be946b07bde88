"""The token by which a broker logs in to others: retrieved when it is needed, and again before it expires.

Source: ExpiringCredentialRefreshingLogin of Kafka, whose thread sleeps until `refresh_ms`. Here the token is looked at
before each login: a connection authenticates again before the other broker ends its session, which is when the token
expires (KIP-368), and a newer token has to be there by then. A login waits for a token only if there is none that is
valid: while a newer one is retrieved, or cannot be had, the present one is used.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from barnabas.backoff import Backoff
from barnabas.broker.security.sasl.token_endpoint import OwnToken, Retrieve, TokenUnavailable, own_token
from barnabas.clock import Clock
from barnabas.threads import Threads

logger = logging.getLogger(__name__)


class RefreshSettings(NamedTuple):
    """`sasl.login.refresh.*` and `sasl.login.retry.*`. The window is the share of a token's lifetime after which it is
    retrieved again, and at most so much later as the jitter says."""

    window_factor: float = 0.8
    window_jitter: float = 0.05
    min_period_seconds: int = 60
    buffer_seconds: int = 300
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 10_000


def refresh_ms(token: OwnToken, now_ms: int, settings: RefreshSettings, random: float) -> int:
    """The time, in ms since the epoch, at which a token that was retrieved at `now_ms` is retrieved again. `random` is
    between 0 and 1 (ExpiringCredentialRefreshingLogin.refreshMs)."""
    share = settings.window_factor + settings.window_jitter * random
    buffers_ms = 1000 * (settings.min_period_seconds + settings.buffer_seconds)
    if now_ms + buffers_ms > token.expires_ms:
        return now_ms + int((token.expires_ms - now_ms) * share)
    proposed_ms = token.begins_ms + int((token.expires_ms - token.begins_ms) * share)
    latest_ms = token.expires_ms - 1000 * settings.buffer_seconds
    earliest_ms = now_ms + 1000 * settings.min_period_seconds
    return max(min(proposed_ms, latest_ms), earliest_ms)


class TokenKeeper:
    """Keeps the token; owned by the event loop. `random` returns a number between 0 and 1."""

    def __init__(
        self, retrieve: Retrieve, settings: RefreshSettings, threads: Threads, clock: Clock, random: Callable[[], float]
    ) -> None:
        self._retrieve = retrieve
        self._settings = settings
        self._threads = threads
        self._clock = clock
        self._random = random
        self._token: OwnToken | None = None
        self._refresh_ms = 0
        self._backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        self._next_attempt_ms: int | None = None
        self._failure = ""
        self._retrieving: asyncio.Task[None] | None = None

    def token(self) -> str:
        """The present token, after `prepare`."""
        assert self._token is not None
        return self._token.text

    async def prepare(self) -> None:
        """Have a token that is valid, and begin to retrieve a newer one if it is time for that. Raises
        TokenUnavailable."""
        if self._token is None or self._clock.now_ms() >= self._refresh_ms:
            retrieving = self._begin_to_retrieve()
            if retrieving is not None and not self._is_valid():
                await asyncio.shield(retrieving)  # other connections wait for it, too
        if not self._is_valid():
            raise TokenUnavailable(self._failure)

    def _is_valid(self) -> bool:
        return self._token is not None and self._token.expires_ms > self._clock.now_ms()

    def _begin_to_retrieve(self) -> asyncio.Task[None] | None:
        """Retrieve a token, unless that is under way; None if the last attempt is too recent."""
        if self._retrieving is None:
            now_ms = self._clock.monotonic_ms()
            if self._next_attempt_ms is not None and now_ms < self._next_attempt_ms:
                return None
            self._next_attempt_ms = now_ms + self._backoff.next_ms()
            self._retrieving = asyncio.get_running_loop().create_task(self._retrieve_again(), name="token")
        return self._retrieving

    async def _retrieve_again(self) -> None:
        try:
            text = await self._threads.call(self._retrieve)
            now_ms = self._clock.now_ms()
            self._token = own_token(text, now_ms)
            self._refresh_ms = refresh_ms(self._token, now_ms, self._settings, self._random())
            self._backoff.reset()
            self._next_attempt_ms = None
        except (TokenUnavailable, RuntimeError) as error:
            self._failure = str(error)
            logger.error("no token to log in to other brokers: %s", error)
        finally:
            self._retrieving = None
