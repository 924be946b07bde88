"""What ACLs allow: cases of Kafka's AuthorizerTest and BaseAuthorizerTest, and all of them beside a simple oracle."""

from collections.abc import Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from barnabas.broker.security.acls.bindings import (
    AccessControlEntry,
    PatternType,
    PermissionType,
    ResourcePattern,
)
from barnabas.broker.security.acls.decision import AclIndex
from barnabas.broker.security.operations import SUPPORTED_OPERATIONS, Operation, ResourceType

LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = PermissionType.ALLOW, PermissionType.DENY
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
READ, WRITE, ALL = Operation.READ, Operation.WRITE, Operation.ALL
ALICE, BOB, EVERYBODY = "User:alice", "User:bob", "User:*"
HOST, OTHER_HOST = "192.168.1.1", "192.168.1.2"

Acl = tuple[ResourcePattern, AccessControlEntry]


def acl(
    permission: PermissionType,
    principal: str,
    operation: Operation,
    name: str,
    *,
    pattern: PatternType = LITERAL,
    host: str = "*",
    resource_type: ResourceType = TOPIC,
) -> Acl:
    return ResourcePattern(resource_type, pattern, name), AccessControlEntry(principal, host, operation, permission)


def index_of(acls: Iterable[Acl], *, allows_everyone: bool = False) -> AclIndex:
    index = AclIndex(allows_everyone=allows_everyone)
    for pattern, entry in acls:
        index.replace(pattern, index.entries.get(pattern, frozenset()) | {entry})
    return index


def allows(acls: Iterable[Acl], operation: Operation = Operation.READ, name: str = "foo", *, host: str = HOST) -> bool:
    return index_of(acls).allows(ALICE, host, operation, TOPIC, name)


def allows_some(*acls: Acl, operation: Operation = Operation.READ, resource_type: ResourceType = TOPIC) -> bool:
    return index_of(acls).allows_some(ALICE, HOST, operation, resource_type)


# --- one resource --------------------------------------------------------------------------------


def test_without_acls_the_setting_decides() -> None:
    others = [acl(ALLOW, BOB, READ, "foo"), acl(ALLOW, ALICE, READ, "foo", resource_type=GROUP)]
    for allows_everyone in (False, True):
        index = index_of(others, allows_everyone=allows_everyone)
        assert index.allows(ALICE, HOST, Operation.READ, TOPIC, "bar") is allows_everyone
        assert not index.allows(ALICE, HOST, Operation.READ, TOPIC, "foo"), "the topic has an ACL, of another user"


def test_a_denial_has_precedence() -> None:
    assert not allows([acl(ALLOW, EVERYBODY, ALL, "*"), acl(DENY, ALICE, READ, "foo", host=HOST)])
    assert allows([acl(ALLOW, EVERYBODY, ALL, "*"), acl(DENY, ALICE, READ, "foo", host=OTHER_HOST)])
    assert not allows([acl(DENY, EVERYBODY, ALL, "*"), acl(ALLOW, ALICE, ALL, "foo")])
    assert not allows([acl(ALLOW, ALICE, READ, "foo"), acl(DENY, ALICE, ALL, "f", pattern=PREFIXED)])


@pytest.mark.parametrize(
    ("given_operation", "implied"),
    [
        (Operation.READ, {Operation.READ, Operation.DESCRIBE}),
        (Operation.WRITE, {Operation.WRITE, Operation.DESCRIBE}),
        (Operation.DELETE, {Operation.DELETE, Operation.DESCRIBE}),
        (Operation.ALTER, {Operation.ALTER, Operation.DESCRIBE}),
        (Operation.DESCRIBE, {Operation.DESCRIBE}),
        (Operation.CREATE, {Operation.CREATE}),
        (Operation.ALTER_CONFIGS, {Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS}),
        (Operation.DESCRIBE_CONFIGS, {Operation.DESCRIBE_CONFIGS}),
        (Operation.ALL, set(SUPPORTED_OPERATIONS[TOPIC])),
        (Operation.UNKNOWN, set()),
    ],
)
def test_operations_that_include_others(given_operation: Operation, implied: set[Operation]) -> None:
    """In ACLs that allow; one that denies is for its own operation."""
    operations = SUPPORTED_OPERATIONS[TOPIC]
    assert {each for each in operations if allows([acl(ALLOW, ALICE, given_operation, "foo")], each)} == implied
    denying = [acl(ALLOW, ALICE, ALL, "foo"), acl(DENY, ALICE, given_operation, "foo")]
    denied = {each for each in operations if not allows(denying, each)}
    assert denied == {each for each in operations if given_operation in (each, ALL)}


