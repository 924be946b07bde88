"""Delegation tokens on a whole broker: they are issued, renewed, listed and removed, and others log in with them."""

import itertools
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.token_requests import may_ask_for_tokens
from barnabas.broker.configuration.listeners import PLAINTEXT, SASL_SSL, SSL
from barnabas.broker.network.listener import ListenerContext
from barnabas.broker.network.session import Session
from barnabas.broker.security.delegation_tokens import TokenLimits
from barnabas.broker.security.operations import Operation, ResourceType
from barnabas.broker.security.sasl.mechanism import ClientMechanism
from barnabas.broker.security.sasl.plain import Credentials
from barnabas.broker.security.sasl.scram import Client
from barnabas.broker.server import Broker
from barnabas.clock import ManualClock
from barnabas.controller.token_znodes import TOKENS, decode_token, encode_token_change, token_path
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from barnabas.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from barnabas.wire.messages.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from barnabas.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from barnabas.wire.messages.metadata import MetadataRequest
from barnabas.wire.messages.renew_delegation_token import RenewDelegationTokenRequest
from tests.broker.running import running
from tests.broker.sasl_clients import ALICE, BOB, Wire, sasl_listener, wire
from tests.support.fake_authorizer import FakeAuthorizer

SECRET_KEY: Final = "the key of all brokers"
DAY_MS: Final = 86_400_000
CONFIGS: Final = {
    **sasl_listener(),
    "delegation.token.secret.key": SECRET_KEY,
    "connection.failed.authentication.delay.ms": "0",
}
EXTREMES: Final = (-(2**63), -1, 0, 1, 2**63 - 1)

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def client_of(broker: Broker, login: ClientMechanism) -> AsyncIterator[Wire]:
    async with wire(broker) as client:
        assert (await client.log_in(login)).error_code == 0
        yield client


def token_login(token: Any, mechanism: str = "SCRAM-SHA-256") -> Client:
    """As Java's ScramLoginModule with tokenauth="true": the id, and the HMAC in base64."""
    credentials = Credentials(token.token_id, b64encode(bytes(token.hmac)).decode())
    return Client(mechanism, credentials, bytes, is_token=True)


async def create(client: Wire, *renewers: str, owner: str = "", lifetime_ms: int = -1, version: int = 3) -> Any:
    request = CreateDelegationTokenRequest(
        owner_principal_type=owner.partition(":")[0],
        owner_principal_name=owner.partition(":")[2],
        renewers=[
            CreatableRenewers(principal_type=each.partition(":")[0], principal_name=each.partition(":")[2])
            for each in renewers
        ],
        max_lifetime_ms=lifetime_ms,
    )
    return await client.ask(request, version)


async def renew(client: Wire, hmac: bytes, period_ms: int = -1) -> Any:
    return await client.ask(RenewDelegationTokenRequest(hmac=bytes(hmac), renew_period_ms=period_ms), 2)


async def expire(client: Wire, hmac: bytes, period_ms: int = -1) -> Any:
    return await client.ask(ExpireDelegationTokenRequest(hmac=bytes(hmac), expiry_time_period_ms=period_ms), 2)


async def described(client: Wire, *owners: str, everybody: bool = False) -> Any:
    names = [
        DescribeDelegationTokenOwner(principal_type=each.partition(":")[0], principal_name=each.partition(":")[2])
        for each in owners
    ]
    return await client.ask(DescribeDelegationTokenRequest(owners=None if everybody else names), 3)


async def ids(client: Wire, *owners: str, everybody: bool = False) -> set[str]:
    answer = await described(client, *owners, everybody=everybody)
    assert answer.error_code == 0
    return {token.token_id for token in answer.tokens}


def clock_of(broker: Broker) -> ManualClock:
    assert isinstance(broker.clock, ManualClock)
    return broker.clock


def authorize(broker: Broker, authorizer: FakeAuthorizer) -> None:
    """Have the authorizer decide from now on."""
    assert broker.dispatcher is not None
    broker.dispatcher._services = replace(broker.services, authorizer=authorizer)


