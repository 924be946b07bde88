"""The errors of a session with ZooKeeper, out of kazoo's."""

from typing import Final

from kazoo import exceptions

from barnabas.controller.coordination.interface import (
    BadVersion,
    ConnectionLost,
    CoordinationError,
    Create,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    SessionExpired,
    StoreUnavailable,
)


class ConnectionTimedOut(StoreUnavailable):
    """No ZooKeeper server could be reached in time."""


class LoginRefused(StoreUnavailable):
    """ZooKeeper does not accept the login of this broker."""


class NotPermitted(StoreUnavailable):
    """The ACL of a znode does not permit the operation."""


class NotSupported(StoreUnavailable):
    """The server does not support requests of this type."""


_ERRORS: Final[dict[type[Exception], type[CoordinationError]]] = {
    exceptions.NoNodeError: NoNode,
    exceptions.NodeExistsError: NodeExists,
    exceptions.BadVersionError: BadVersion,
    exceptions.NotEmptyError: NotEmpty,
    exceptions.NoChildrenForEphemeralsError: NoChildrenForEphemerals,
    exceptions.SessionExpiredError: SessionExpired,
    exceptions.ConnectionClosedError: SessionExpired,
    exceptions.ConnectionLoss: ConnectionLost,
}


def error_of(error: Exception, path: str) -> CoordinationError:
    """The store's error for kazoo's, at this znode."""
    for kind, ours in _ERRORS.items():
        if isinstance(error, kind):
            return ours(path)
    if isinstance(error, exceptions.NoAuthError):
        return NotPermitted(path, "ZooKeeper does not permit it: the znode has an ACL for another login")
    if isinstance(error, exceptions.InvalidACLError):
        return NotPermitted(path, "ZooKeeper does not know who this broker is (zookeeper.set.acl needs a login)")
    kind = NotSupported if isinstance(error, exceptions.UnimplementedError) else StoreUnavailable
    return kind(path, f"ZooKeeper returned {type(error).__name__} {error}".rstrip())


def culprit_of(operation: Operation, error: Exception) -> str:
    """The znode at which an operation failed: for a creation without a parent that is the parent."""
    if isinstance(operation, Create) and isinstance(error, exceptions.NoNodeError):
        return operation.path.rpartition("/")[0] or "/"
    return operation.path
