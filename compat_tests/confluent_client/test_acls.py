"""ACLs with librdkafka's administration, and what it is told when they do not allow something."""

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tools.waiting import PATIENCE_S

AUTHORIZER = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
EVERYTHING = AclBindingFilter(
    ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
)


def binding(name: str, pattern: ResourcePatternType, operation: AclOperation, principal: str = "User:a") -> AclBinding:
    return AclBinding(ResourceType.TOPIC, name, pattern, principal, "*", operation, AclPermissionType.ALLOW)


READ = binding("t", ResourcePatternType.LITERAL, AclOperation.READ)
WRITE = binding("t", ResourcePatternType.LITERAL, AclOperation.WRITE)
PREFIXED = binding("app-", ResourcePatternType.PREFIXED, AclOperation.ALL)


def result(futures: Any) -> list[Any]:
    return [future.result(PATIENCE_S) for future in futures.values()]


def test_acls_are_created_described_and_deleted(start_cluster: Callable[..., Any]) -> None:
    cluster = start_cluster({**AUTHORIZER, "super.users": "User:ANONYMOUS"})
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    assert result(admin.create_acls([READ, WRITE, PREFIXED])) == [None] * 3
    assert set(admin.describe_acls(EVERYTHING).result(PATIENCE_S)) == {READ, WRITE, PREFIXED}
    matching = AclBindingFilter(
        ResourceType.TOPIC, "app-1", ResourcePatternType.MATCH, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    assert admin.describe_acls(matching).result(PATIENCE_S) == [PREFIXED]
    reading = AclBindingFilter(
        ResourceType.TOPIC, "t", ResourcePatternType.LITERAL, None, None, AclOperation.READ, AclPermissionType.ANY
    )
    assert result(admin.delete_acls([reading])) == [[READ]]
    assert set(admin.describe_acls(EVERYTHING).result(PATIENCE_S)) == {WRITE, PREFIXED}
    refused = binding("t", ResourcePatternType.LITERAL, AclOperation.READ, principal="nobody")
    with pytest.raises(KafkaException) as failure:
        result(admin.create_acls([refused]))
    assert failure.value.args[0].code() == KafkaError.INVALID_REQUEST


def test_who_is_not_allowed_to_is_told(start_cluster: Callable[..., Any]) -> None:
    """A client that has denied itself to alter the cluster; Kafka's broker, which is anonymous, too, goes on."""
    cluster = start_cluster({**AUTHORIZER, "allow.everyone.if.no.acl.found": "true"})
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    on_cluster = (ResourceType.BROKER, "kafka-cluster", ResourcePatternType.LITERAL, "User:ANONYMOUS", "*")
    allowed = AclBinding(*on_cluster, AclOperation.ALL, AclPermissionType.ALLOW)
    denied = AclBinding(*on_cluster, AclOperation.ALTER, AclPermissionType.DENY)
    assert result(admin.create_acls([allowed, denied])) == [None, None]
    for change in (lambda: admin.create_acls([READ]), lambda: admin.delete_acls([EVERYTHING])):
        with pytest.raises(KafkaException) as failure:
            result(change())
        assert failure.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED
    assert set(admin.describe_acls(EVERYTHING).result(PATIENCE_S)) == {allowed, denied}