# --- logins ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_a_token_logs_in_as_its_owner(tmp_path: Path, mechanism: str) -> None:
    async with running(tmp_path, **CONFIGS) as broker, client_of(broker, ALICE) as alice:
        token = await create(alice, "User:bob")
        assert token.error_code == 0
        for _ in range(2):
            async with client_of(broker, token_login(token, mechanism)) as executor:
                assert (await executor.ask(MetadataRequest(topics=None), 9)).brokers
        principals = [connection.session.principal for connection in broker.connections]
        assert set(principals) == {"User:alice"}


async def test_refused_logins(tmp_path: Path) -> None:
    """A wrong HMAC, an unknown token, a user's name as a token, and a token as a user."""
    async with running(tmp_path, **CONFIGS) as broker, client_of(broker, ALICE) as alice:
        token = await create(alice)
        password = b64encode(bytes(token.hmac)).decode()
        for login in (
            Client("SCRAM-SHA-256", Credentials(token.token_id, "wrong"), bytes, is_token=True),
            Client("SCRAM-SHA-256", Credentials("unknown", password), bytes, is_token=True),
            Client("SCRAM-SHA-256", Credentials("alice", password), bytes, is_token=True),
            Client("SCRAM-SHA-256", Credentials(token.token_id, password), bytes),
        ):
            async with wire(broker) as client:
                assert (await client.log_in(login)).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


async def test_a_session_ends_with_its_token(tmp_path: Path) -> None:
    """It is not prolonged by a renewal; a removed or expired token does not log in."""
    async with running(tmp_path, **CONFIGS) as broker, client_of(broker, ALICE) as alice:
        token = await create(alice, lifetime_ms=60_000)
        async with wire(broker) as executor:
            answer = await executor.log_in(token_login(token))
            assert (answer.error_code, answer.session_lifetime_ms) == (0, 60_000)
            clock_of(broker).advance(60_000)
            assert (await executor.ask(MetadataRequest(topics=[]), 9)).brokers
            clock_of(broker).advance(1)
            executor.send(MetadataRequest(topics=[]), 9)
            assert await executor.is_closed()
        async with wire(broker) as late:
            assert (await late.log_in(token_login(token))).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        other = await create(alice)
        assert (await expire(alice, other.hmac)).error_code == 0
        async with wire(broker) as late:
            assert (await late.log_in(token_login(other))).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


async def test_a_renewed_token_prolongs_a_session(tmp_path: Path) -> None:
    """When the client authenticates again (KIP-368)."""
    async with running(tmp_path, **CONFIGS) as broker, client_of(broker, ALICE) as alice:
        token = await create(alice)
        await expire(alice, token.hmac, 60_000)
        async with wire(broker) as executor:
            assert (await executor.log_in(token_login(token))).session_lifetime_ms == 60_000
            await renew(alice, token.hmac)
            assert (await executor.log_in(token_login(token))).session_lifetime_ms == DAY_MS
            clock_of(broker).advance(60_001)
            assert (await executor.ask(MetadataRequest(topics=[]), 9)).brokers


async def test_a_session_of_a_token_may_not_ask_for_tokens(tmp_path: Path) -> None:
    async with running(tmp_path, **CONFIGS) as broker, client_of(broker, ALICE) as alice:
        token = await create(alice)
        async with client_of(broker, token_login(token)) as executor:
            answers = [
                await create(executor),
                await renew(executor, token.hmac),
                await expire(executor, token.hmac),
                await described(executor, everybody=True),
            ]
        assert {answer.error_code for answer in answers} == {ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED}
        assert [answers[0].issue_timestamp_ms, answers[0].expiry_timestamp_ms, answers[0].max_timestamp_ms] == [-1] * 3
        assert (answers[0].principal_name, answers[0].hmac) == ("alice", b"")
        assert answers[1].expiry_timestamp_ms == answers[2].expiry_timestamp_ms == -1
        assert answers[3].tokens == []


