"""ZooKeeper's data tree as a pure state machine: the changes, results and events of a transaction.

`DataTree.prepare` computes a transaction and changes nothing; `DataTree.commit` applies a prepared transaction, which
is durable by then. Nothing here uses threads, files or clocks.

*Source*: ZooKeeper's `PrepRequestProcessor.java` (checks, sequence numbers) and `DataTree.java` (versions).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.controller.coordination.acl import ADMIN, CREATE, DELETE, READ, WORLD_ANYONE, WRITE, Acl
from barnabas.controller.coordination.interface import (
    ANY_VERSION,
    BadVersion,
    Check,
    CoordinationError,
    Create,
    Delete,
    EventType,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    OperationResult,
    QuotaExceeded,
    SetData,
    Stat,
    WatchedEvent,
)
from barnabas.controller.coordination.sorted_paths import SortedPaths

if TYPE_CHECKING:
    from barnabas.controller.coordination.access import Access

MAX_ZNODE_BYTES = 1024 * 1024
"""ZooKeeper's `jute.maxbuffer`: the maximum size of a znode."""

ZNODE_BYTES: Final = 550
"""The approximate memory of a znode besides its path, data and ACL: its fields, and its places in the indexes."""

ACL_ENTRY_BYTES: Final = 300
"""The approximate memory of an entry of an ACL besides the name of its identity."""

_CHARACTER_BYTES_MAX: Final = 4
"""The memory per character of a text with a non-ASCII character."""

_REFUSED: Final = re.compile(r"[\x01-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")
"""Characters that the path of a new znode may not contain (`PathUtils.validatePath`): control characters, private use,
specials, and those above U+FFFF, which are surrogates to ZooKeeper.
"""


class Znode(NamedTuple):
    """One stored node. `children_created` counts creations only: sequence numbers and `Stat.cversion` are derived from
    it, as in ZooKeeper.
    """

    data: bytes
    czxid: int
    mzxid: int
    pzxid: int
    version: int
    children_created: int
    ctime_ms: int
    mtime_ms: int
    ephemeral_owner: int
    acl: tuple[Acl, ...] = (WORLD_ANYONE,)
    acl_version: int = 0


class SetAcl(NamedTuple):
    """Replace a znode's ACL if that has the expected version. Its result is the new `Stat`. Only clients of our own
    server do this: it is no operation of a `CoordinationStore`.
    """

    path: str
    acl: Sequence[Acl]
    version: int = ANY_VERSION


Change = Operation | SetAcl

ROOT = Znode(
    data=b"", czxid=0, mzxid=0, pzxid=0, version=0, children_created=0, ctime_ms=0, mtime_ms=0, ephemeral_owner=0
)


@dataclass(slots=True)
class Transaction:
    """A prepared `multi`: the new state of every znode that it touches (None = deleted), its results and its events in
    the order of operations. `created` contains the znode of each creation, by operation index: later operations may
    change or delete it.
    """

    zxid: int
    changes: dict[str, Znode | None] = field(default_factory=dict)
    results: list[OperationResult] = field(default_factory=list)
    created: dict[int, Znode] = field(default_factory=dict)
    events: list[WatchedEvent] = field(default_factory=list)


class BadArguments(ValueError):
    """An invalid path or size of a znode; `operation_index` is its index in a transaction."""

    operation_index: int | None = None


def validate_path(path: str) -> None:
    """Check ZooKeeper's rules for a path; raises BadArguments."""
    if path == "/":
        return
    if not path.startswith("/") or path.endswith("/"):
        raise BadArguments(f"znode path {path!r} must start with a slash and not end with one")
    if "\0" in path or any(part in {"", ".", ".."} for part in path[1:].split("/")):
        raise BadArguments(f"znode path {path!r} has an empty, dotted or NUL component")
    if not path.isascii() and any("\ud800" <= character <= "\udfff" for character in path):
        raise BadArguments(f"znode path {path!r} is not Unicode text")


