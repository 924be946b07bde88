"""The znodes of delegation tokens: ours beside those of Kafka 3.9.1, and tokens that go from one to the other."""

import hmac
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pytest

from barnabas.broker.security.sasl import jaas
from barnabas.broker.security.sasl.plain import Client, Credentials
from barnabas.broker.security.sasl.scram import Client as ScramClient
from barnabas.clock import SystemClock
from barnabas.controller.token_znodes import (
    TOKEN_CHANGE_PREFIX,
    TOKEN_CHANGES,
    TOKENS,
    DelegationToken,
    decode_token,
    encode_token,
    encode_token_change,
    token_path,
)
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_delegation_token import CreateDelegationTokenRequest, CreateDelegationTokenResponse
from compat_tests.logins import log_in
from compat_tests.zookeeper.conftest import KafkaClasses, broker_on
from tools.attack.hostile import ask, connect
from tools.processes.barnabas import BarnabasProcess
from tools.waiting import wait_until

pytestmark = pytest.mark.java

SECRET_KEY = "the key of all brokers, é"
NOW_MS = SystemClock().now_ms()
TOKENS_OF_ALL_KINDS = [
    DelegationToken("Xk3mGZ0jQ-2aWc_9sVbN4g", "User:a", "User:a", (), NOW_MS, NOW_MS + 7, NOW_MS + 3),
    DelegationToken("_", "User:al/ice é", "User:b:c", ("User:c", "User:CN=d,O=e f*~"), 0, 2**63 - 1, 1),
]


def their_information(kafka: KafkaClasses, token: DelegationToken) -> Any:
    """A token as Kafka's TokenInformation."""

    def principal(text: str) -> Any:
        kind, _, name = text.partition(":")
        return kafka.java.org.apache.kafka.common.security.auth.KafkaPrincipal(kind, name)

    renewers = kafka.java.java.util.ArrayList()
    for renewer in token.renewers:
        renewers.add(principal(renewer))
    return kafka.java.org.apache.kafka.common.security.token.delegation.TokenInformation(
        token.token_id,
        principal(token.owner),
        principal(token.requester),
        renewers,
        token.issue_timestamp_ms,
        token.max_timestamp_ms,
        token.expiry_timestamp_ms,
    )


@pytest.mark.parametrize("token", TOKENS_OF_ALL_KINDS)
def test_paths_payloads_and_hmacs(kafka: KafkaClasses, token: DelegationToken) -> None:
    zk, information = kafka.java.kafka.zk, their_information(kafka, token)
    assert zk.DelegationTokensZNode.path() == TOKENS
    assert zk.DelegationTokenInfoZNode.path(token.token_id) == token_path(token.token_id)
    changes = zk.DelegationTokenChangeNotificationSequenceZNode
    assert changes.createPath() == f"{TOKEN_CHANGES}/{TOKEN_CHANGE_PREFIX}"
    assert bytes(changes.encode(token.token_id)) == encode_token_change(token.token_id)
    payload = bytes(zk.DelegationTokenInfoZNode.encode(information))
    assert encode_token(token) == payload
    assert decode_token(token.token_id, payload) == token
    assert zk.DelegationTokenInfoZNode.decode(encode_token(token)).get().equals(information)
    theirs = kafka.java.kafka.server.DelegationTokenManager.createHmac(token.token_id, SECRET_KEY)
    assert bytes(theirs) == hmac_of(token.token_id)


def hmac_of(token_id: str) -> bytes:
    return hmac.digest(SECRET_KEY.encode(), token_id.encode(), "sha512")


@pytest.fixture
def secured(zookeeper: Any, kafka: KafkaClasses) -> Iterator[BarnabasProcess]:
    """A broker on the tree of Kafka's classes."""
    settings = {
        "broker.id": "7",
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.plaintext.plain.sasl.jaas.config": jaas.LoginModule(
            jaas.PLAIN_LOGIN_MODULE, options={"username": "alice", "password": "a", "user_alice": "a"}
        ).line(),
        "delegation.token.secret.key": SECRET_KEY,
    }
    with broker_on(zookeeper, "/tokens", **settings) as process:
        yield process


def result_of_login(address: str, token_id: str) -> ErrorCode:
    credentials = Credentials(token_id, b64encode(hmac_of(token_id)).decode())
    with connect(address) as connection:
        return log_in(connection, ScramClient("SCRAM-SHA-256", credentials, bytes, is_token=True))


def test_tokens_go_from_one_to_the_other(zookeeper: Any, kafka: KafkaClasses, secured: BarnabasProcess) -> None:
    address = secured.bootstrap_servers
    tree = KafkaClasses(kafka.jvm, f"{zookeeper.address}/tokens").zk
    theirs = DelegationToken("theirs", "User:bob", "User:bob", (), NOW_MS, NOW_MS + 2**40, NOW_MS + 2**40)
    token_of_kafka = kafka.java.org.apache.kafka.common.security.token.delegation.DelegationToken
    tree.setOrCreateDelegationToken(token_of_kafka(their_information(kafka, theirs), hmac_of("theirs")))
    tree.createTokenChangeNotification("theirs")
    wait_until(lambda: result_of_login(address, "theirs") is ErrorCode.NONE, "the token is heard of")
    tree.deleteDelegationToken("theirs")
    tree.createTokenChangeNotification("theirs")
    wait_until(lambda: result_of_login(address, "theirs") is ErrorCode.SASL_AUTHENTICATION_FAILED, "it is removed")

    with connect(address) as connection:
        assert log_in(connection, Client(Credentials("alice", "a"))) is ErrorCode.NONE
        request = CreateDelegationTokenRequest(max_lifetime_ms=-1)
        ours = ask(connection, request, 3, CreateDelegationTokenResponse)
    found = tree.getDelegationTokenInfo(ours.token_id).get()
    assert (found.ownerAsString(), found.expiryTimestamp()) == ("User:alice", ours.expiry_timestamp_ms)
    assert bytes(ours.hmac) == hmac_of(ours.token_id)
    tree.close()