@pytest.mark.parametrize(
    ("protocol", "principal", "is_allowed"),
    [
        (PLAINTEXT, "User:ANONYMOUS", False),
        (PLAINTEXT, "User:alice", False),
        (SSL, "User:ANONYMOUS", False),
        (SSL, "User:CN=alice", True),
        (SASL_SSL, "User:alice", True),
    ],
)
def test_connections_over_which_tokens_are_issued(protocol: str, principal: str, is_allowed: bool) -> None:
    session = Session(None, ListenerContext("CLIENTS", protocol), 1, principal=principal)
    services: Any = None
    assert may_ask_for_tokens(RequestContext(services, session, 38, 3, 1, None)) is is_allowed


# --- requests -------------------------------------------------------------------------------------


async def test_create(tmp_path: Path) -> None:
    """The response, and the znode without the HMAC."""
    async with running(tmp_path, **CONFIGS) as broker, client_of(broker, ALICE) as alice:
        now_ms = broker.clock.now_ms()
        token = await create(alice, "User:bob", "User:carol", owner="User:app", lifetime_ms=2 * DAY_MS)
        assert token.error_code == 0
        assert (token.principal_type, token.principal_name) == ("User", "app")
        assert (token.token_requester_principal_type, token.token_requester_principal_name) == ("User", "alice")
        assert token.issue_timestamp_ms == now_ms
        assert token.expiry_timestamp_ms == now_ms + DAY_MS
        assert token.max_timestamp_ms == now_ms + 2 * DAY_MS
        assert (len(token.token_id), len(token.hmac)) == (22, 64)
        payload, _ = await broker._session.get(token_path(token.token_id))
        stored = decode_token(token.token_id, payload)
        assert (stored.owner, stored.requester, stored.renewers) == (
            "User:app",
            "User:alice",
            ("User:bob", "User:carol"),
        )
        assert b64encode(bytes(token.hmac)) not in payload
        default = CreateDelegationTokenRequest(owner_principal_type=None, owner_principal_name=None)
        assert (await alice.ask(default, 3)).principal_name == "alice"
        other = await create(alice, version=1)
        assert other.max_timestamp_ms == now_ms + 7 * DAY_MS
        assert other.token_id != token.token_id
        before = await alice.ask(DescribeDelegationTokenRequest(owners=None), 1)
        assert {each.token_requester_principal_name for each in before.tokens} == {""}


async def test_renew_and_expire(tmp_path: Path) -> None:
    async with (
        running(tmp_path, **CONFIGS) as broker,
        client_of(broker, ALICE) as alice,
        client_of(broker, BOB) as bob,
    ):
        mine, shared = await create(alice), await create(alice, "User:bob")
        clock_of(broker).advance(1_000)
        now_ms = broker.clock.now_ms()
        assert (await renew(alice, mine.hmac)).expiry_timestamp_ms == now_ms + DAY_MS
        assert (await renew(bob, shared.hmac, 5_000)).expiry_timestamp_ms == now_ms + 5_000
        assert (await expire(bob, shared.hmac, 9_000)).expiry_timestamp_ms == now_ms + 9_000
        for ask, hmac, error in (
            (renew, mine.hmac, ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH),
            (expire, mine.hmac, ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH),
            (renew, b"unknown", ErrorCode.DELEGATION_TOKEN_NOT_FOUND),
            (expire, b"", ErrorCode.DELEGATION_TOKEN_NOT_FOUND),
        ):
            answer = await ask(bob, hmac)
            assert (answer.error_code, answer.expiry_timestamp_ms) == (error, 0)
        removed = await expire(alice, mine.hmac)
        assert (removed.error_code, removed.expiry_timestamp_ms) == (0, now_ms)
        assert (await renew(alice, mine.hmac)).error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
        assert await ids(alice, everybody=True) == {shared.token_id}
        assert await broker._session.get_children(TOKENS) == [shared.token_id]


