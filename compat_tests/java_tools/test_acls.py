"""kafka-acls: ACLs added, listed and removed; `--producer` and `--consumer` add several at once."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from compat_tests.java_tools.kafka_tools import Tools

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
ENTRY = re.compile(r"principal=([^,]+), host=([^,]+), operation=([^,]+), permissionType=(\w+)")
RESOURCE = re.compile(r"resourceType=(\w+), name=([^,]+), patternType=(\w+)")

Acls = dict[tuple[str, str, str], set[tuple[str, ...]]]
"""By resource type, name and pattern type: principal, host, operation, permission."""


@pytest.fixture
def acls(start_cluster: Callable[..., Any], tools_for: Callable[[Any], Tools]) -> Tools:
    """The tools aimed at a broker with an authorizer and without ACLs."""
    return tools_for(start_cluster(AUTHORIZER))


def listed(tools: Tools, *arguments: str) -> Acls:
    """What kafka-acls --list prints."""
    found: Acls = {}
    entries: set[tuple[str, ...]] = set()
    for line in tools.run("kafka-acls", "--list", *arguments).lines:
        if (resource := RESOURCE.search(line)) is not None:
            entries = found.setdefault((resource[1], resource[2], resource[3]), set())
        elif (entry := ENTRY.search(line)) is not None:
            entries.add(entry.groups())
    return found


def test_an_acl_comes_and_goes(acls: Tools) -> None:
    alice = ("--allow-principal", "User:alice", "--operation", "Read", "--operation", "Describe", "--topic", "t")
    acls.run("kafka-acls", "--add", *alice)
    acls.run("kafka-acls", "--add", "--deny-principal", "User:bob", "--deny-host", "10.0.0.1", "--topic", "t")
    topic = ("TOPIC", "t", "LITERAL")
    allowed = {("User:alice", "*", "READ", "ALLOW"), ("User:alice", "*", "DESCRIBE", "ALLOW")}
    denied = {("User:bob", "10.0.0.1", "ALL", "DENY")}
    assert listed(acls) == {topic: allowed | denied}
    assert listed(acls, "--topic", "t", "--principal", "User:bob") == {topic: denied}
    acls.run("kafka-acls", "--remove", "--force", *alice)
    assert listed(acls) == {topic: denied}
    acls.run("kafka-acls", "--remove", "--force", "--topic", "t")
    assert listed(acls) == {}


def test_acls_of_prefixes(acls: Tools) -> None:
    added = ("--allow-principal", "User:alice", "--operation", "Write", "--resource-pattern-type", "prefixed")
    acls.run("kafka-acls", "--add", *added, "--topic", "app-", "--transactional-id", "app-")
    entry = {("User:alice", "*", "WRITE", "ALLOW")}
    assert listed(acls) == {
        ("TOPIC", "app-", "PREFIXED"): entry,
        ("TRANSACTIONAL_ID", "app-", "PREFIXED"): entry,
    }
    assert listed(acls, "--topic", "app-1") == {}
    matching = listed(acls, "--topic", "app-1", "--resource-pattern-type", "match")
    assert matching == {("TOPIC", "app-", "PREFIXED"): entry}


def test_conveniences_for_producers_and_consumers(acls: Tools) -> None:
    acls.run("kafka-acls", "--add", "--allow-principal", "User:p", "--producer", "--topic", "t", "--idempotent")
    acls.run("kafka-acls", "--add", "--allow-principal", "User:c", "--consumer", "--topic", "t", "--group", "g")
    producer = {("User:p", "*", operation, "ALLOW") for operation in ("WRITE", "DESCRIBE", "CREATE")}
    consumer = {("User:c", "*", operation, "ALLOW") for operation in ("READ", "DESCRIBE")}
    assert listed(acls) == {
        ("TOPIC", "t", "LITERAL"): producer | consumer,
        ("GROUP", "g", "LITERAL"): {("User:c", "*", "READ", "ALLOW")},
        ("CLUSTER", "kafka-cluster", "LITERAL"): {("User:p", "*", "IDEMPOTENT_WRITE", "ALLOW")},
    }
    acls.run("kafka-acls", "--remove", "--force", "--allow-principal", "User:p", "--producer", "--topic", "t")
    assert listed(acls, "--topic", "t") == {("TOPIC", "t", "LITERAL"): consumer}


def test_without_an_authorizer_there_are_no_acls(tools: Tools) -> None:
    added = ("--allow-principal", "User:x", "--operation", "Read", "--topic", "t")
    for arguments in (("--list",), ("--add", *added), ("--remove", "--force", *added)):
        done = tools.attempt("kafka-acls", *arguments)
        assert "SecurityDisabledException: No Authorizer is configured" in done.out + done.err
