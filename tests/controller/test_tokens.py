"""Delegation tokens in the metadata store: cached, changed by us, changed by others."""

import asyncio
from typing import Any

import pytest

from barnabas.clock import ManualClock
from barnabas.controller.coordination.interface import CoordinationStore
from barnabas.controller.token_znodes import (
    TOKEN_CHANGES,
    DelegationToken,
    decode_token,
    decode_token_change,
    encode_token,
    token_path,
)
from barnabas.controller.tokens import TokenRepository
from barnabas.controller.znodes import DamagedZnode
from barnabas.wire.errors import ApiError, ErrorCode
from tests.support.manual_timers import ManualTimers

Stores = Any
"""A store under test, see conftest.py."""

TOKEN = DelegationToken(
    "Xk3mGZ0jQ-2aWc_9sVbN4g",
    "User:al/ice é",
    "User:bob",
    ("User:carol", "User:CN=d,O=e f*~"),
    1_700_000_000_000,
    1_700_604_800_000,
    1_700_086_400_000,
)
OF_KAFKA = (
    b'{"issueTimestamp":1700000000000,"renewers":["User%3Acarol","User%3ACN%3Dd%2CO%3De%20f%2A%7E"],'
    b'"tokenRequester":"User%3Abob","tokenId":"Xk3mGZ0jQ-2aWc_9sVbN4g","owner":"User%3Aal%2Fice%20%C3%A9",'
    b'"expiryTimestamp":1700086400000,"maxTimestamp":1700604800000,"version":3}'
)
"""What DelegationTokenInfoZNode.encode of Kafka 3.9.1 makes of the same token."""
PATH = token_path(TOKEN.token_id)


def repository_of(session: CoordinationStore, clock: ManualClock) -> TokenRepository:
    return TokenRepository(session, clock, ManualTimers())


class Listener:
    """Collects changes; `next()` waits for one."""

    def __init__(self, repository: TokenRepository) -> None:
        self.heard: list[str] = []
        self._news: asyncio.Queue[str] = asyncio.Queue()
        repository.subscribe(self._hear)

    def _hear(self, token_id: str) -> None:
        self.heard.append(token_id)
        self._news.put_nowait(token_id)

    async def next(self) -> str:
        return await self._news.get()


async def write_like_kafka(store: CoordinationStore, payload: bytes | None, token_id: str = TOKEN.token_id) -> None:
    """A change by a broker of Kafka, in two steps; None deletes the znode."""
    path = token_path(token_id)
    if payload is None:
        await store.delete(path)
    elif await store.exists(path):
        await store.set(path, payload)
    else:
        await store.create(path, payload)
    await store.create(f"{TOKEN_CHANGES}/token_change_", token_id.encode(), sequence=True)


# --- znodes --------------------------------------------------------------------------------------


def test_the_znodes_are_those_of_kafka() -> None:
    assert PATH == "/delegation_token/tokens/Xk3mGZ0jQ-2aWc_9sVbN4g"
    assert encode_token(TOKEN) == OF_KAFKA
    assert decode_token(TOKEN.token_id, OF_KAFKA) == TOKEN
    assert TOKEN_CHANGES == "/delegation_token/token_changes"
    assert decode_token_change("/x", b"Xk3mGZ0jQ-2aWc_9sVbN4g") == TOKEN.token_id


def test_a_token_of_older_versions() -> None:
    """Its owner has requested it (before KIP-373)."""
    payload = (
        b'{"version":1,"owner":"User%3Aa","renewers":[],"issueTimestamp":1,"maxTimestamp":3,"expiryTimestamp":2,'
        b'"tokenId":"t"}'
    )
    assert decode_token("t", payload) == DelegationToken("t", "User:a", "User:a", (), 1, 3, 2)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"{", b"["),
        (b'"version":3', b'"version":4'),
        (b'"version":3', b'"version":"3"'),
        (b'"version":3', b'"other":3'),
        (b"Xk3mGZ0jQ", b"another"),
        (b"User%3Abob", b"bob"),
        (b"1700086400000", b"-1"),
        (b"1700086400000", b"true"),
        (b"1700086400000", b"1e400"),
        (b"1700086400000", b"9223372036854775808"),
        (b'["User%3Acarol"', b'[7,"User%3Acarol"'),
    ],
)
def test_damaged_tokens_are_told(old: bytes, new: bytes) -> None:
    with pytest.raises(DamagedZnode, match=PATH):
        decode_token(TOKEN.token_id, OF_KAFKA.replace(old, new, 1))


@pytest.mark.parametrize("payload", [b"", b"\xff", b"a/b", b"..", b"a" * 256])
def test_damaged_notifications_are_told(payload: bytes) -> None:
    with pytest.raises(DamagedZnode):
        decode_token_change("/delegation_token/token_changes/token_change_0000000000", payload)


# --- changes -------------------------------------------------------------------------------------