async def test_describe(tmp_path: Path) -> None:
    async with (
        running(tmp_path, **CONFIGS) as broker,
        client_of(broker, ALICE) as alice,
        client_of(broker, BOB) as bob,
    ):
        authorize(broker, FakeAuthorizer({(Operation.CREATE_TOKENS, ResourceType.USER, "User:app")}))
        mine, shared = await create(alice, lifetime_ms=5), await create(alice, "User:bob", owner="User:app")
        [token] = (await described(bob, everybody=True)).tokens
        assert (token.token_id, token.hmac) == (shared.token_id, shared.hmac)
        assert (token.principal_name, token.token_requester_principal_name) == ("app", "alice")
        assert [(each.principal_type, each.principal_name) for each in token.renewers] == [("User", "bob")]
        assert (token.issue_timestamp, token.expiry_timestamp, token.max_timestamp) == (
            shared.issue_timestamp_ms,
            shared.expiry_timestamp_ms,
            shared.max_timestamp_ms,
        )
        assert await ids(alice, everybody=True) == {mine.token_id, shared.token_id}
        assert await ids(alice, "User:app") == await ids(alice, "User:bob") == {shared.token_id}
        assert await ids(alice, "User:alice") == {mine.token_id, shared.token_id}
        assert await ids(alice) == await ids(alice, "Group:alice") == set()


@pytest.mark.parametrize(
    "allowed",
    [
        (Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, ""),
        (Operation.DESCRIBE_TOKENS, ResourceType.USER, "User:alice"),
    ],
)
async def test_tokens_of_others_need_a_permission(tmp_path: Path, allowed: Any) -> None:
    async with (
        running(tmp_path, **CONFIGS) as broker,
        client_of(broker, ALICE) as alice,
        client_of(broker, BOB) as bob,
    ):
        token = await create(alice)
        authorize(broker, FakeAuthorizer())
        assert await ids(bob, everybody=True) == set()
        operation, resource_type, name = allowed
        authorize(broker, FakeAuthorizer({(operation, resource_type, name or token.token_id)}))
        assert await ids(bob, everybody=True) == await ids(bob, "User:alice") == {token.token_id}
        assert await ids(bob, "User:bob") == set()


async def test_a_token_for_another_user_needs_a_permission(tmp_path: Path) -> None:
    async with running(tmp_path, **CONFIGS) as broker, client_of(broker, ALICE) as alice:
        authorize(broker, FakeAuthorizer())
        assert (await create(alice)).error_code == 0
        assert (await create(alice, owner="User:alice")).error_code == 0
        refused = await create(alice, "Group:bob", owner="User:app")
        assert refused.error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
        assert (refused.principal_name, refused.max_timestamp_ms, refused.token_id) == ("app", -1, "")
        authorize(broker, FakeAuthorizer({(Operation.CREATE_TOKENS, ResourceType.USER, "User:app")}))
        assert (await create(alice, owner="User:app")).error_code == 0


async def test_principals_of_other_types(tmp_path: Path) -> None:
    """As a renewer, and as an owner whose token would log in as the user of that name."""
    async with running(tmp_path, **CONFIGS) as broker, client_of(broker, ALICE) as alice:
        assert (await create(alice, "User:bob", "Group:bob")).error_code == ErrorCode.INVALID_PRINCIPAL_TYPE
        assert (await create(alice, owner="Group:admin")).error_code == ErrorCode.INVALID_PRINCIPAL_TYPE


async def test_without_a_secret_key(tmp_path: Path) -> None:
    async with running(tmp_path, **sasl_listener()) as broker, client_of(broker, ALICE) as alice:
        answers = [
            await create(alice, owner="User:app"),
            await renew(alice, b"hmac"),
            await expire(alice, b"hmac"),
            await described(alice, everybody=True),
        ]
        assert {answer.error_code for answer in answers} == {ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED}
        assert (answers[0].principal_name, answers[0].max_timestamp_ms) == ("app", 0)
        assert await broker._session.exists("/delegation_token") is None


async def test_the_former_name_of_the_secret_key(tmp_path: Path) -> None:
    keys = {**sasl_listener(), "delegation.token.master.key": SECRET_KEY}
    async with running(tmp_path, **keys) as broker, client_of(broker, ALICE) as alice:
        token = await create(alice)
        async with client_of(broker, token_login(token)):
            pass


