"""Which client watches which znode: one-shot watches, as ZooKeeper keeps them for each connection.

A watch of data (set by a read of data, or of whether there is a znode) hears of creation, change and deletion; one of
children hears of children that come and go, and of deletion.

*Source*: ZooKeeper's `WatchManager.java`, `DataTree.java` (`setWatches`).
"""

from collections.abc import Iterator, Sequence
from typing import Final, Generic, TypeVar

from barnabas.controller.coordination.interface import EventType, WatchedEvent
from barnabas.controller.coordination.tree import DataTree

Owner = TypeVar("Owner")

WATCH_BYTES: Final = 200
"""What a watch takes besides its path, about: a dictionary of its own, mostly."""

_DATA_EVENTS: Final = frozenset({EventType.CREATED, EventType.DATA_CHANGED, EventType.DELETED})
_CHILD_EVENTS: Final = frozenset({EventType.CHILDREN_CHANGED, EventType.DELETED})


class WatchTable(Generic[Owner]):
    """All watches of all owners (connections)."""

    def __init__(self) -> None:
        self._data: dict[str, dict[Owner, None]] = {}
        self._children: dict[str, dict[Owner, None]] = {}
        self._counts: dict[Owner, int] = {}
        self.held_bytes = 0
        """What all of them take, about."""

    def watch_data(self, path: str, owner: Owner) -> None:
        """The same watch set twice is one."""
        self._add(self._data, path, owner)

    def watch_children(self, path: str, owner: Owner) -> None:
        """The same watch set twice is one."""
        self._add(self._children, path, owner)

    def has(self, path: str, owner: Owner, *, of_data: bool, of_children: bool) -> bool:
        """Whether the owner has a watch of one of these kinds."""
        tables = [self._data] * of_data + [self._children] * of_children
        return any(owner in table.get(path, {}) for table in tables)

    def remove(self, path: str, owner: Owner, *, of_data: bool, of_children: bool) -> None:
        """Forget the owner's watches of these kinds."""
        for table in [self._data] * of_data + [self._children] * of_children:
            self._drop(table, path, owner)

    def forget(self, owner: Owner) -> None:
        """Forget all watches of an owner."""
        if owner in self._counts:
            for table in (self._data, self._children):
                for path in [path for path, owners in table.items() if owner in owners]:
                    self._drop(table, path, owner)

    def take(self, event: WatchedEvent) -> list[Owner]:
        """Who hears of an event, each once; their watches end with it."""
        heard: dict[Owner, None] = {}
        for table, events in ((self._data, _DATA_EVENTS), (self._children, _CHILD_EVENTS)):
            if event.type in events:
                for owner in table.pop(event.path, {}):
                    heard[owner] = None
                    self._count_down(event.path, owner)
        return list(heard)

    def _add(self, table: dict[str, dict[Owner, None]], path: str, owner: Owner) -> None:
        owners = table.setdefault(path, {})
        if owner not in owners:
            owners[owner] = None
            self._counts[owner] = self._counts.get(owner, 0) + 1
            self.held_bytes += WATCH_BYTES + len(path)

    def _drop(self, table: dict[str, dict[Owner, None]], path: str, owner: Owner) -> None:
        owners = table.get(path, {})
        if owner in owners:
            del owners[owner]
            if not owners:
                del table[path]
            self._count_down(path, owner)

    def _count_down(self, path: str, owner: Owner) -> None:
        self.held_bytes -= WATCH_BYTES + len(path)
        self._counts[owner] -= 1
        if not self._counts[owner]:
            del self._counts[owner]


def missed_data_events(
    tree: DataTree, relative_zxid: int, paths: Sequence[str]
) -> Iterator[tuple[str, EventType | None]]:
    """For each watch that a client had on data: what it missed since that zxid, None if nothing."""
    for path in paths:
        znode = tree.znode(path)
        if znode is None:
            yield path, EventType.DELETED
        else:
            yield path, EventType.DATA_CHANGED if znode.mzxid > relative_zxid else None


def missed_creations(tree: DataTree, paths: Sequence[str]) -> Iterator[tuple[str, EventType | None]]:
    """The same for each watch on a znode that was not there."""
    for path in paths:
        yield path, None if tree.znode(path) is None else EventType.CREATED


def missed_child_events(
    tree: DataTree, relative_zxid: int, paths: Sequence[str]
) -> Iterator[tuple[str, EventType | None]]:
    """The same for each watch on children."""
    for path in paths:
        znode = tree.znode(path)
        if znode is None:
            yield path, EventType.DELETED
        else:
            yield path, EventType.CHILDREN_CHANGED if znode.pzxid > relative_zxid else None