async def test_a_change_is_written_and_told(stores: Stores, clock: ManualClock) -> None:
    async with stores:
        session = await stores.session()
        repository = repository_of(session, clock)
        listener = Listener(repository)
        await repository.start()
        assert await repository.change(TOKEN.token_id, lambda _: TOKEN) == TOKEN
        assert (await session.get(PATH))[0] == OF_KAFKA
        assert dict(repository.tokens) == {TOKEN.token_id: TOKEN}
        [change] = await session.get_children(TOKEN_CHANGES)
        assert change == "token_change_0000000000"
        assert (await session.get(f"{TOKEN_CHANGES}/{change}"))[0] == TOKEN.token_id.encode()
        assert await repository.change(TOKEN.token_id, lambda current: current) == TOKEN
        assert (await session.get(PATH))[1].version == 0, "nothing has changed"
        later = TOKEN._replace(expiry_timestamp_ms=TOKEN.max_timestamp_ms)
        assert await repository.change(TOKEN.token_id, lambda _: later) == later
        assert decode_token(TOKEN.token_id, (await session.get(PATH))[0]) == later
        assert await repository.change(TOKEN.token_id, lambda _: None) is None
        assert await session.exists(PATH) is None
        assert dict(repository.tokens) == {}
        assert listener.heard == [TOKEN.token_id] * 3
        await repository.stop()


async def test_a_change_that_is_refused_writes_nothing(stores: Stores, clock: ManualClock) -> None:
    async with stores:
        session = await stores.session()
        repository = repository_of(session, clock)
        await repository.start()

        def refuse(current: DelegationToken | None) -> None:
            assert current is None
            raise ApiError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)

        with pytest.raises(ApiError):
            await repository.change(TOKEN.token_id, refuse)
        assert await session.get_children(TOKEN_CHANGES) == []
        await repository.stop()


async def test_changes_of_others_are_followed(stores: Stores, clock: ManualClock) -> None:
    async with stores:
        repository, other = repository_of(await stores.session(), clock), await stores.session()
        await repository.start()
        listener = Listener(repository)
        await write_like_kafka(other, OF_KAFKA)
        assert await listener.next() == TOKEN.token_id
        assert dict(repository.tokens) == {TOKEN.token_id: TOKEN}
        later = TOKEN._replace(expiry_timestamp_ms=TOKEN.max_timestamp_ms)
        await write_like_kafka(other, encode_token(later))
        await listener.next()
        assert dict(repository.tokens) == {TOKEN.token_id: later}
        await write_like_kafka(other, None)
        await listener.next()
        assert dict(repository.tokens) == {}
        await repository.stop()


async def test_no_change_undoes_another(stores: Stores, clock: ManualClock) -> None:
    """Two brokers move the expiry of one token at the same time."""
    async with stores:
        repositories = [repository_of(await stores.session(), clock) for _ in range(2)]
        for repository in repositories:
            await repository.start()
        await repositories[0].change(TOKEN.token_id, lambda _: TOKEN)

        def later(current: DelegationToken | None) -> DelegationToken | None:
            return current and current._replace(expiry_timestamp_ms=current.expiry_timestamp_ms + 1)

        await asyncio.gather(*(repositories[index % 2].change(TOKEN.token_id, later) for index in range(10)))
        for repository in repositories:
            await repository.refresh(TOKEN.token_id)
            expected = TOKEN._replace(expiry_timestamp_ms=TOKEN.expiry_timestamp_ms + 10)
            assert dict(repository.tokens) == {TOKEN.token_id: expected}
            await repository.stop()


# --- damage, deletions, lost sessions --------------------------------------------------------------


async def test_damaged_tokens_do_not_count(
    stores: Stores, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with stores:
        repository, other = repository_of(await stores.session(), clock), await stores.session()
        await repository.start()
        listener = Listener(repository)
        await write_like_kafka(other, OF_KAFKA)
        await listener.next()
        await write_like_kafka(other, b"{broken")
        await listener.next()
        assert dict(repository.tokens) == {}
        assert PATH in caplog.text
        await other.create("/delegation_token/tokens/no.token")
        second = TOKEN._replace(token_id="second")
        await write_like_kafka(other, encode_token(second), "second")
        assert await listener.next() == "second"
        await repository.stop()

        restarted = repository_of(await stores.session(), clock)
        await restarted.start()
        assert dict(restarted.tokens) == {"second": second}
        await restarted.stop()


async def test_deleted_parents_are_restored(stores: Stores, clock: ManualClock) -> None:
    """Tokens that another program has deleted are not written again."""
    async with stores:
        repository, other = repository_of(await stores.session(), clock), await stores.session()
        await repository.start()
        await repository.change(TOKEN.token_id, lambda _: TOKEN)
        for path in (PATH, "/delegation_token/tokens"):
            await other.delete(path)
        second = TOKEN._replace(token_id="second")
        await repository.change("second", lambda _: second)
        assert await other.get_children("/delegation_token/tokens") == ["second"]
        await repository.refresh(TOKEN.token_id)
        assert dict(repository.tokens) == {"second": second}
        await repository.stop()


async def test_what_changed_between_two_sessions_is_told(stores: Stores, clock: ManualClock) -> None:
    async with stores:
        session = await stores.session()
        repository, other = repository_of(session, clock), await stores.session()
        await repository.start()
        await repository.change(TOKEN.token_id, lambda _: TOKEN)
        listener = Listener(repository)
        await session.close()
        await write_like_kafka(other, None)
        await write_like_kafka(other, encode_token(TOKEN._replace(token_id="second")), "second")
        assert list(repository.tokens) == [TOKEN.token_id]
        await repository.rejoin(await stores.session())
        assert sorted(listener.heard) == sorted([TOKEN.token_id, "second"])
        assert list(repository.tokens) == ["second"]
        await repository.stop()