async def test_numbers_at_their_extremes(tmp_path: Path) -> None:
    async with running(tmp_path, **CONFIGS) as broker, client_of(broker, ALICE) as alice:
        for lifetime_ms, period_ms in itertools.product(EXTREMES, EXTREMES):
            token = await create(alice, lifetime_ms=lifetime_ms)
            codes = {
                token.error_code,
                (await renew(alice, token.hmac, period_ms)).error_code,
                (await expire(alice, token.hmac, period_ms)).error_code,
            }
            assert codes == {ErrorCode.NONE}


async def test_limits(tmp_path: Path) -> None:
    """Of tokens in all, of one owner, of the principals of one, and of all znodes."""
    async with running(tmp_path, **CONFIGS) as broker, client_of(broker, ALICE) as alice:
        tokens = broker.services.tokens
        assert tokens is not None

        async def created(owner: str, limits: TokenLimits, *renewers: str) -> int:
            tokens._limits = limits
            return int((await create(alice, *renewers, owner=owner)).error_code)

        refused = ErrorCode.POLICY_VIOLATION
        assert await created("User:a", TokenLimits(tokens_of_owner=1)) == 0
        assert await created("User:a", TokenLimits(tokens_of_owner=1)) == refused
        assert await created("User:b", TokenLimits(tokens_of_owner=1)) == 0
        assert await created("User:c", TokenLimits(tokens=2)) == refused
        assert await created("User:c", TokenLimits(bytes=500)) == refused
        assert await created("User:c", TokenLimits(), "User:" + "x" * 9_000) == refused
        for token in (await described(alice, "User:a")).tokens:
            tokens._limits = TokenLimits()
            assert (await renew(alice, token.hmac)).error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
            assert await tokens.expire("User:a", bytes(token.hmac), -1)
        assert await created("User:c", TokenLimits(tokens=2)) == 0


# --- what happens to them -------------------------------------------------------------------------


async def test_expired_tokens_are_removed(tmp_path: Path) -> None:
    """By the controller, at `delegation.token.expiry.check.interval.ms`."""
    keys = {**CONFIGS, "delegation.token.expiry.check.interval.ms": "60000"}
    async with running(tmp_path, **keys) as broker, client_of(broker, ALICE) as alice:
        short, long = await create(alice, lifetime_ms=1_000), await create(alice)
        clock_of(broker).advance(59_000)
        await broker.settle()
        assert await ids(alice, everybody=True) == {short.token_id, long.token_id}
        clock_of(broker).advance(1_000)
        await broker.settle()
        assert await ids(alice, everybody=True) == {long.token_id}
        assert await broker._session.get_children(TOKENS) == [long.token_id]


async def test_tokens_outlive_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path, **CONFIGS) as broker, client_of(broker, ALICE) as alice:
        token = await create(alice)
    async with running(tmp_path, **CONFIGS) as broker, client_of(broker, token_login(token)):
        pass
    async with running(tmp_path, **CONFIGS, delegation_token_secret_key="another") as broker, wire(broker) as client:
        assert (await client.log_in(token_login(token))).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


async def test_a_token_that_another_broker_has_removed(tmp_path: Path) -> None:
    """A renewal finds it gone before the notification comes."""
    async with running(tmp_path, **CONFIGS) as broker, client_of(broker, ALICE) as alice:
        token = await create(alice)
        await broker._session.delete(token_path(token.token_id))
        assert (await renew(alice, token.hmac)).error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
        assert encode_token_change(token.token_id) == token.token_id.encode()


async def test_the_secret_key_is_not_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    async with running(tmp_path, **CONFIGS) as broker, client_of(broker, ALICE) as alice:
        token = await create(alice)
        async with client_of(broker, token_login(token)):
            pass
        resource = DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None)
        answer = await alice.ask(DescribeConfigsRequest(resources=[resource]), 4)
        [shown] = [each for each in answer.results[0].configs if each.name == "delegation.token.secret.key"]
        assert (shown.value, shown.is_sensitive) == (None, True)
    for secret in (SECRET_KEY, b64encode(bytes(token.hmac)).decode(), bytes(token.hmac).hex()):
        assert secret not in caplog.text