def validate_operation(operation: Change) -> None:
    """Check the path of an operation. The path of a sequential znode has to be valid with its number: it may end with a
    slash, and the number is the whole name then. As in ZooKeeper any existing znode may be deleted, except the root.
    Raises BadArguments.
    """
    is_sequential = isinstance(operation, Create) and operation.sequence
    validate_path(f"{operation.path}0" if is_sequential else operation.path)
    if isinstance(operation, Delete):
        if operation.path == "/":
            raise BadArguments("znode path '/' cannot be deleted")
    elif _REFUSED.search(operation.path):
        raise BadArguments(f"znode path {operation.path!r} has a character that is refused")


def parent_of(path: str) -> str:
    """The path of the parent znode; not for the root, except as the path of a sequential znode."""
    return path[: path.rindex("/")] or "/"


def name_of(path: str) -> str:
    """Last component of a path."""
    return path[path.rindex("/") + 1 :]


def stat_of(znode: Znode, num_children: int) -> Stat:
    """The metadata of a znode for sessions."""
    return Stat(
        czxid=znode.czxid,
        mzxid=znode.mzxid,
        pzxid=znode.pzxid,
        version=znode.version,
        cversion=znode.children_created * 2 - num_children,
        ctime_ms=znode.ctime_ms,
        mtime_ms=znode.mtime_ms,
        ephemeral_owner=znode.ephemeral_owner,
        data_length=len(znode.data),
        num_children=num_children,
        acl_version=znode.acl_version,
    )


def znode_bytes(path: str, znode: Znode | None) -> int:
    """The approximate memory of a znode; 0 for None. Constant, unlike `sys.getsizeof`."""
    if znode is None:
        return 0
    acl = 0 if znode.acl == ROOT.acl else sum(ACL_ENTRY_BYTES + _text_bytes(each.identity) for each in znode.acl)
    return ZNODE_BYTES + 2 * _text_bytes(path) + len(znode.data) + acl  # its name is kept with its parent's, too


def _text_bytes(text: str) -> int:
    return len(text) * (1 if text.isascii() else _CHARACTER_BYTES_MAX)


