"""kafka-delegation-tokens on a listener of SASL, and the console tools that log in with a token."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.security.sasl import jaas
from compat_tests.java_tools.kafka_tools import PATIENCE_MS, Tools

pytestmark = [pytest.mark.java, pytest.mark.slow]

TOOL = "kafka-delegation-tokens"
NOT_OVER_PLAINTEXT = "UnsupportedByAuthenticationException"
FIELDS = ("TOKENID", "HMAC", "OWNER", "REQUESTER", "RENEWERS", "ISSUEDATE", "EXPIRYDATE", "MAXDATE")
CREDENTIALS = {
    "username": "carol",
    "password": "c-secret",
    "user_alice": "a-secret",
    "user_bob": "b-secret",
    "user_carol": "c-secret",
}
CONFIGS = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.plaintext.plain.sasl.jaas.config": jaas.LoginModule(
        jaas.PLAIN_LOGIN_MODULE, options=CREDENTIALS
    ).line(),
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "delegation.token.secret.key": "the key of all brokers",
}


@pytest.fixture
def login(tmp_path: Path) -> Callable[..., Path]:
    """Writes the properties of a client."""

    def write(mechanism: str, username: str, password: str, **options: str) -> Path:
        credentials = {"username": username, "password": password, **options}
        line = jaas.LoginModule(jaas.LOGIN_MODULES[mechanism], options=credentials).line()
        path = tmp_path / f"{mechanism}-{username}"
        path.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\nsasl.jaas.config={line}\n")
        return path

    return write


def tokens(tools: Tools, *arguments: object) -> list[dict[str, str]]:
    """The tokens that the tool prints."""
    rows = [line.split() for line in tools.run(TOOL, *arguments).out.splitlines()]
    return [
        dict(zip(FIELDS, row, strict=True)) for row in rows if len(row) == len(FIELDS) and row[2].startswith("User:")
    ]


def test_a_token_from_its_creation_to_its_end(
    tools_for: Any, start_cluster: Any, topic_name: str, login: Callable[..., Path]
) -> None:
    """Alice gets one, a producer and a consumer log in with it, bob renews it, and carol sees nothing of it."""
    tools = tools_for(start_cluster(CONFIGS))
    alice, bob = login("PLAIN", "alice", "a-secret"), login("PLAIN", "bob", "b-secret")
    as_alice, as_bob = ("--command-config", alice), ("--command-config", bob)
    [token] = tokens(tools, "--create", "--max-life-time-period", -1, "--renewer-principal", "User:bob", *as_alice)
    assert (token["OWNER"], token["REQUESTER"], token["RENEWERS"]) == ("User:alice", "User:alice", "[User:bob]")
    assert len(base64.b64decode(token["HMAC"])) == 64

    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        executor = login(mechanism, token["TOKENID"], token["HMAC"], tokenauth="true")
        tools.run("kafka-console-producer", "--topic", topic_name, "--producer.config", executor, stdin="one\n")
        read = tools.run(
            "kafka-console-consumer", "--topic", topic_name, "--from-beginning", "--max-messages", 1,
            "--timeout-ms", PATIENCE_MS, "--consumer.config", executor,
        )  # fmt: skip
        assert read.out.splitlines()[-1] == "one"
    refused = tools.attempt(TOOL, "--describe", "--command-config", executor)
    assert NOT_OVER_PLAINTEXT in refused.out + refused.err, "a token gets no tokens"

    of_alice = ("--describe", "--owner-principal", "User:alice")
    assert tokens(tools, *of_alice, *as_bob) == tokens(tools, *of_alice, *as_alice) == [token]
    assert tokens(tools, "--describe", "--owner-principal", "User:carol", *as_alice) == []
    hmac = ("--hmac", token["HMAC"])
    tools.run(TOOL, "--renew", "--renew-time-period", 60_000, *hmac, *as_bob)
    [renewed] = tokens(tools, *of_alice, *as_bob)
    assert renewed["EXPIRYDATE"] < token["EXPIRYDATE"]
    carol = login("PLAIN", "carol", "c-secret")
    refused = tools.attempt(TOOL, "--expire", "--expiry-time-period", -1, *hmac, "--command-config", carol)
    assert "DelegationTokenOwnerMismatchException" in refused.out + refused.err
    tools.run(TOOL, "--expire", "--expiry-time-period", -1, *hmac, *as_alice)
    assert tokens(tools, *of_alice, *as_alice) == []
    refused = tools.attempt(TOOL, "--renew", "--renew-time-period", -1, *hmac, *as_alice)
    assert "DelegationTokenNotFoundException" in refused.out + refused.err
    refused = tools.attempt("kafka-topics", "--list", "--command-config", executor)
    assert "SaslAuthenticationException" in refused.out + refused.err


def test_a_token_for_another_user(tools_for: Any, start_cluster: Any, login: Callable[..., Path]) -> None:
    """An ACL allows alice to get one, and bob to see it."""
    authorized = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:carol",
    }
    tools = tools_for(start_cluster({**CONFIGS, **authorized}))
    users = {"alice": "a-secret", "bob": "b-secret", "carol": "c-secret"}
    alice, bob, carol = (("--command-config", login("PLAIN", *user)) for user in users.items())
    create = (TOOL, "--create", "--max-life-time-period", -1, "--owner-principal", "User:app")
    refused = tools.attempt(*create, *alice)
    assert "DelegationTokenAuthorizationException" in refused.out + refused.err
    for user, operation in (("alice", "CreateTokens"), ("bob", "DescribeTokens")):
        tools.run(
            "kafka-acls", "--add", "--allow-principal", f"User:{user}", "--operation", operation,
            "--user-principal", "User:app", *carol,
        )  # fmt: skip
    [token] = tokens(tools, *create[1:], *alice)
    assert (token["OWNER"], token["REQUESTER"]) == ("User:app", "User:alice")
    assert tokens(tools, "--describe", "--owner-principal", "User:app", *bob) == [token]


@pytest.mark.parametrize("arguments", [["--describe"], ["--create", "--max-life-time-period", "-1"]])
def test_there_are_no_tokens_over_plaintext(tools: Any, tmp_path: Path, arguments: list[str]) -> None:
    empty = tmp_path / "empty.properties"
    empty.touch()
    done = tools.attempt(TOOL, *arguments, "--command-config", empty)
    assert done.status != 0
    assert NOT_OVER_PLAINTEXT in done.out + done.err
