"""The watches of clients on znodes: one-shot watches, as ZooKeeper keeps them for each connection.

A data watch (set by a read of data, or of a znode's existence) fires on creation, change and deletion; a child watch
fires when children are created or deleted, and on deletion.

*Source*: ZooKeeper's `WatchManager.java`, `DataTree.java` (`setWatches`).
"""

from collections import deque
from typing import Final, Generic, TypeVar

from barnabas.controller.coordination.interface import EventType, WatchedEvent
from barnabas.controller.coordination.tree import DataTree
from barnabas.controller.coordination.zookeeper_server.messages import WatchKind

Owner = TypeVar("Owner")

WATCH_BYTES: Final = 330
"""The approximate memory of a watch besides its path: mostly a dictionary."""

_CHARACTER_BYTES_MAX: Final = 4
"""The memory per character of a path with a non-ASCII character."""

_DATA_EVENTS: Final = frozenset({EventType.CREATED, EventType.DATA_CHANGED, EventType.DELETED})
_CHILD_EVENTS: Final = frozenset({EventType.CHILDREN_CHANGED, EventType.DELETED})


class WatchTable(Generic[Owner]):
    """All watches of all owners (connections), by path and by owner."""

    def __init__(self) -> None:
        self._data: dict[str, dict[Owner, None]] = {}
        self._children: dict[str, dict[Owner, None]] = {}
        self._gone: deque[Owner] = deque()
        self._held: dict[Owner, tuple[set[str], set[str]]] = {}
        """The paths that each owner watches: for data, and for children."""
        self.held_bytes = 0
        """The approximate memory of all watches."""

    def watch_data(self, path: str, owner: Owner) -> None:
        """Notify `owner` once of the next change of a znode's data, however often it sets the watch before."""
        self._add(path, owner, of_children=False)

    def watch_children(self, path: str, owner: Owner) -> None:
        """Notify `owner` once of the next change of a znode's children, however often it sets the watch before."""
        self._add(path, owner, of_children=True)

    def has(self, path: str, owner: Owner, *, of_data: bool, of_children: bool) -> bool:
        """Whether the owner has a watch of one of these kinds."""
        data, children = self._held.get(owner, ((), ()))
        return (of_data and path in data) or (of_children and path in children)

    def remove(self, path: str, owner: Owner, *, of_data: bool, of_children: bool) -> None:
        """Remove the owner's watches of these kinds."""
        for kind in [False] * of_data + [True] * of_children:
            self._drop(path, owner, of_children=kind)

    def forget(self, owner: Owner) -> None:
        """Mark all watches of a closed owner for removal by `forget_some`."""
        self._gone.append(owner)

    def forget_some(self, count: int) -> bool:
        """Remove this many watches of closed owners; returns whether there are more."""
        while self._gone:
            held = self._held.get(self._gone[0])
            if held is None:
                self._gone.popleft()
            elif count == 0:
                return True
            else:
                of_children = not held[False]
                self._drop(held[of_children].pop(), self._gone[0], of_children=of_children)
                count -= 1
        return False

    def take(self, event: WatchedEvent) -> list[Owner]:
        """The owners to notify of an event, each once; removes their watches."""
        heard: dict[Owner, None] = {}
        for events, of_children in ((_DATA_EVENTS, False), (_CHILD_EVENTS, True)):
            if event.type in events:
                for owner in self._owners(of_children).pop(event.path, {}):
                    heard[owner] = None
                    self._release(event.path, owner, of_children=of_children)
        return list(heard)

    def _owners(self, of_children: bool) -> dict[str, dict[Owner, None]]:
        return self._children if of_children else self._data

    def _add(self, path: str, owner: Owner, *, of_children: bool) -> None:
        held = self._held.setdefault(owner, (set(), set()))[of_children]
        if path not in held:
            held.add(path)
            self._owners(of_children).setdefault(path, {})[owner] = None
            self.held_bytes += _watch_bytes(path)

    def _drop(self, path: str, owner: Owner, *, of_children: bool) -> None:
        table = self._owners(of_children)
        owners = table.get(path, {})
        if owner in owners:
            del owners[owner]
            if not owners:
                del table[path]
            self._release(path, owner, of_children=of_children)

    def _release(self, path: str, owner: Owner, *, of_children: bool) -> None:
        self.held_bytes -= _watch_bytes(path)
        held = self._held[owner]
        held[of_children].discard(path)
        if not any(held):
            del self._held[owner]


def _watch_bytes(path: str) -> int:
    """The approximate memory of a watch of a path; constant, unlike `sys.getsizeof`."""
    return WATCH_BYTES + len(path) * (1 if path.isascii() else _CHARACTER_BYTES_MAX)


def missed_event(tree: DataTree, relative_zxid: int, kind: WatchKind, path: str) -> EventType | None:
    """The event that a client with this watch has missed since `relative_zxid`, None if there is none."""
    znode = tree.znode(path)
    if kind is WatchKind.CREATION:
        return None if znode is None else EventType.CREATED
    if znode is None:
        return EventType.DELETED
    if kind is WatchKind.CHILDREN:
        return EventType.CHILDREN_CHANGED if znode.pzxid > relative_zxid else None
    return EventType.DATA_CHANGED if znode.mzxid > relative_zxid else None
