"""The requests of delegation tokens on a listener of SASL: users of Barnabas and of Apache Kafka get equal responses.

Of times the differences are compared, in minutes; of HMACs, whether they are those of the ids. Logins with the tokens
count, too.
"""

import hmac
import socket
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

import pytest

from barnabas.broker.security.sasl import jaas
from barnabas.broker.security.sasl.mechanism import ClientMechanism
from barnabas.broker.security.sasl.plain import Client, Credentials
from barnabas.broker.security.sasl.scram import Client as ScramClient
from barnabas.clock import SystemClock
from barnabas.wire import messages
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from barnabas.wire.messages.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from barnabas.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from barnabas.wire.messages.renew_delegation_token import RenewDelegationTokenRequest
from barnabas.wire.schema import Message
from compat_tests.logins import log_in
from tools.attack.hostile import ask, connect
from tools.foreign.kafka import KafkaServer
from tools.processes.barnabas import BarnabasProcess
from tools.processes.server import free_ports
from tools.waiting import wait_until

pytestmark = [pytest.mark.java, pytest.mark.full]

SECRET_KEY: Final = "the key of all brokers"
MINUTE_MS: Final = 60_000
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
PASSWORDS: Final = {"user_alice": "a", "user_bob": "b"}
PERIODS: Final = (-(2**63), -1, 0, 30 * MINUTE_MS, 2**40)


class User(NamedTuple):
    """A connection after its login."""

    connection: socket.socket

    def ask(self, request: Message, version: int) -> Any:
        return ask(self.connection, request, version, messages.api(request.API_KEY).response_class)


class Conversation:
    """What users ask of one broker, and what it answers: `said`, in terms that both brokers can share."""

    def __init__(self, address: str, stack: ExitStack) -> None:
        self._address = address
        self._stack = stack
        self.said: list[object] = []
        self.alice = self._user(Client(Credentials("alice", "a")))
        self.bob = self._user(Client(Credentials("bob", "b")))

    def _user(self, client: ClientMechanism) -> User:
        connection = self._stack.enter_context(connect(self._address))
        assert log_in(connection, client) is ErrorCode.NONE
        return User(connection)

    def create(
        self, *renewers: str, owner: str = "", lifetime_ms: int = -1, version: int = 3, user: User | None = None
    ) -> Any:
        request = CreateDelegationTokenRequest(
            owner_principal_type="User" if owner else "",
            owner_principal_name=owner,
            renewers=[
                CreatableRenewers(principal_type=each.partition(":")[0], principal_name=each.partition(":")[2])
                for each in renewers
            ],
            max_lifetime_ms=lifetime_ms,
        )
        token = (user or self.alice).ask(request, version)
        self.said.append(
            (
                "created",
                ErrorCode(token.error_code).name,
                (token.principal_type, token.principal_name),
                (token.token_requester_principal_type, token.token_requester_principal_name),
                token.expiry_timestamp_ms - token.issue_timestamp_ms,
                token.max_timestamp_ms - token.issue_timestamp_ms,
                min(token.issue_timestamp_ms, 1),
                len(token.token_id),
                bytes(token.hmac) == (hmac_of(token.token_id) if token.token_id else b""),
            )
        )
        if token.token_id:
            self.wait_for(token.token_id, token.expiry_timestamp_ms)
        return token

    def wait_for(self, token_id: str, expiry_ms: int | None) -> None:
        """Wait until the broker has heard of the change that it has made."""

        def is_known() -> bool:
            listed = self.alice.ask(DescribeDelegationTokenRequest(owners=None), 3).tokens
            return expiry_ms == next((each.expiry_timestamp for each in listed if each.token_id == token_id), None)

        wait_until(is_known, f"the expiry of {token_id} is {expiry_ms}")

    def renew(self, user: User, token: Any, period_ms: int, version: int = 2) -> None:
        request = RenewDelegationTokenRequest(hmac=bytes(token.hmac), renew_period_ms=period_ms)
        self._moved("renewed", user.ask(request, version), token, period_ms)

    def expire(self, user: User, token: Any, period_ms: int, version: int = 2) -> None:
        request = ExpireDelegationTokenRequest(hmac=bytes(token.hmac), expiry_time_period_ms=period_ms)
        self._moved("expired", user.ask(request, version), token, period_ms)

    def _moved(self, what: str, answer: Any, token: Any, period_ms: int) -> None:
        expiry_ms = answer.expiry_timestamp_ms
        shown = expiry_ms if answer.error_code else round((expiry_ms - token.issue_timestamp_ms) / MINUTE_MS)
        self.said.append((what, period_ms, ErrorCode(answer.error_code).name, shown))
        if not answer.error_code:
            self.wait_for(token.token_id, None if what == "expired" and period_ms < 0 else expiry_ms)

    def describe(self, user: User, *owners: str, everybody: bool = False, version: int = 3) -> None:
        names = [DescribeDelegationTokenOwner(principal_type="User", principal_name=each) for each in owners]
        answer = user.ask(DescribeDelegationTokenRequest(owners=None if everybody else names), version)
        tokens = [
            (
                (each.principal_type, each.principal_name),
                (each.token_requester_principal_type, each.token_requester_principal_name),
                each.max_timestamp - each.issue_timestamp,
                [(renewer.principal_type, renewer.principal_name) for renewer in each.renewers],
                bytes(each.hmac) == hmac_of(each.token_id),
            )
            for each in answer.tokens
        ]
        self.said.append(("described", ErrorCode(answer.error_code).name, sorted(tokens)))

    def log_in(self, token: Any, mechanism: str, *, password: bytes | None = None) -> socket.socket:
        credentials = Credentials(token.token_id, b64encode(password or bytes(token.hmac)).decode())
        client = ScramClient(mechanism, credentials, lambda count: b"n" * count, is_token=True)
        connection = self._stack.enter_context(connect(self._address))
        self.said.append(("logged in", mechanism, log_in(connection, client).name))
        return connection


