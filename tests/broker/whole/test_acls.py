"""ACLs in a cluster of three brokers: each broker obeys a change that another one has made, also after restarts,
elections of a controller and lost sessions."""

import sys
from pathlib import Path

import pytest

from barnabas.broker.security.operations import Operation, ResourceType
from barnabas.broker.server import Broker
from barnabas.controller.acl_znodes import DENY, LITERAL, AclResource, StoredAcl, encode_acl_change, encode_acls
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_acls import AclCreation, CreateAclsRequest
from barnabas.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from barnabas.wire.messages.describe_acls import DescribeAclsRequest
from tests.broker.whole.cluster import Cluster, cluster
from tools.processes import children
from tools.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

CONFIGS = {
    "authorizer_class_name": "kafka.security.authorizer.AclAuthorizer",
    "super_users": "User:ANONYMOUS",
}
ANY, TOPIC, LITERAL_PATTERN, ALL, READ, DENIED, ALLOWED = 1, 2, 3, 2, 3, 2, 3
USERS = ("User:alice", "User:bob", "User:carol", "User:denied")
"""All of them may read the topic, but for the last one, who may do everything with other topics."""


async def create_acls(brokers: Cluster, node_id: int) -> None:
    entries = [(user, READ, ALLOWED) for user in USERS] + [("User:denied", ALL, DENIED)]
    creations = [
        AclCreation(
            resource_type=TOPIC,
            resource_pattern_type=LITERAL_PATTERN,
            resource_name="t",
            principal=principal,
            host="*",
            operation=operation,
            permission_type=permission_type,
        )
        for principal, operation, permission_type in entries
    ]
    creations.append(
        AclCreation(
            resource_type=TOPIC,
            resource_pattern_type=LITERAL_PATTERN,
            resource_name="*",
            principal="User:denied",
            host="*",
            operation=ALL,
            permission_type=ALLOWED,
        )
    )
    answer = await brokers.ask(node_id, CreateAclsRequest(creations=creations), 3)
    assert [each.error_code for each in answer.results] == [ErrorCode.NONE] * 6


async def delete_acl(brokers: Cluster, node_id: int, principal: str) -> None:
    """The one that allows the principal to read the topic."""
    wanted = DeleteAclsFilter(
        resource_type_filter=TOPIC,
        resource_name_filter="t",
        pattern_type_filter=LITERAL_PATTERN,
        principal_filter=principal,
        host_filter=None,
        operation=READ,
        permission_type=ALLOWED,
    )
    answer = await brokers.ask(node_id, DeleteAclsRequest(filters=[wanted]), 3)
    assert [len(each.matching_acls) for each in answer.filter_results] == [1]


def readers(broker: Broker) -> list[str]:
    authorizer = broker.services.authorizer
    assert authorizer is not None
    return [user for user in USERS if authorizer.authorize(user, "127.0.0.1", Operation.READ, ResourceType.TOPIC, "t")]


async def all_let_read(brokers: Cluster, *users: str) -> None:
    await until(
        lambda: all(readers(broker) == list(users) for broker in brokers.brokers.values()),
        lambda: {node_id: readers(broker) for node_id, broker in brokers.brokers.items()},
    )


async def count_of_acls(brokers: Cluster, node_id: int) -> int:
    request = DescribeAclsRequest(
        resource_type_filter=ANY,
        resource_name_filter=None,
        pattern_type_filter=ANY,
        principal_filter=None,
        host_filter=None,
        operation=ANY,
        permission_type=ANY,
    )
    answer = await brokers.ask(node_id, request, 3)
    return sum(len(each.acls) for each in answer.resources)


async def test_one_acl_less_leaves_the_others(tmp_path: Path) -> None:
    """CVE-2024-27309: a broker of Kafka treated a resource as if it had one ACL, or none, after one of several had been
    removed; a lost DENY allows."""
    async with cluster(tmp_path, 3, **CONFIGS) as brokers:
        await create_acls(brokers, 1)
        await all_let_read(brokers, "User:alice", "User:bob", "User:carol")
        await delete_acl(brokers, 2, "User:alice")
        await all_let_read(brokers, "User:bob", "User:carol")

        await brokers.stop(1)  # the controller
        assert brokers.controller_ids != [1]
        await all_let_read(brokers, "User:bob", "User:carol")
        await brokers.start(1, **CONFIGS)
        await all_let_read(brokers, "User:bob", "User:carol")

        await brokers.expire_session(brokers.controller_ids[0])
        await delete_acl(brokers, 1, "User:bob")
        await all_let_read(brokers, "User:carol")
        for node_id in (1, 2, 3):
            await brokers.crash(node_id)
            await brokers.start(node_id, **CONFIGS)
        await all_let_read(brokers, "User:carol")
        assert [await count_of_acls(brokers, node_id) for node_id in (1, 2, 3)] == [4, 4, 4]


async def test_what_changes_while_a_broker_has_no_session(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2, **CONFIGS) as brokers:
        await create_acls(brokers, 1)
        await all_let_read(brokers, "User:alice", "User:bob", "User:carol")
        repository = brokers.brokers[2].services.acls
        assert repository is not None
        await repository.repository.stop()
        tool = await brokers.session()
        topic = AclResource("Topic", LITERAL, "t")
        await tool.set(topic.path, encode_acls([StoredAcl("User:*", DENY, "All", "*")]))
        await tool.create("/kafka-acl-changes/acl_changes_", encode_acl_change(topic), sequence=True)
        await until(lambda: readers(brokers.brokers[1]) == [])
        assert readers(brokers.brokers[2]) == ["User:alice", "User:bob", "User:carol"], "it has not heard of it"
        await brokers.expire_session(2)
        await all_let_read(brokers)
        await tool.close()


def test_without_an_authorizer_there_is_none_in_memory() -> None:
    code = """
import sys
from barnabas.testing import Broker
with Broker() as broker:
    broker.create_topic("t").produce("x")
print(*sorted(name for name in sys.modules if name.startswith("barnabas.") and "acl" in name))
"""
    run = children.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(run.stdout.split()) <= {
        # What clients are told of the APIs served: their handlers, and what these know of the values in messages.
        *(f"barnabas.broker.handlers.{name}_acls" for name in ("describe", "create", "delete")),
        *(f"barnabas.wire.messages.{name}_acls" for name in ("describe", "create", "delete")),
        "barnabas.broker.security.acls",
        "barnabas.broker.security.acls.bindings",
        "barnabas.controller.acl_znodes",
        # The ACLs of znodes, which the store of the metadata has.
        "barnabas.controller.coordination.acl",
    }


async def test_without_an_authorizer_there_are_no_znodes_of_acls(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1) as brokers:
        session = await brokers.session()
        assert [name for name in await session.get_children("/") if "acl" in name] == []
        await brokers.stop(1)
        await brokers.start(1, **CONFIGS)
        found = [name for name in await session.get_children("/") if "acl" in name]
        assert found == ["kafka-acl", "kafka-acl-changes", "kafka-acl-extended", "kafka-acl-extended-changes"]
        await session.close()
