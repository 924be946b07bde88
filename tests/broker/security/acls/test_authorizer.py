"""The authorizer: super users, remembered decisions, and what one costs."""

import logging
import sys
from collections.abc import Callable
from types import FrameType, SimpleNamespace
from typing import Any, cast

import pytest

from barnabas.broker.api.context import RequestContext
from barnabas.broker.network.listener import ListenerContext
from barnabas.broker.network.session import Session
from barnabas.broker.security.acls.authorizer import (
    DECISIONS_MAX,
    REMEMBERED_LENGTH_MAX,
    AclAuthorizer,
    super_users_in,
)
from barnabas.broker.security.operations import Operation, ResourceType
from barnabas.broker.services import Services
from barnabas.controller.acl_znodes import ALLOW, DENY, LITERAL, PREFIXED, AclResource, StoredAcl

ALICE, HOST = "User:alice", "127.0.0.1"
TOPIC = AclResource("Topic", LITERAL, "t")
READ = StoredAcl(ALICE, ALLOW, "Read", "*")


def reads(authorizer: AclAuthorizer, name: str = "t", principal: str = ALICE) -> bool:
    return authorizer.authorize(principal, HOST, Operation.READ, ResourceType.TOPIC, name)


def reads_some(authorizer: AclAuthorizer) -> bool:
    return authorizer.authorize_by_resource_type(ALICE, HOST, Operation.READ, ResourceType.TOPIC)


def calls(function: Callable[[], Any]) -> int:
    """The number of calls of Python functions inside `function`."""
    counted = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal counted
        counted += event == "call"

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return counted - 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", set()),
        ("User:a", {"User:a"}),
        (" User:a ;;User:CN=b,O=c; ", {"User:a", "User:CN=b,O=c"}),
        ("Group:x:y", {"Group:x:y"}),
    ],
)
def test_super_users_are_listed_with_semicolons(text: str, expected: set[str]) -> None:
    assert super_users_in(text) == expected
    with pytest.raises(ValueError, match="admin"):
        super_users_in(f"{text};admin")


def test_a_super_user_may_do_everything() -> None:
    authorizer = AclAuthorizer([ALICE])
    authorizer.replace(AclResource("Topic", LITERAL, "*"), frozenset({StoredAcl("User:*", DENY, "All", "*")}))
    assert reads(authorizer)
    assert reads_some(authorizer)
    assert not reads(authorizer, principal="User:bob")


def test_a_change_of_acls_changes_decisions() -> None:
    authorizer = AclAuthorizer()
    for _ in range(2):
        assert not reads(authorizer)
        assert not reads_some(authorizer)
        authorizer.replace(TOPIC, frozenset({READ}))
        assert reads(authorizer)
        assert reads_some(authorizer)
        authorizer.replace(TOPIC, frozenset())


def test_a_remembered_decision_costs_one_call() -> None:
    authorizer = AclAuthorizer()
    authorizer.replace(TOPIC, frozenset({READ}))
    for function in (lambda: reads(authorizer), lambda: reads_some(authorizer)):
        function()
        assert calls(function) == 2, "reads and authorize"


def test_a_handler_asks_with_one_call_more() -> None:
    authorizer = AclAuthorizer()
    authorizer.replace(TOPIC, frozenset({READ}))
    session = Session(None, ListenerContext("PLAINTEXT"), 1, client_host=HOST, principal=ALICE)
    services = cast("Services", SimpleNamespace(authorizer=authorizer))
    context = RequestContext(services, session, 0, 9, 1, None)

    def ask() -> bool:
        return context.authorize(Operation.READ, ResourceType.TOPIC, "t")

    assert ask()
    assert calls(ask) == 2, "authorize of the context and of the authorizer"


def test_a_decision_costs_as_much_beside_thousands_of_acls() -> None:
    """Of prefixes, and of other principals on the same resource."""
    few, many = AclAuthorizer(), AclAuthorizer()
    for authorizer, count in ((few, 10), (many, 5_000)):
        for number in range(count):
            authorizer.replace(AclResource("Topic", PREFIXED, f"app-{number:04}-"), frozenset({READ}))
        others = {READ._replace(principal=f"User:{number}") for number in range(count)}
        authorizer.replace(AclResource("Topic", LITERAL, "*"), frozenset(others))
    assert reads(many, "app-0007-x")
    assert not reads(many, "app-0007")
    assert calls(lambda: reads(many, "app-0003-y")) == calls(lambda: reads(few, "app-0003-y")) < 20


def test_so_many_decisions_are_remembered() -> None:
    authorizer = AclAuthorizer()
    authorizer.replace(TOPIC, frozenset({READ}))
    for number in range(DECISIONS_MAX + 100):
        assert not reads(authorizer, f"other-{number}")
    assert len(authorizer._decisions) == 100
    authorizer._decisions.clear()
    assert not reads(authorizer, "n" * REMEMBERED_LENGTH_MAX)
    assert authorizer._decisions == {}


def test_decisions_are_logged_when_they_are_made(caplog: pytest.LogCaptureFixture) -> None:
    authorizer = AclAuthorizer()
    with caplog.at_level(logging.DEBUG, "kafka.authorizer.logger"):
        for _ in range(2):
            reads(authorizer, "t\n2026 forged")
            reads_some(authorizer)
    assert caplog.messages == [
        "principal User:alice from host 127.0.0.1 is denied Read on Topic 't\\n2026 forged'",
        "principal User:alice from host 127.0.0.1 is denied Read on some Topic",
    ]