@pytest.mark.parametrize(
    ("name", "pattern", "matches"),
    [
        ("foo", LITERAL, True),
        ("fo", LITERAL, False),
        ("*", LITERAL, True),
        ("foo", PREFIXED, True),
        ("f", PREFIXED, True),
        ("foo-", PREFIXED, False),
        ("o", PREFIXED, False),
        ("*", PREFIXED, False),
    ],
)
def test_patterns(name: str, pattern: PatternType, matches: bool) -> None:
    assert allows([acl(ALLOW, ALICE, READ, name, pattern=pattern)]) is matches


def test_hosts_and_principals() -> None:
    only_here = [acl(ALLOW, ALICE, READ, "foo", host=HOST)]
    assert allows(only_here)
    assert not allows(only_here, host=OTHER_HOST)
    assert allows([acl(ALLOW, EVERYBODY, READ, "foo")])
    assert not allows([acl(ALLOW, BOB, READ, "foo")])
    assert not allows([acl(ALLOW, "Group:*", READ, "foo")])


def test_removed_acls_count_no_more() -> None:
    pattern, entry = acl(ALLOW, ALICE, READ, "fo", pattern=PREFIXED)
    index = index_of([(pattern, entry), acl(ALLOW, BOB, READ, "fo", pattern=PREFIXED)])
    index.replace(pattern, index.entries[pattern] - {entry})
    assert not index.allows(ALICE, HOST, Operation.READ, TOPIC, "foo")
    assert not index.allows_some(ALICE, HOST, Operation.READ, TOPIC)
    assert index.allows(BOB, HOST, Operation.READ, TOPIC, "foo")
    index.replace(pattern, frozenset())
    assert dict(index.entries) == {}
    assert not index.allows(BOB, HOST, Operation.READ, TOPIC, "foo")


# --- some resource of a type (BaseAuthorizerTest) ---------------------------------------------------


def test_an_unrelated_denial_does_not_dominate() -> None:
    assert allows_some(
        acl(ALLOW, ALICE, READ, "sb1", host=HOST),
        acl(DENY, ALICE, READ, "sb1", host=OTHER_HOST),
        acl(DENY, BOB, READ, "sb1", host=HOST),
        acl(DENY, ALICE, WRITE, "sb1", host=HOST),
        acl(DENY, ALICE, READ, "sb2", host=HOST),
        acl(DENY, ALICE, READ, "s", host=HOST, pattern=PREFIXED, resource_type=GROUP),
    )
    assert not allows_some(acl(ALLOW, ALICE, READ, "sb1", resource_type=GROUP))


def test_a_denial_of_the_same_name_dominates() -> None:
    allowed = acl(ALLOW, ALICE, READ, "sb1")
    assert allows_some(allowed)
    assert not allows_some(allowed, acl(DENY, ALICE, READ, "sb1"))
    assert not allows_some(allowed, acl(DENY, ALICE, ALL, "sb1", host=HOST))
    assert not allows_some(allowed, acl(DENY, EVERYBODY, READ, "sb1"))
    assert allows_some(allowed, acl(DENY, ALICE, READ, "sb1"), acl(ALLOW, EVERYBODY, ALL, "sb2"))


def test_a_denial_of_a_shorter_prefix_dominates() -> None:
    def group(permission: PermissionType, name: str) -> Acl:
        return acl(permission, ALICE, READ, name, pattern=PREFIXED, resource_type=GROUP)

    steps = [
        (group(ALLOW, "abcde"), True),
        (group(DENY, "abcd"), False),
        (group(ALLOW, "abc"), True),
        (group(DENY, "a"), False),
        (group(ALLOW, "ab"), False),
    ]
    for count, (_, expected) in enumerate(steps, 1):
        assert allows_some(*(each for each, _ in steps[:count]), resource_type=GROUP) is expected


def test_a_denial_of_all_names_dominates() -> None:
    prefixed = acl(ALLOW, ALICE, READ, "hello", pattern=PREFIXED)
    denied = acl(DENY, ALICE, READ, "*")
    assert allows_some(prefixed)
    assert not allows_some(prefixed, denied, acl(ALLOW, ALICE, READ, "*"), acl(ALLOW, ALICE, READ, "aloha"))


def test_all_names_are_allowed_besides_denied_ones() -> None:
    assert allows_some(acl(ALLOW, ALICE, READ, "*"), acl(DENY, ALICE, READ, "a", pattern=PREFIXED))


def test_who_is_allowed_without_acls_is_allowed_some() -> None:
    for acls, expected in (
        ([], True),
        ([acl(DENY, ALICE, READ, "a", pattern=PREFIXED)], True),
        ([acl(DENY, ALICE, READ, "*")], False),
    ):
        index = index_of(acls, allows_everyone=True)
        assert index.allows_some(ALICE, HOST, Operation.READ, TOPIC) is expected


