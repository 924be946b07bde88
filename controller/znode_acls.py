"""The ACLs of znodes in a cluster with `zookeeper.set.acl`.

The broker that creates a znode, and whoever logs in to ZooKeeper as the same user, may do everything; everybody may
read, except what has secrets. `/consumers` stays open: consumers of former versions write there.

*Source*: kafka 3.9.1 `ZkData.scala` (`defaultAcls`, `SensitiveRootPaths`).
"""

from typing import Final

from barnabas.controller.coordination.acl import CREATOR, WORLD_ANYONE, WORLD_READS, Acl

_OPEN_PATH: Final = "/consumers"
_SENSITIVE: Final = ("/config/users", "/config/brokers", "/delegation_token/tokens")
"""The beginnings of paths with secrets: SCRAM credentials, passwords of brokers, tokens."""


def acls_of(path: str) -> tuple[Acl, ...]:
    """The ACL of a new znode at this path, below the chroot."""
    if path == _OPEN_PATH:
        return (WORLD_ANYONE,)
    return (CREATOR,) if path.startswith(_SENSITIVE) else (CREATOR, WORLD_READS)