class DataTree:
    """All znodes, with indexes of children and of sessions' ephemeral znodes; owned by one thread. `held_bytes` is
    their approximate memory."""

    def __init__(self, znodes: Mapping[str, Znode] | None = None) -> None:
        self._znodes: dict[str, Znode] = {"/": ROOT, **(znodes or {})}
        self._children: dict[str, set[str]] = {}
        self._ephemerals: dict[int, set[str]] = {}
        self._sorted = SortedPaths(self._znodes)
        self.held_bytes = sum(znode_bytes(*each) for each in self._znodes.items())
        for path, znode in self._znodes.items():
            if path != "/":
                self._children.setdefault(parent_of(path), set()).add(name_of(path))
            if znode.ephemeral_owner:
                self._ephemerals.setdefault(znode.ephemeral_owner, set()).add(path)

    def get(self, path: str) -> tuple[bytes, Stat] | None:
        """Data and metadata, or None if the znode does not exist."""
        znode = self._znodes.get(path)
        return None if znode is None else (znode.data, stat_of(znode, self.child_count(path)))

    def children(self, path: str) -> list[str] | None:
        """Sorted names, or None if the znode does not exist."""
        return sorted(self._children.get(path, ())) if path in self._znodes else None

    def ephemerals(self, session_id: int | None = None) -> list[str]:
        """Ephemeral znodes of one session, or of all of them."""
        if session_id is not None:
            return sorted(self._ephemerals.get(session_id, ()))
        return sorted(path for paths in self._ephemerals.values() for path in paths)

    def ephemeral_count(self, session_id: int) -> int:
        """The number of a session's ephemeral znodes."""
        return len(self._ephemerals.get(session_id, ()))

    def prepare(
        self,
        operations: Sequence[Change],
        zxid: int,
        now_ms: int,
        session_id: int,
        access: Access | None = None,
        bytes_max: int | None = None,
    ) -> Transaction:
        """Compute a transaction; raises the error of the first impossible operation, with its index. With `access` the
        ACLs of znodes count, and new ones have the ACLs that it requests. With `bytes_max` a transaction that takes
        more memory is refused if all znodes would take more than that then: QuotaExceeded.
        """
        preparation = _Preparation(self, Transaction(zxid), now_ms, session_id, access)
        for index, operation in enumerate(operations):
            try:
                preparation.add(operation)
            except (CoordinationError, BadArguments) as error:
                error.operation_index = index
                raise
        if bytes_max is not None:
            self._require_room(operations, preparation.transaction, bytes_max)
        return preparation.transaction

    def _require_room(self, operations: Sequence[Change], transaction: Transaction, bytes_max: int) -> None:
        """Raises: QuotaExceeded, at the first operation that may take memory."""
        growth = sum(self._growth(path, znode) for path, znode in transaction.changes.items())
        if growth > 0 and self.held_bytes + growth > bytes_max:
            taking = (index for index, each in enumerate(operations) if not isinstance(each, Delete | Check))
            index = next(taking)
            error = QuotaExceeded(operations[index].path, f"all znodes may take {bytes_max} bytes")
            error.operation_index = index
            raise error

    def _growth(self, path: str, znode: Znode | None) -> int:
        return znode_bytes(path, znode) - znode_bytes(path, self._znodes.get(path))

    def commit(self, transaction: Transaction) -> None:
        """Apply a prepared transaction; no other may have been committed since it was prepared."""
        for path, znode in transaction.changes.items():
            self._note_owner(path, znode)
            self.held_bytes += self._growth(path, znode)
            if znode is not None:
                if path not in self._znodes:
                    self._sorted.add(path)
                self._znodes[path] = znode
                if path != "/":
                    self._children.setdefault(parent_of(path), set()).add(name_of(path))
            elif self._znodes.pop(path, None) is not None:
                self._sorted.remove(path)
                siblings = self._children[parent_of(path)]  # not of one that came and goes with this transaction
                siblings.discard(name_of(path))
                if not siblings:
                    del self._children[parent_of(path)]

    def _note_owner(self, path: str, znode: Znode | None) -> None:
        before = self._znodes.get(path, ROOT).ephemeral_owner
        after = 0 if znode is None else znode.ephemeral_owner
        if before == after:
            return
        if before:
            self._ephemerals[before].remove(path)
            if not self._ephemerals[before]:
                del self._ephemerals[before]
        if after:
            self._ephemerals.setdefault(after, set()).add(path)

    def znode(self, path: str) -> Znode | None:
        """A znode as stored, or None."""
        return self._znodes.get(path)

    def __len__(self) -> int:
        """The number of znodes, including the root."""
        return len(self._znodes)

    def descendant_count(self, path: str) -> int:
        """The number of znodes below a path."""
        return self._sorted.count_below(path) - (path == "/")

    def child_count(self, path: str) -> int:
        """The number of a znode's children; 0 if it does not exist."""
        return len(self._children.get(path, ()))