# --- beside an oracle ------------------------------------------------------------------------------

NAMES = st.text("ab*", min_size=1, max_size=4)
ACLS = st.lists(
    st.builds(
        acl,
        st.sampled_from([ALLOW, DENY]),
        st.sampled_from([ALICE, BOB, EVERYBODY]),
        st.sampled_from([ALL, *map(Operation, SUPPORTED_OPERATIONS[TOPIC])]),
        NAMES,
        pattern=st.sampled_from([LITERAL, PREFIXED]),
        host=st.sampled_from([HOST, OTHER_HOST, "*"]),
        resource_type=st.sampled_from([TOPIC, GROUP]),
    ),
    max_size=12,
)
IMPLIED_BY = {
    Operation.DESCRIBE: {"DESCRIBE", "READ", "WRITE", "DELETE", "ALTER"},
    Operation.DESCRIBE_CONFIGS: {"DESCRIBE_CONFIGS", "ALTER_CONFIGS"},
}


def names_resource(pattern: ResourcePattern, resource_type: ResourceType, name: str) -> bool:
    if pattern.resource_type != resource_type:
        return False
    if pattern.pattern_type is PREFIXED:
        return name.startswith(pattern.name)
    return pattern.name in {"*", name}


def by_reading_all(
    acls: Iterable[Acl], allows_everyone: bool, who: str, host: str, operation: Operation, name: str
) -> bool:
    about = [entry for pattern, entry in acls if names_resource(pattern, TOPIC, name)]
    mine = [each for each in about if each.principal in {who, EVERYBODY} and each.host in {host, "*"}]
    if any(each.permission_type is DENY and each.operation.name in {operation.name, "ALL"} for each in mine):
        return False
    allowing = IMPLIED_BY.get(operation, {operation.name}) | {"ALL"}
    if any(each.permission_type is ALLOW and each.operation.name in allowing for each in mine):
        return True
    return allows_everyone and not about


@given(
    ACLS,
    st.booleans(),
    st.sampled_from([ALICE, BOB, "User:eve"]),
    st.sampled_from([HOST, OTHER_HOST]),
    st.sampled_from(SUPPORTED_OPERATIONS[TOPIC]),
    NAMES,
    st.data(),
)
def test_decisions_are_those_of_reading_all_acls(
    acls: list[Acl], allows_everyone: bool, who: str, host: str, operation: Operation, name: str, data: st.DataObject
) -> None:
    """Also after some patterns have lost their ACLs."""
    index = index_of(acls, allows_everyone=allows_everyone)
    assert index.allows(who, host, operation, TOPIC, name) == by_reading_all(
        acls, allows_everyone, who, host, operation, name
    )
    gone = data.draw(st.sets(st.sampled_from([pattern for pattern, _ in acls]))) if acls else set()
    for pattern in gone:
        index.replace(pattern, frozenset())
    left = [each for each in acls if each[0] not in gone]
    assert index.allows(who, host, operation, TOPIC, name) == by_reading_all(
        left, allows_everyone, who, host, operation, name
    )


@given(ACLS, st.sampled_from([Operation.READ, Operation.WRITE]), NAMES)
@example([acl(ALLOW, ALICE, READ, "*"), acl(DENY, ALICE, READ, "a", pattern=PREFIXED)], Operation.READ, "ab")
def test_what_is_allowed_on_a_resource_is_allowed_on_some(acls: list[Acl], operation: Operation, name: str) -> None:
    """Only a denial of all names, or of the very name, keeps it from being so; both are no permission of the name."""
    index = index_of(acls)
    if index.allows(ALICE, HOST, operation, TOPIC, name):
        assert index.allows_some(ALICE, HOST, operation, TOPIC)


@given(ACLS, st.sampled_from([Operation.READ, Operation.WRITE]))
def test_some_resource_is_one_that_an_acl_names(acls: list[Acl], operation: Operation) -> None:
    """Unless all names are allowed, of which denials may leave none; a longer name is not denied by literal ones."""
    mine = [(pattern, entry) for pattern, entry in acls if entry.permission_type is ALLOW and pattern.name != "*"]
    index = index_of(acls)
    is_wildcard = any(
        pattern == ResourcePattern(TOPIC, LITERAL, "*")
        and entry.permission_type is ALLOW
        and entry.principal != BOB
        and entry.host != OTHER_HOST
        and entry.operation.name in {operation.name, "ALL"}
        for pattern, entry in acls
    )
    if index.allows_some(ALICE, HOST, operation, TOPIC) and not is_wildcard:
        names = [pattern.name for pattern, _ in mine] + [f"{pattern.name}zzz" for pattern, _ in mine] + ["*zzz"]
        assert any(index.allows(ALICE, HOST, operation, TOPIC, name) for name in names)
