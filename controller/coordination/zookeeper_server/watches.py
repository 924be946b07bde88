"""Which client watches which znode: one-shot watches, as ZooKeeper keeps them for each connection.

A watch of data (set by a read of data, or of whether there is a znode) hears of creation, change and deletion; one of
children hears of children that come and go, and of deletion.

*Source*: ZooKeeper's `WatchManager.java`, `DataTree.java` (`setWatches`).
"""

from collections import deque
from typing import Final, Generic, TypeVar

from barnabas.controller.coordination.interface import EventType, WatchedEvent
from barnabas.controller.coordination.tree import DataTree
from barnabas.controller.coordination.zookeeper_server.messages import WatchKind

Owner = TypeVar("Owner")

WATCH_BYTES: Final = 330
"""What a watch takes besides its path, about: a dictionary of its own, mostly."""

_CHARACTER_BYTES_MAX: Final = 4
"""What each character of a path may take in memory, as soon as one of them is not ASCII."""

_DATA_EVENTS: Final = frozenset({EventType.CREATED, EventType.DATA_CHANGED, EventType.DELETED})
_CHILD_EVENTS: Final = frozenset({EventType.CHILDREN_CHANGED, EventType.DELETED})


class WatchTable(Generic[Owner]):
    """All watches of all owners (connections), by path and by owner."""

    def __init__(self) -> None:
        self._data: dict[str, dict[Owner, None]] = {}
        self._children: dict[str, dict[Owner, None]] = {}
        self._gone: deque[Owner] = deque()
        self._held: dict[Owner, tuple[set[str], set[str]]] = {}
        """The paths that each owner watches: of data, and of children."""
        self.held_bytes = 0
        """What all of them take, about."""

    def watch_data(self, path: str, owner: Owner) -> None:
        """Tell `owner` once of the next change of a znode's data, however often it asks for that before."""
        self._add(path, owner, of_children=False)

    def watch_children(self, path: str, owner: Owner) -> None:
        """Tell `owner` once of the next change of a znode's children, however often it asks for that before."""
        self._add(path, owner, of_children=True)

    def has(self, path: str, owner: Owner, *, of_data: bool, of_children: bool) -> bool:
        """Whether the owner has a watch of one of these kinds."""
        data, children = self._held.get(owner, ((), ()))
        return (of_data and path in data) or (of_children and path in children)

    def remove(self, path: str, owner: Owner, *, of_data: bool, of_children: bool) -> None:
        """Forget the owner's watches of these kinds."""
        for kind in [False] * of_data + [True] * of_children:
            self._drop(path, owner, of_children=kind)

    def forget(self, owner: Owner) -> None:
        """Forget all watches of an owner that is gone, by `forget_some`."""
        self._gone.append(owner)

    def forget_some(self, count: int) -> bool:
        """Forget so many watches of owners that are gone; whether there are more of them."""
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
        """The owners that hear of an event, each once; their watches for it end."""
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
    """What a watch of a path takes, about; the same whenever it is asked, which `sys.getsizeof` does not tell."""
    return WATCH_BYTES + len(path) * (1 if path.isascii() else _CHARACTER_BYTES_MAX)


def missed_event(tree: DataTree, relative_zxid: int, kind: WatchKind, path: str) -> EventType | None:
    """What a client that watched this before it connected anew has missed since `relative_zxid`, None if nothing."""
    znode = tree.znode(path)
    if kind is WatchKind.CREATION:
        return None if znode is None else EventType.CREATED
    if znode is None:
        return EventType.DELETED
    if kind is WatchKind.CHILDREN:
        return EventType.CHILDREN_CHANGED if znode.pzxid > relative_zxid else None
    return EventType.DATA_CHANGED if znode.mzxid > relative_zxid else None
