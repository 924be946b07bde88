"""Bit fields of allowed operations, for clients that request them (KIP-430).

Without an authorizer every operation that a resource type supports is allowed (AuthHelper.authorizedOperations,
AclEntry.supportedOperations); bit n stands for AclOperation code n.
"""

NOT_ASKED = -(2**31)
"""The value in responses when the client did not request it."""

(
    _READ,
    _WRITE,
    _CREATE,
    _DELETE,
    _ALTER,
    _DESCRIBE,
    _CLUSTER_ACTION,
    _DESCRIBE_CONFIGS,
    _ALTER_CONFIGS,
    _IDEMPOTENT_WRITE,
) = range(3, 13)


def _bits(*operations: int) -> int:
    return sum(1 << operation for operation in operations)


TOPIC_OPERATIONS = _bits(_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS)
GROUP_OPERATIONS = _bits(_READ, _DELETE, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS)
CLUSTER_OPERATIONS = _bits(
    _CREATE, _ALTER, _DESCRIBE, _CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE
)
