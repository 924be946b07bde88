"""The znodes of ACLs: ours beside those of Kafka 3.9.1, and its kafka-acls on ZooKeeper beside Barnabas."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from barnabas.controller.acl_znodes import (
    ACL_CHANGES,
    RESOURCE_TYPES,
    AclResource,
    StoredAcl,
    decode_acl_change,
    decode_acls,
    encode_acl_change,
    encode_acls,
)
from compat_tests.zookeeper.conftest import KafkaClasses, broker_on
from tools.processes.barnabas import BarnabasProcess
from tools.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.java

CHROOT = "/acls"
AUTHORIZER = "kafka.security.authorizer.AclAuthorizer"
ENTRIES = [
    StoredAcl("User:alice", "Allow", "Read", "*"),
    StoredAcl("User:CN=b,O=ü", "Deny", "All", "10.0.0.1"),
    StoredAcl("Group:a:b", "Allow", "DescribeConfigs", "::1"),
]


def in_capitals(name: str) -> str:
    """The name of Kafka's constant."""
    return "".join(f"_{letter}" if letter.isupper() and index else letter for index, letter in enumerate(name)).upper()


@pytest.mark.parametrize("pattern_type", ["LITERAL", "PREFIXED"])
@pytest.mark.parametrize("resource_type", RESOURCE_TYPES)
def test_paths_payloads_and_notifications(kafka: KafkaClasses, resource_type: str, pattern_type: str) -> None:
    common, zk = kafka.java.org.apache.kafka.common, kafka.java.kafka.zk
    for name in ("t", "*", "a:b-ä"):
        resource = AclResource(resource_type, pattern_type, name)
        theirs = common.resource.ResourcePattern(
            common.resource.ResourceType.valueOf(in_capitals(resource_type)),
            name,
            common.resource.PatternType.valueOf(pattern_type),
        )
        assert resource.path == zk.ResourceZNode.path(theirs)
        change = zk.ZkAclStore.apply(theirs.patternType()).changeStore().createChangeNode(theirs)
        path, payload = change.path(), bytes(change.bytes())
        assert path == f"{ACL_CHANGES[pattern_type]}/acl_changes_"
        assert decode_acl_change(path, payload) == resource
        assert encode_acl_change(resource) == payload
        entries = kafka.set(
            *(
                kafka.java.org.apache.kafka.security.authorizer.AclEntry(
                    common.acl.AccessControlEntry(
                        acl.principal,
                        acl.host,
                        common.acl.AclOperation.valueOf(in_capitals(acl.operation)),
                        common.acl.AclPermissionType.valueOf(acl.permission_type.upper()),
                    )
                )
                for acl in ENTRIES
            )
        )
        stored = bytes(zk.ResourceZNode.encode(entries))
        assert decode_acls(resource, stored) == set(ENTRIES)
        assert in_order(encode_acls(ENTRIES)) == in_order(stored)


def in_order(payload: bytes) -> Any:
    """Kafka's sets have no order."""
    fields = json.loads(payload)
    return {**fields, "acls": sorted(json.dumps(each, sort_keys=True) for each in fields["acls"])}


@pytest.fixture
def authorized(zookeeper: Any) -> Iterator[BarnabasProcess]:
    settings = {"authorizer.class.name": AUTHORIZER, "super.users": "User:ANONYMOUS"}
    with broker_on(zookeeper, CHROOT, **settings) as process:
        yield process


def test_kafka_acls_on_zookeeper_and_ours_see_each_other(
    kafka: KafkaClasses, zookeeper: Any, authorized: BarnabasProcess
) -> None:
    from confluent_kafka import admin as confluent

    def run(*arguments: str) -> str:
        on_zookeeper = ["--authorizer", AUTHORIZER, "--authorizer-properties"]
        connect = f"zookeeper.connect={zookeeper.address}{CHROOT}"
        done = kafka.jvm.run("kafka.admin.AclCommand", [*on_zookeeper, connect, *arguments])
        assert done.status == 0, done.out + done.err
        return done.out

    admin: Any = confluent.AdminClient({"bootstrap.servers": authorized.bootstrap_servers})  # type: ignore[attr-defined]
    everything = confluent.AclBindingFilter(  # type: ignore[attr-defined]
        confluent.ResourceType.ANY,
        None,
        confluent.ResourcePatternType.ANY,
        None,
        None,
        confluent.AclOperation.ANY,
        confluent.AclPermissionType.ANY,
    )

    def described() -> set[tuple[str, str, str, str]]:
        return {
            (acl.name, acl.resource_pattern_type.name, acl.principal, acl.operation.name)
            for acl in admin.describe_acls(everything).result(PATIENCE_S)
        }

    alice = ("--allow-principal", "User:alice", "--operation", "Read", "--topic", "t")
    bob = ("--deny-principal", "User:bob", "--operation", "All", "--topic", "t")
    prefixed = ("--allow-principal", "User:alice", "--operation", "Write", "--topic", "app-")
    run("--add", *alice)
    run("--add", *bob)
    run("--add", *prefixed, "--resource-pattern-type", "prefixed")
    added = {
        ("t", "LITERAL", "User:alice", "READ"),
        ("t", "LITERAL", "User:bob", "ALL"),
        ("app-", "PREFIXED", "User:alice", "WRITE"),
    }
    wait_until(lambda: described() == added, described)
    run("--remove", "--force", *alice)
    wait_until(lambda: described() == added - {("t", "LITERAL", "User:alice", "READ")}, described)
    carol = confluent.AclBinding(  # type: ignore[attr-defined]
        confluent.ResourceType.GROUP,
        "g",
        confluent.ResourcePatternType.LITERAL,
        "User:carol",
        "*",
        confluent.AclOperation.READ,
        confluent.AclPermissionType.ALLOW,
    )
    for future in admin.create_acls([carol]).values():
        future.result(PATIENCE_S)
    listed = run("--list")
    assert "principal=User:carol, host=*, operation=READ, permissionType=ALLOW" in listed
    assert "principal=User:bob, host=*, operation=ALL, permissionType=DENY" in listed
    assert "User:alice, host=*, operation=READ" not in listed