def hmac_of(token_id: str) -> bytes:
    return hmac.digest(SECRET_KEY.encode(), token_id.encode(), "sha512")


def have(conversation: Conversation) -> list[object]:
    """Ask everything of one broker."""
    mine, shared = create_some(conversation)
    move(conversation, mine, shared)
    let_expire(conversation)
    list_all(conversation)
    log_in_and_remove(conversation, mine, shared)
    return conversation.said


def create_some(conversation: Conversation) -> tuple[Any, Any]:
    """Tokens of alice, and at the end one that is alice's alone and one of which bob is a renewer."""
    for lifetime_ms in PERIODS:
        conversation.create(lifetime_ms=lifetime_ms)
    for version in (1, 2):
        conversation.create("User:bob", version=version)
    conversation.create("Group:bob")
    return conversation.create(), conversation.create("User:bob", "User:", owner="app")


def move(conversation: Conversation, mine: Any, shared: Any) -> None:
    alice, bob = conversation.alice, conversation.bob
    for period_ms in PERIODS:
        for user in (alice, bob):
            conversation.renew(user, mine, period_ms)
            conversation.renew(user, shared, period_ms)
    for version in (1, 2):
        conversation.renew(bob, shared, -1, version)
        conversation.expire(bob, shared, 30 * MINUTE_MS, version)
    for period_ms in (30 * MINUTE_MS, 2**40):
        for token in (mine, shared):
            conversation.expire(bob, token, period_ms)


def let_expire(conversation: Conversation) -> None:
    token = conversation.create()
    conversation.renew(conversation.alice, token, 1)
    begun_ms = SystemClock().now_ms()
    wait_until(lambda: SystemClock().now_ms() > begun_ms + 1, "the token has expired")
    for user, period_ms in (
        (conversation.bob, -1),
        (conversation.alice, 0),
        (conversation.alice, MINUTE_MS),
        (conversation.alice, -1),
    ):
        conversation.renew(user, token, period_ms)
        conversation.expire(user, token, period_ms)


def list_all(conversation: Conversation) -> None:
    for user in (conversation.alice, conversation.bob):
        for version in (1, 2, 3):
            conversation.describe(user, everybody=True, version=version)
        for owners in ((), ("alice",), ("app",), ("bob", "nobody")):
            conversation.describe(user, *owners)


def log_in_and_remove(conversation: Conversation, mine: Any, shared: Any) -> None:
    for mechanism in MECHANISMS[1:]:
        executor = User(conversation.log_in(shared, mechanism))
        conversation.create(user=executor)
        conversation.describe(executor, everybody=True)
        conversation.renew(executor, shared, -1)
        conversation.expire(executor, shared, -1)
    conversation.log_in(mine, "SCRAM-SHA-256", password=b"wrong")
    for user in (conversation.bob, conversation.alice, conversation.alice):
        conversation.expire(user, mine, -1)
    conversation.renew(conversation.alice, mine, -1)
    conversation.log_in(mine, "SCRAM-SHA-256")


def users_of(listener: str) -> dict[str, str]:
    """The keys of a listener on which users log in."""
    options = {"PLAIN": PASSWORDS}
    return {
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "delegation.token.secret.key": SECRET_KEY,
        **{
            f"listener.name.{listener}.{name.lower()}.sasl.jaas.config": jaas.LoginModule(
                jaas.LOGIN_MODULES[name], options=options.get(name, {})
            ).line()
            for name in MECHANISMS
        },
    }


@pytest.fixture
def addresses() -> Iterator[dict[str, str]]:
    """The listeners for users."""
    client_port, controller_port, users_port = free_ports(3)
    of_clients = f"PLAINTEXT://127.0.0.1:{client_port},USERS://127.0.0.1:{users_port}"
    of_kafka = {
        **users_of("users"),
        "listeners": f"{of_clients},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": of_clients,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,USERS:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
    }
    of_ours = {**users_of("plaintext"), "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT"}
    kafka = KafkaServer(overrides=of_kafka, ports=(client_port, controller_port))
    with kafka, BarnabasProcess(of_ours) as barnabas:
        yield {"kafka": f"127.0.0.1:{users_port}", "barnabas": barnabas.bootstrap_servers}


def test_the_responses_are_kafkas(addresses: dict[str, str]) -> None:
    with ExitStack() as stack:
        theirs, ours = (have(Conversation(addresses[name], stack)) for name in ("kafka", "barnabas"))
    assert len(ours) > 60
    for expected, found in zip(theirs, ours, strict=True):
        assert found == expected
