"""How soon three brokers, each a process, obey a change of ACLs that one of them has made."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final, NamedTuple

import pytest

from barnabas.broker.security.sasl import jaas, plain
from barnabas.broker.security.sasl.plain import Credentials
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from barnabas.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from barnabas.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from barnabas.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from compat_tests.logins import log_in
from tools.attack.hostile import ask, connect
from tools.processes.barnabas import BarnabasProcess, BarnabasZooKeeper
from tools.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.store, pytest.mark.full, pytest.mark.alone]

CHANGES: Final = 20
WITHIN_S: Final = 1.0
TOPIC, LITERAL, DESCRIBE, ALLOW, ANY_PERMISSION = 2, 3, 8, 3, 1
"""Kafka's codes of resources, patterns, operations and permissions."""


class Connections(NamedTuple):
    """A super user at one broker, and alice at each."""

    administrator: socket.socket
    of_alice: tuple[socket.socket, ...]


@pytest.fixture
def connections() -> Iterator[Connections]:
    line = jaas.LoginModule(
        jaas.PLAIN_LOGIN_MODULE,
        options={"username": "admin", "password": "a", "user_admin": "a", "user_alice": "b"},
    ).line()
    with ExitStack() as stack:
        settings = {
            "zookeeper.connect": stack.enter_context(BarnabasZooKeeper()).address,
            "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.plaintext.plain.sasl.jaas.config": line,
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
            "super.users": "User:admin",
        }
        brokers = [stack.enter_context(BarnabasProcess({**settings, "node.id": str(each)})) for each in (1, 2, 3)]

        def logged_in(broker: BarnabasProcess, user: str, password: str) -> socket.socket:
            connection = stack.enter_context(connect(broker.bootstrap_servers))
            assert log_in(connection, plain.Client(Credentials(user, password))) is ErrorCode.NONE
            return connection

        administrator = logged_in(brokers[0], "admin", "a")
        described = DescribeClusterRequest()
        wait_until(lambda: len(ask(administrator, described, 0, DescribeClusterResponse).brokers) == len(brokers))
        yield Connections(administrator, tuple(logged_in(each, "alice", "b") for each in brokers))


def is_refused(connection: socket.socket, topic: str) -> bool:
    """Whether a client may not describe a topic, which does not exist."""
    partition = ListOffsetsPartition(partition_index=0, timestamp=-1)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[partition])])
    [found] = ask(connection, request, 7, ListOffsetsResponse).topics
    error = ErrorCode(found.partitions[0].error_code)
    assert error in (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return error is ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_every_broker_obeys_a_change_within_a_second(connections: Connections) -> None:
    """Counted from the response to the change, of permissions that are given and taken away."""
    administrator, of_alice = connections
    delays_s = []

    def measure(topic: str, *, is_expected: bool) -> None:
        started = time.monotonic()
        for each in of_alice:
            while is_refused(each, topic) is not is_expected:
                assert time.monotonic() - started < 10 * WITHIN_S, "a broker has not heard of the change"
        delays_s.append(time.monotonic() - started)

    for number in range(CHANGES):
        topic = f"topic-{number}"
        assert all(is_refused(each, topic) for each in of_alice)
        creation = AclCreation(
            resource_type=TOPIC,
            resource_name=topic,
            resource_pattern_type=LITERAL,
            principal="User:alice",
            host="*",
            operation=DESCRIBE,
            permission_type=ALLOW,
        )
        [created] = ask(administrator, CreateAclsRequest(creations=[creation]), 3, CreateAclsResponse).results
        assert created.error_code == 0, created
        measure(topic, is_expected=False)
        wanted = DeleteAclsFilter(
            resource_type_filter=TOPIC,
            resource_name_filter=topic,
            pattern_type_filter=LITERAL,
            principal_filter=None,
            host_filter=None,
            operation=DESCRIBE,
            permission_type=ANY_PERMISSION,
        )
        [deleted] = ask(administrator, DeleteAclsRequest(filters=[wanted]), 3, DeleteAclsResponse).filter_results
        assert len(deleted.matching_acls) == 1, deleted
        measure(topic, is_expected=True)
    print(f"{len(delays_s)} changes are obeyed by all within {1000 * max(delays_s):.0f} ms")
    assert max(delays_s) <= WITHIN_S
