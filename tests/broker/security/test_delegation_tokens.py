"""The decisions about delegation tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.security.delegation_tokens import Lifetimes, expiring, has_expired, issued, renewed
from barnabas.controller.token_znodes import DelegationToken, decode_token, encode_token
from barnabas.wire.errors import ApiError, ErrorCode

LIFETIMES = Lifetimes(max_lifetime_ms=1_000, expiry_time_ms=100)
NOW_MS = 10_000
INT64 = st.integers(-(2**63), 2**63 - 1)
NAMES = st.text(st.characters(exclude_categories=["Cs"]))


def token(expiry_ms: int = NOW_MS + 50, max_ms: int = NOW_MS + 120) -> DelegationToken:
    return DelegationToken("id", "User:alice", "User:app", ("User:bob",), NOW_MS - 50, max_ms, expiry_ms)


def error_of(decide: object, *arguments: object) -> ErrorCode:
    with pytest.raises(ApiError) as refused:
        decide(*arguments)  # type: ignore[operator]
    return refused.value.error


@pytest.mark.parametrize(
    ("asked_ms", "max_ms", "expiry_ms"),
    [(-1, 1_000, 100), (0, 1_000, 100), (50, 50, 50), (500, 500, 100), (5_000, 1_000, 100), (2**63 - 1, 1_000, 100)],
)
def test_lifetime_of_a_new_token(asked_ms: int, max_ms: int, expiry_ms: int) -> None:
    made = issued("id", "User:alice", "User:app", ("User:bob",), asked_ms, LIFETIMES, NOW_MS)
    assert made == DelegationToken(
        "id", "User:alice", "User:app", ("User:bob",), NOW_MS, NOW_MS + max_ms, NOW_MS + expiry_ms
    )


@pytest.mark.parametrize("principal", ["User:alice", "User:bob"])
@pytest.mark.parametrize(("period_ms", "expiry_ms"), [(-1, 100), (0, 100), (30, 30), (2**63 - 1, 100)])
def test_renewal(principal: str, period_ms: int, expiry_ms: int) -> None:
    """By the owner or a renewer, and not beyond the end of the lifetime."""
    assert renewed(token(), principal, period_ms, LIFETIMES, NOW_MS) == token(NOW_MS + expiry_ms)
    assert renewed(token(max_ms=NOW_MS + 60), principal, 90, LIFETIMES, NOW_MS).expiry_timestamp_ms == NOW_MS + 60


def test_refused_renewals() -> None:
    """The requester alone may not, and a token that has expired is told to be so whoever asks."""
    ask = renewed, token(), "User:app", 1, LIFETIMES
    assert error_of(*ask, NOW_MS) is ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    assert error_of(*ask, NOW_MS + 51) is ErrorCode.DELEGATION_TOKEN_EXPIRED
    assert error_of(renewed, None, "User:alice", 1, LIFETIMES, NOW_MS) is ErrorCode.DELEGATION_TOKEN_NOT_FOUND


@pytest.mark.parametrize("principal", ["User:alice", "User:bob"])
def test_expiry(principal: str) -> None:
    assert expiring(token(), principal, 0, NOW_MS) == token(NOW_MS)
    assert expiring(token(), principal, 2**63 - 1, NOW_MS) == token(NOW_MS + 120)
    assert expiring(token(), principal, -1, NOW_MS) is None
    assert expiring(token(), principal, -(2**63), NOW_MS + 500) is None, "it has expired before"


def test_refused_expiries() -> None:
    """Another principal is told so first, unlike in a renewal."""
    assert error_of(expiring, token(), "User:app", -1, NOW_MS + 51) is ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    assert error_of(expiring, token(), "User:bob", 0, NOW_MS + 51) is ErrorCode.DELEGATION_TOKEN_EXPIRED
    assert error_of(expiring, None, "User:alice", -1, NOW_MS) is ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def test_the_last_millisecond_counts() -> None:
    assert not has_expired(token(), NOW_MS + 50)
    assert has_expired(token(), NOW_MS + 51)
    assert has_expired(token(expiry_ms=NOW_MS + 500), NOW_MS + 121)


@given(st.integers(0, 2**53), INT64, INT64, INT64, st.integers(1, 2**63 - 1), st.integers(1, 2**63 - 1), NAMES)
def test_what_is_decided_can_be_stored(
    now_ms: int, asked_ms: int, renew_ms: int, expire_ms: int, max_lifetime_ms: int, expiry_time_ms: int, name: str
) -> None:
    """Whatever clients ask for, no token outlives its lifetime."""
    lifetimes = Lifetimes(max_lifetime_ms, expiry_time_ms)
    owner = f"User:{name}"
    states = [issued("id", owner, owner, (owner,), asked_ms, lifetimes, now_ms)]
    states.append(renewed(states[0], owner, renew_ms, lifetimes, now_ms))
    states += filter(None, [expiring(states[1], owner, expire_ms, now_ms)])
    for state in states:
        assert now_ms <= state.expiry_timestamp_ms <= state.max_timestamp_ms <= now_ms + max_lifetime_ms
        assert decode_token("id", encode_token(state)) == state
