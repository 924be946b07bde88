"""The operations that a client may be allowed on a resource, and the bit fields of allowed ones (KIP-430).

Without an authorizer every operation that a resource type supports is allowed (AuthHelper.authorizedOperations,
AclEntry.supportedOperations); bit n stands for AclOperation code n.
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final

NOT_ASKED: Final = -(2**31)
"""The value in responses when the client did not request it."""

CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the one resource of type CLUSTER (Resource.CLUSTER_NAME)."""


class Operation(IntEnum):
    """Kafka's AclOperation. In an ACL, ALL stands for each operation; UNKNOWN is one of a newer Kafka: such an ACL
    neither allows nor denies anything here, and stays in its znode."""

    UNKNOWN = 0
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class ResourceType(IntEnum):
    """Kafka's ResourceType."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


_CONFIGS: Final = (Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)

SUPPORTED_OPERATIONS: Final[Mapping[ResourceType, tuple[Operation, ...]]] = MappingProxyType(
    {
        ResourceType.TOPIC: (
            Operation.READ,
            Operation.WRITE,
            Operation.CREATE,
            Operation.DELETE,
            Operation.ALTER,
            Operation.DESCRIBE,
            *_CONFIGS,
        ),
        ResourceType.GROUP: (Operation.READ, Operation.DELETE, Operation.DESCRIBE, *_CONFIGS),
        ResourceType.CLUSTER: (
            Operation.CREATE,
            Operation.ALTER,
            Operation.DESCRIBE,
            Operation.CLUSTER_ACTION,
            Operation.IDEMPOTENT_WRITE,
            *_CONFIGS,
        ),
        ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
        ResourceType.DELEGATION_TOKEN: (Operation.DESCRIBE,),
        ResourceType.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
    }
)
"""The operations of each type of resource (AclEntry.supportedOperations; TWO_PHASE_COMMIT does not exist here)."""


def bits(operations: Iterable[Operation]) -> int:
    """The bit field of operations in responses."""
    return sum(1 << operation for operation in operations)


TOPIC_OPERATIONS: Final = bits(SUPPORTED_OPERATIONS[ResourceType.TOPIC])
GROUP_OPERATIONS: Final = bits(SUPPORTED_OPERATIONS[ResourceType.GROUP])
CLUSTER_OPERATIONS: Final = bits(SUPPORTED_OPERATIONS[ResourceType.CLUSTER])
