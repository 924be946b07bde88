"""When a broker retrieves its token again, and what it does while it cannot."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.security.sasl.token_endpoint import OwnToken, TokenUnavailable, UnsecuredTokens
from barnabas.broker.security.sasl.token_keeper import RefreshSettings, TokenKeeper, refresh_ms
from barnabas.clock import ManualClock
from barnabas.threads import OneThread

pytestmark = pytest.mark.anyio

HOUR_MS: Final = 3_600_000
SETTINGS: Final = RefreshSettings(window_jitter=0.1)


@pytest.mark.parametrize(
    ("begins_ms", "expires_ms", "now_ms", "random", "expected_ms"),
    [
        (0, HOUR_MS, 0, 0, 2_880_000),
        (0, HOUR_MS, 0, 0.5, 3_060_000),
        (0, HOUR_MS, 0, 1, 3_240_000),
        (0, 100 * HOUR_MS, 0, 0, 80 * HOUR_MS),
        (0, 600_000, 0, 0, 300_000),  # 300 s before it expires
        (-HOUR_MS, 400_000, 0, 0, 60_000),  # 60 s from now at the earliest
        (0, 300_000, 0, 0, 240_000),  # too short for both
        (-HOUR_MS, 100_000, 0, 0, 80_000),
    ],
)
def test_times_of_refresh(begins_ms: int, expires_ms: int, now_ms: int, random: float, expected_ms: int) -> None:
    """Those of Kafka's ExpiringCredentialRefreshingLogin."""
    assert refresh_ms(OwnToken("", begins_ms, expires_ms), now_ms, SETTINGS, random) == expected_ms


@given(st.integers(0, 10**7), st.integers(1, 10**9), st.floats(0, 1), st.floats(0.5, 0.75), st.integers(0, 900))
def test_refreshed_in_time(age_ms: int, left_ms: int, random: float, factor: float, period_seconds: int) -> None:
    """Between now and the end, for any token and all settings that Kafka documents."""
    settings = RefreshSettings(factor, 0.25, period_seconds, 3_600)
    found = refresh_ms(OwnToken("", 10**7 - age_ms, 10**7 + left_ms), 10**7, settings, random)
    assert 10**7 <= found <= 10**7 + left_ms


class Issuer:
    """Tokens of 1,000 s; without `is_there`, none."""

    def __init__(self, clock: ManualClock) -> None:
        self._tokens = UnsecuredTokens(
            {"unsecuredLoginStringClaim_sub": "b", "unsecuredLoginLifetimeSeconds": "1000"}, clock
        )
        self.is_there = True
        self.requests = 0

    def retrieve(self) -> str:
        self.requests += 1
        if not self.is_there:
            raise TokenUnavailable("nobody answers")
        return self._tokens.make()


def keeper(issuer: Issuer, clock: ManualClock) -> TokenKeeper:
    return TokenKeeper(issuer.retrieve, RefreshSettings(), OneThread(), clock, lambda: 0.0)


async def turns() -> None:
    """Let a retrieval that has begun come to its end."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_renewal() -> None:
    """One token for many logins, until 300 s before it expires."""
    clock = ManualClock(0)
    issuer = Issuer(clock)
    ours = keeper(issuer, clock)
    await asyncio.gather(*(ours.prepare() for _ in range(5)))
    first = ours.token()
    clock.advance(699_999)
    await ours.prepare()
    assert (ours.token(), issuer.requests) == (first, 1)
    clock.advance(1)
    await ours.prepare()
    assert ours.token() == first  # which is valid, so that nobody waits
    await turns()
    assert issuer.requests == 2
    assert ours.token() != first


async def test_an_issuer_out_of_reach() -> None:
    """The present token serves until it expires. Attempts have pauses that double."""
    clock = ManualClock(0)
    issuer = Issuer(clock)
    ours = keeper(issuer, clock)
    await ours.prepare()
    first = ours.token()
    issuer.is_there = False
    clock.advance(700_000)
    for pause_ms, requests in ((0, 2), (99, 2), (1, 3), (199, 3), (1, 4)):
        clock.advance(pause_ms)
        await ours.prepare()
        await turns()
        assert issuer.requests == requests
    assert ours.token() == first
    clock.advance(300_000)
    with pytest.raises(TokenUnavailable, match="nobody answers"):
        await ours.prepare()
    with pytest.raises(TokenUnavailable, match="nobody answers"):  # at once: the last attempt is too recent
        await ours.prepare()
    issuer.is_there = True
    clock.advance(10_000)
    await ours.prepare()
    assert ours.token() != first


async def test_an_issuer_that_does_not_answer() -> None:
    """Nobody waits for it while the present token is valid."""
    clock = ManualClock(0)
    issuer = Issuer(clock)
    threads = Silent()
    ours = TokenKeeper(issuer.retrieve, RefreshSettings(), threads, clock, lambda: 0.0)
    await ours.prepare()
    threads.is_silent = True
    clock.advance(700_000)
    for _ in range(2):
        await ours.prepare()
        await turns()
    assert threads.silent_count == 1
    threads.pending.cancel()


class Silent(OneThread):
    """A thread whose jobs do not end while it `is_silent`."""

    is_silent = False
    silent_count = 0
    pending: asyncio.Future[Any]

    def call(self, job: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        if not self.is_silent:
            return super().call(job, *arguments)
        self.silent_count += 1
        self.pending = asyncio.get_running_loop().create_future()
        return self.pending


async def test_a_waiter_that_gives_up() -> None:
    """The others get the token all the same."""
    clock = ManualClock(0)
    issuer = Issuer(clock)
    ours = keeper(issuer, clock)
    first, second = (asyncio.create_task(ours.prepare()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert issuer.requests == 1


async def test_no_token_at_all() -> None:
    """What the issuer answers is no token of this time."""
    clock = ManualClock(0)
    ours = TokenKeeper(lambda: "a.b.c", RefreshSettings(), OneThread(), clock, lambda: 0.0)
    with pytest.raises(TokenUnavailable, match="cannot be read"):
        await ours.prepare()