class _Preparation:
    """A transaction that is being computed operation by operation: later ones see the changes of earlier ones."""

    def __init__(
        self, tree: DataTree, transaction: Transaction, now_ms: int, session_id: int, access: Access | None
    ) -> None:
        self._tree = tree
        self._access = access
        self.transaction = transaction
        self._now_ms = now_ms
        self._session_id = session_id
        self._child_count: dict[str, int] = {}

    def add(self, operation: Change) -> None:
        validate_operation(operation)
        if isinstance(operation, Create):
            self.transaction.results.append(self._create(operation))
        elif isinstance(operation, SetData):
            self.transaction.results.append(self._set(operation))
        elif isinstance(operation, Delete):
            self._delete(operation)
            self.transaction.results.append(None)
        elif isinstance(operation, SetAcl):
            self.transaction.results.append(self._set_acl(operation))
        else:
            self._expect(operation, READ)
            self.transaction.results.append(None)

    def _create(self, operation: Create) -> str:
        if len(operation.data) > MAX_ZNODE_BYTES:
            raise BadArguments(f"{operation.path}: {len(operation.data)} bytes are more than a znode may hold")
        if operation.path == "/" and not operation.sequence:
            raise NodeExists("/")
        acl = self._requested_acl(operation.path)
        parent_path = parent_of(operation.path)
        parent = self._current(parent_path)
        if parent is None:
            raise NoNode(parent_path)
        self._check(parent, CREATE, operation.path)
        if parent.ephemeral_owner:
            raise NoChildrenForEphemerals(parent_path)
        path = f"{operation.path}{parent.children_created:010d}" if operation.sequence else operation.path
        if self._current(path) is not None:
            raise NodeExists(path)
        zxid = self.transaction.zxid
        created = Znode(
            data=operation.data,
            czxid=zxid,
            mzxid=zxid,
            pzxid=zxid,
            version=0,
            children_created=0,
            ctime_ms=self._now_ms,
            mtime_ms=self._now_ms,
            ephemeral_owner=self._session_id if operation.ephemeral else 0,
            acl=acl,
        )
        self.transaction.changes[path] = self.transaction.created[len(self.transaction.results)] = created
        self.transaction.changes[parent_path] = parent._replace(
            children_created=parent.children_created + 1, pzxid=zxid
        )
        self._child_count[parent_path] = self._children_of(parent_path) + 1
        self._child_count[path] = 0
        self._report(EventType.CREATED, path)
        self._report(EventType.CHILDREN_CHANGED, parent_path)
        return path

    def _set(self, operation: SetData) -> Stat:
        if len(operation.data) > MAX_ZNODE_BYTES:
            raise BadArguments(f"{operation.path}: {len(operation.data)} bytes are more than a znode may hold")
        znode = self._expect(operation, WRITE)
        changed = znode._replace(
            data=operation.data,
            version=znode.version + 1,
            mzxid=self.transaction.zxid,
            mtime_ms=self._now_ms,
        )
        self.transaction.changes[operation.path] = changed
        self._report(EventType.DATA_CHANGED, operation.path)
        return stat_of(changed, self._children_of(operation.path))

    def _delete(self, operation: Delete) -> None:
        self._expect(operation, 0)
        if self._children_of(operation.path):
            raise NotEmpty(operation.path)
        parent_path = parent_of(operation.path)
        parent = self._current(parent_path)
        assert parent is not None, f"{operation.path} has no parent"
        self.transaction.changes[operation.path] = None
        self.transaction.changes[parent_path] = parent._replace(pzxid=self.transaction.zxid)
        self._child_count[parent_path] = self._children_of(parent_path) - 1
        self._report(EventType.DELETED, operation.path)
        self._report(EventType.CHILDREN_CHANGED, parent_path)

    def _set_acl(self, operation: SetAcl) -> Stat:
        acl = tuple(operation.acl)
        if self._access is not None:
            acl = self._access.stored_acl(acl, operation.path)
        znode = self._current(operation.path)
        if znode is None:
            raise NoNode(operation.path)
        self._check(znode, ADMIN, operation.path)
        if operation.version not in {ANY_VERSION, znode.acl_version}:
            raise BadVersion(operation.path, f"expected version {operation.version}, found {znode.acl_version}")
        changed = znode._replace(acl=acl, acl_version=znode.acl_version + 1)
        self.transaction.changes[operation.path] = changed
        return stat_of(changed, self._children_of(operation.path))

    def _requested_acl(self, path: str) -> tuple[Acl, ...]:
        """The ACL of a new znode. Raises: InvalidAcl."""
        if self._access is None:
            return (WORLD_ANYONE,)
        return self._access.stored_acl(self._access.requested.get(len(self.transaction.results), (WORLD_ANYONE,)), path)

    def _check(self, znode: Znode, permission: int, path: str) -> None:
        """Raises: NoAuth."""
        if self._access is not None:
            self._access.check(znode.acl, permission, path)

    def _expect(self, operation: SetData | Delete | Check, permission: int) -> Znode:
        """The znode of an operation, which needs a permission for it: a deletion needs DELETE for the parent."""
        znode = self._current(operation.path)
        if znode is None:
            raise NoNode(operation.path)
        if permission:
            self._check(znode, permission, operation.path)
        elif (parent := self._current(parent_of(operation.path))) is not None:
            self._check(parent, DELETE, operation.path)
        if operation.version not in {ANY_VERSION, znode.version}:
            raise BadVersion(operation.path, f"expected version {operation.version}, found {znode.version}")
        return znode

    def _current(self, path: str) -> Znode | None:
        return self.transaction.changes[path] if path in self.transaction.changes else self._tree.znode(path)

    def _children_of(self, path: str) -> int:
        known = self._child_count.get(path)
        return self._tree.child_count(path) if known is None else known

    def _report(self, event_type: EventType, path: str) -> None:
        self.transaction.events.append(WatchedEvent(event_type, path))
