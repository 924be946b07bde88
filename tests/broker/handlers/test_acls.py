"""DescribeAcls, CreateAcls and DeleteAcls, asked over a socket."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from barnabas.testing import Broker
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from barnabas.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from barnabas.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from barnabas.wire.schema import Message
from tools.attack.hostile import ask, connect

AUTHORIZER = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
ANONYMOUS_IS_SUPER = {**AUTHORIZER, "super.users": "User:admin; User:ANONYMOUS"}
ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4
TOPIC, GROUP, CLUSTER, USER = 2, 3, 4, 7
ALL, READ, WRITE, CREATE, DESCRIBE = 2, 3, 4, 5, 8
DENY, ALLOW = 2, 3

Acl = tuple[int, int, str, str, str, int, int]
"""Resource type, pattern type, name, principal, host, operation, permission."""

READ_T: Acl = (TOPIC, LITERAL, "t", "User:alice", "*", READ, ALLOW)
WRITE_T: Acl = (TOPIC, LITERAL, "t", "User:alice", "*", WRITE, ALLOW)
DENIED_T: Acl = (TOPIC, LITERAL, "t", "User:bob", "10.0.0.1", ALL, DENY)
PREFIX: Acl = (TOPIC, PREFIXED, "t", "User:bob", "*", READ, ALLOW)
GROUP_G: Acl = (GROUP, LITERAL, "g", "User:alice", "*", READ, ALLOW)
ALL_ACLS = sorted([READ_T, WRITE_T, DENIED_T, PREFIX, GROUP_G])


@contextmanager
def asking(configs: dict[str, str]) -> Iterator[socket.socket]:
    with Broker(configs=configs) as broker, connect(broker.bootstrap_servers) as connection:
        yield connection


@pytest.fixture(scope="module")
def shared() -> Iterator[socket.socket]:
    with asking(ANONYMOUS_IS_SUPER) as connection:
        yield connection


@pytest.fixture
def connection(shared: socket.socket) -> socket.socket:
    """A connection to a broker with ALL_ACLS."""
    delete(shared)
    assert create(shared, *ALL_ACLS) == [ErrorCode.NONE] * len(ALL_ACLS)
    return shared


def creations(acls: tuple[Acl, ...]) -> CreateAclsRequest:
    return CreateAclsRequest(
        creations=[
            AclCreation(
                resource_type=resource_type,
                resource_pattern_type=pattern_type,
                resource_name=name,
                principal=principal,
                host=host,
                operation=operation,
                permission_type=permission_type,
            )
            for resource_type, pattern_type, name, principal, host, operation, permission_type in acls
        ]
    )


def create(connection: socket.socket, *acls: Acl, version: int = 3) -> list[int]:
    """The error codes."""
    answer = ask(connection, creations(acls), version, CreateAclsResponse)
    assert all(bool(each.error_message) == bool(each.error_code) for each in answer.results)
    return [each.error_code for each in answer.results]


def describe(
    connection: socket.socket,
    resource_type: int = ANY,
    pattern_type: int = ANY,
    name: str | None = None,
    principal: str | None = None,
    host: str | None = None,
    operation: int = ANY,
    permission_type: int = ANY,
    version: int = 3,
) -> list[Acl]:
    request = DescribeAclsRequest(
        resource_type_filter=resource_type,
        pattern_type_filter=pattern_type,
        resource_name_filter=name,
        principal_filter=principal,
        host_filter=host,
        operation=operation,
        permission_type=permission_type,
    )
    answer = ask(connection, request, version, DescribeAclsResponse)
    assert (answer.error_code, answer.error_message) == (ErrorCode.NONE, "")
    return [
        (
            each.resource_type,
            each.pattern_type,
            each.resource_name,
            acl.principal,
            acl.host,
            acl.operation,
            acl.permission_type,
        )
        for each in answer.resources
        for acl in each.acls
    ]


def wanted(
    resource_type: int = ANY,
    pattern_type: int = ANY,
    name: str | None = None,
    principal: str | None = None,
    operation: int = ANY,
) -> DeleteAclsFilter:
    return DeleteAclsFilter(
        resource_type_filter=resource_type,
        pattern_type_filter=pattern_type,
        resource_name_filter=name,
        principal_filter=principal,
        host_filter=None,
        operation=operation,
        permission_type=ANY,
    )


def delete(connection: socket.socket, *filters: DeleteAclsFilter, version: int = 3) -> list[list[Acl]]:
    """What each filter has deleted; without a filter everything is."""
    answer = ask(connection, DeleteAclsRequest(filters=list(filters) or [wanted()]), version, DeleteAclsResponse)
    assert all((each.error_code, each.error_message) == (ErrorCode.NONE, None) for each in answer.filter_results)
    return [
        [
            (
                acl.resource_type,
                acl.pattern_type,
                acl.resource_name,
                acl.principal,
                acl.host,
                acl.operation,
                acl.permission_type,
            )
            for acl in each.matching_acls
        ]
        for each in answer.filter_results
    ]


# --- without an authorizer -------------------------------------------------------------------------


def test_without_an_authorizer_acls_are_disabled() -> None:
    with asking({}) as connection:
        request = DescribeAclsRequest(resource_type_filter=ANY, operation=ANY, permission_type=ANY)
        described = ask(connection, request, 3, DescribeAclsResponse)
        created = ask(connection, creations((READ_T, WRITE_T)), 3, CreateAclsResponse).results
        deleted = ask(connection, DeleteAclsRequest(filters=[wanted()]), 3, DeleteAclsResponse).filter_results
    answers = [described, *created, *deleted]
    assert [each.error_code for each in answers] == [ErrorCode.SECURITY_DISABLED] * 4
    assert described.error_message == "No Authorizer is configured on the broker"
    assert {each.error_message for each in answers[1:]} == {"No Authorizer is configured."}


# --- with one ------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2, 3])
def test_acls_are_created_listed_and_deleted(connection: socket.socket, version: int) -> None:
    assert describe(connection, version=version) == ALL_ACLS
    assert create(connection, READ_T, READ_T, version=version) == [0, 0], "they exist"
    assert describe(connection, version=version) == ALL_ACLS
    assert delete(connection, wanted(TOPIC, LITERAL, "t", operation=READ), version=version) == [[READ_T]]
    assert describe(connection, version=version) == [each for each in ALL_ACLS if each != READ_T]
    assert delete(connection, wanted(TOPIC, LITERAL, "t", operation=READ), version=version) == [[]]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"resource_type": GROUP}, [GROUP_G]),
        ({"resource_type": TOPIC, "pattern_type": PREFIXED}, [PREFIX]),
        ({"name": "t"}, [READ_T, WRITE_T, DENIED_T, PREFIX]),
        ({"name": "tea"}, []),
        ({"name": "tea", "pattern_type": MATCH}, [PREFIX]),
        ({"name": "t", "pattern_type": MATCH}, [READ_T, WRITE_T, DENIED_T, PREFIX]),
        ({"principal": "User:bob"}, [DENIED_T, PREFIX]),
        ({"host": "10.0.0.1"}, [DENIED_T]),
        ({"host": "*", "operation": READ}, [READ_T, PREFIX, GROUP_G]),
        ({"permission_type": DENY}, [DENIED_T]),
        ({"resource_type": 99}, []),
        ({"pattern_type": 99}, []),
        ({"operation": 99}, []),
        ({"permission_type": 99}, []),
    ],
)
def test_filters(connection: socket.socket, filters: dict[str, object], expected: list[Acl]) -> None:
    assert describe(connection, **filters) == sorted(expected)  # type: ignore[arg-type]


def test_each_filter_lists_what_it_matches(connection: socket.socket) -> None:
    deleted = delete(
        connection, wanted(principal="User:bob"), wanted(TOPIC, LITERAL, "t"), wanted(GROUP, name="?"), wanted(USER)
    )
    assert deleted == [sorted([DENIED_T, PREFIX]), sorted([READ_T, WRITE_T, DENIED_T]), [], []]
    assert describe(connection) == [GROUP_G]


def test_a_match_finds_patterns_for_all_names(connection: socket.socket) -> None:
    everything: Acl = (TOPIC, LITERAL, "*", "User:alice", "*", READ, ALLOW)
    assert create(connection, everything) == [0]
    assert describe(connection, TOPIC, MATCH, "other") == [everything]
    assert describe(connection, TOPIC, ANY, "*") == [everything]


@pytest.mark.parametrize(
    ("changes", "detail"),
    [
        ({0: CLUSTER}, "The only valid name for the CLUSTER resource is kafka-cluster"),
        ({2: ""}, "Invalid empty resource name"),
        ({0: ANY}, "Invalid resourceType ANY"),
        ({0: 99}, "Invalid resourceType UNKNOWN"),
        ({1: MATCH}, "Invalid patternType MATCH"),
        ({1: ANY}, "Invalid patternType ANY"),
        ({5: ANY}, "Invalid operation ANY"),
        ({6: ANY}, "Invalid permissionType ANY"),
        ({3: "alice"}, "Could not parse principal from `alice`"),
        ({2: "a/b"}, "slash"),
        ({2: ".."}, "slash"),
        ({2: "\x01"}, "slash"),
        ({2: "n" * 1025}, "A resource name has at most 1024 bytes."),
        ({3: "User:" + "n" * 1025}, "A principal has at most 1024 bytes."),
        ({4: "n" * 257}, "A host has at most 256 bytes."),
    ],
)
def test_what_is_no_acl_is_refused_by_itself(
    connection: socket.socket, changes: dict[int, object], detail: str
) -> None:
    changed = [changes.get(index, value) for index, value in enumerate(READ_T)]
    request = creations((tuple(changed), (GROUP, LITERAL, "h", "User:alice", "*", READ, ALLOW)))  # type: ignore[arg-type]
    refused, created = ask(connection, request, 3, CreateAclsResponse).results
    assert (refused.error_code, created.error_code) == (ErrorCode.INVALID_REQUEST, ErrorCode.NONE)
    assert detail in str(refused.error_message)
    assert len(describe(connection)) == len(ALL_ACLS) + 1


@pytest.mark.parametrize("position", [0, 1, 5, 6])
def test_the_code_of_unknown_closes_the_connection(shared: socket.socket, position: int) -> None:
    """As in Kafka, which cannot parse such a request."""
    codes = [0 if index == position else value for index, value in enumerate(READ_T)]
    described = DescribeAclsRequest(
        resource_type_filter=int(codes[0]),
        pattern_type_filter=int(codes[1]),
        operation=int(codes[5]),
        permission_type=int(codes[6]),
    )
    requests: list[tuple[Message, type[Message]]] = [
        (creations((tuple(codes),)), CreateAclsResponse),  # type: ignore[arg-type]
        (described, DescribeAclsResponse),
    ]
    host_and_port = "{}:{}".format(*shared.getpeername())
    for request, response_class in requests:
        with connect(host_and_port) as connection, pytest.raises(ConnectionError):
            ask(connection, request, 3, response_class)


@pytest.mark.parametrize("position", ["resource_type_filter", "pattern_type_filter", "operation", "permission_type"])
def test_a_filter_with_unknown_codes_is_refused_by_itself(connection: socket.socket, position: str) -> None:
    """The code of UNKNOWN itself closes the connection."""
    unknown = wanted(TOPIC, LITERAL, "t")
    setattr(unknown, position, 99)
    request = DeleteAclsRequest(filters=[unknown, wanted(GROUP)])
    refused, deleted = ask(connection, request, 3, DeleteAclsResponse).filter_results
    assert (refused.error_code, refused.matching_acls) == (ErrorCode.INVALID_REQUEST, [])
    assert len(deleted.matching_acls) == 1
    setattr(unknown, position, 0)
    with connect("{}:{}".format(*connection.getpeername())) as other, pytest.raises(ConnectionError):
        ask(other, request, 3, DeleteAclsResponse)


# --- authorization -------------------------------------------------------------------------------


def test_who_may_list_and_change_acls() -> None:
    """Everybody may while there are no ACLs, and no setting keeps them from it; then those who are allowed to."""
    with asking({**AUTHORIZER, "allow.everyone.if.no.acl.found": "true"}) as connection:
        cluster: Acl = (CLUSTER, LITERAL, "kafka-cluster", "User:ANONYMOUS", "127.0.0.1", DESCRIBE, ALLOW)
        assert create(connection, cluster) == [0]
        assert describe(connection) == [cluster]
        assert create(connection, READ_T, WRITE_T) == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED] * 2
        request = DeleteAclsRequest(filters=[wanted(), wanted()])
        refused = ask(connection, request, 3, DeleteAclsResponse).filter_results
        assert [each.error_code for each in refused] == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED] * 2
        assert describe(connection) == [cluster]


def test_nobody_may_anything_without_acls_and_super_users() -> None:
    with asking(AUTHORIZER) as connection:
        request = DescribeAclsRequest(resource_type_filter=ANY, operation=ANY, permission_type=ANY)
        answer = ask(connection, request, 3, DescribeAclsResponse)
        assert (answer.error_code, answer.resources) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, [])
        assert create(connection, READ_T) == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
