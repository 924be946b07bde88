"""What the options of `acls` and `quotas` mean."""

from __future__ import annotations

import pytest
import typer

from barnabas.broker.cli.acls import Which, Whom, planned, sentence
from barnabas.broker.cli.app import main
from barnabas.broker.cli.quotas import Whose, byte_rate
from barnabas.broker.client.acls import Acl
from barnabas.broker.client.permissions import Refusal
from barnabas.broker.client.quotas import entity_text
from barnabas.broker.security.acls.bindings import PatternType, PermissionType
from barnabas.broker.security.operations import SUPPORTED_OPERATIONS, Operation, ResourceType

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER


def plan(
    named: list[tuple[ResourceType, str]], *wanted: int, producer: bool = False, consumer: bool = False
) -> set[str]:
    found = planned(named, wanted, producer=producer, consumer=consumer)
    return {f"{Operation(code).name} {kind.name} {name}" for code, kind, name in found}


def test_an_operation_is_for_the_resources_that_have_it() -> None:
    named = Which(["t"], ["g"]).resources()
    assert plan(named, Operation.READ) == {"READ TOPIC t", "READ GROUP g"}
    assert plan(named, Operation.READ, Operation.WRITE) == {"READ TOPIC t", "READ GROUP g", "WRITE TOPIC t"}
    assert plan(Which(cluster=True).resources(), Operation.ALL) == {"ALL CLUSTER kafka-cluster"}


def test_roles() -> None:
    assert plan([(TOPIC, "t"), (GROUP, "g")], consumer=True) == {
        "READ TOPIC t", "DESCRIBE TOPIC t", "READ GROUP g", "DESCRIBE GROUP g",
    }  # fmt: skip
    assert plan([(TOPIC, "t")], producer=True) == {"WRITE TOPIC t", "DESCRIBE TOPIC t", "CREATE TOPIC t"}


@pytest.mark.parametrize(
    ("named", "wanted"),
    [
        ([(CLUSTER, "kafka-cluster")], [Operation.READ]),
        ([(TOPIC, "t"), (GROUP, "g")], [Operation.WRITE]),
        ([(TOPIC, "t")], [Operation.READ, Operation.CLUSTER_ACTION]),
    ],
)
def test_what_would_mean_nothing_is_refused(named: list[tuple[ResourceType, str]], wanted: list[int]) -> None:
    with pytest.raises(typer.BadParameter):
        planned(named, wanted, producer=False, consumer=False)


def test_principals() -> None:
    assert Whom(["alice", "User:CN=b", "CN=c,O=d"], everybody=True).principals() == [
        "User:alice",
        "User:CN=b",
        "User:CN=c,O=d",
        "User:*",
    ]


def test_rules_in_words() -> None:
    allow, deny = PermissionType.ALLOW, PermissionType.DENY
    assert sentence(Acl("User:alice", allow, Operation.READ, TOPIC, "orders", PatternType.PREFIXED)) == (
        "alice may READ topic orders..."
    )
    assert sentence(Acl("User:*", deny, Operation.ALL, TOPIC, "*", PatternType.LITERAL, "10.0.0.1")) == (
        "everybody may not ALL any topic from 10.0.0.1"
    )
    assert sentence(Acl("User:a", allow, Operation.ALTER, CLUSTER, "kafka-cluster", PatternType.LITERAL)) == (
        "a may ALTER the cluster"
    )


@pytest.mark.parametrize("resource_type", [TOPIC, GROUP, CLUSTER, ResourceType.TRANSACTIONAL_ID])
def test_the_advice_to_a_refused_client_is_a_command(
    resource_type: ResourceType, capfd: pytest.CaptureFixture[str]
) -> None:
    """Which is understood as far as the connection."""
    for operation in SUPPORTED_OPERATIONS[resource_type]:
        advice = Refusal(0, operation, resource_type, "n").advice("alice")
        command = advice.partition("`")[2].rstrip("`").split()
        assert main([*command[1:], "-b", "127.0.0.1:1"]) == 1
        assert "no broker answers" in capfd.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        "acls add --topic t --read",
        "acls add --user a --read",
        "acls add --user a --topic t",
        "acls remove",
        "quotas set --produce 5",
        "quotas set --user a",
        "quotas set --user a --user-defaults --produce 5",
        "quotas set --ip 10.0.0.1 --user a --connections 5",
        "quotas set --ip 10.0.0.1 --produce 5",
        "quotas set --user a --connections 5",
        "quotas set --user a --produce fast",
        "users add",
    ],
)
def test_wrong_usage(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(command.split()) == 2
    assert "Usage: barnabas" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"),
    [("500000", 500_000), ("500k", 500_000), ("10MB", 10_000_000), ("1.5MiB", 1_572_864), ("2 GiB", 2**31), ("7b", 7)],
)
def test_rates(text: str, expected: float) -> None:
    assert byte_rate(text) == expected


def test_entities() -> None:
    assert Whose("a", client_defaults=True).entity() == {"user": "a", "client-id": None}
    assert entity_text({"user": "a", "client-id": None}) == "user a, any client-id"
