"""Searches that the server of ZooKeeper's protocol avoids, however many znodes and watches there are."""

import random

from barnabas.controller.coordination.interface import Create, Delete, EventType, SetData, WatchedEvent
from barnabas.controller.coordination.sorted_paths import PIECE_MAX, SortedPaths
from barnabas.controller.coordination.tree import ROOT, DataTree, Znode
from barnabas.controller.coordination.zookeeper_server.watches import WatchTable


class CountedOwner:
    """An owner of watches that counts how often it is compared."""

    def __init__(self) -> None:
        self.looked_for = 0

    def __hash__(self) -> int:
        self.looked_for += 1
        return id(self)


def test_a_closed_connection_does_not_search_others_watches() -> None:
    """The close of one connection took the server 0.1 s beside 500,000 watches of others, and a thousand connections
    may close."""
    table, one, other = WatchTable[CountedOwner](), CountedOwner(), CountedOwner()
    for number in range(1_000):
        table.watch_data(f"/{number}", other)
        table.watch_children(f"/{number}", other)
    table.watch_data("/1", one)
    one.looked_for = 0
    table.forget(one)
    assert not table.forget_some(1)
    assert one.looked_for < 20
    assert table.take(WatchedEvent(EventType.DATA_CHANGED, "/1")) == [other]
    table.forget(other)
    assert table.forget_some(1_000)
    assert not table.forget_some(1_000)
    assert table.held_bytes == 0


class CountedZnode(Znode):
    """A znode that counts the reads of its owner."""

    asked = 0

    @property
    def ephemeral_owner(self) -> int:
        CountedZnode.asked += 1
        return self[Znode._fields.index("ephemeral_owner")]


def test_a_session_that_ends_is_not_looked_for_among_all_znodes() -> None:
    """3,000 sessions that ended at once, beside 200,000 znodes, took minutes in which no client was served."""
    persistent = CountedZnode(*ROOT)
    tree = DataTree({f"/{number}": persistent for number in range(1_000)} | {"/a": ROOT._replace(ephemeral_owner=7)})
    CountedZnode.asked = 0
    assert tree.ephemerals(7) == ["/a"]
    assert tree.ephemerals(8) == []
    assert CountedZnode.asked == 0
    tree.commit(tree.prepare([Create("/b", ephemeral=True), Create("/c", ephemeral=True), Delete("/a")], 1, 0, 8))
    assert (tree.ephemerals(7), tree.ephemerals(8), tree.ephemerals()) == ([], ["/b", "/c"], ["/b", "/c"])
    tree.commit(tree.prepare([Delete("/b"), SetData("/c", b"x")], 2, 0, 7))
    assert (tree.ephemerals(7), tree.ephemerals(8)) == ([], ["/c"])


class CountedPath(str):
    """A path that counts how often it is compared."""

    compared = 0

    def __lt__(self, other: str) -> bool:
        CountedPath.compared += 1
        return str.__lt__(self, other)

    def __gt__(self, other: str) -> bool:
        CountedPath.compared += 1
        return str.__gt__(self, other)

    __hash__ = str.__hash__


def test_znodes_below_a_path_are_counted_without_looking_at_each() -> None:
    """20 clients that counted 120,000 znodes, one request after the other, made all others wait 0.2 s for each."""
    tree = DataTree({f"/many/{number}": ROOT for number in range(30_000)} | {"/many": ROOT, "/many0": ROOT})
    tree._sorted = SortedPaths(map(CountedPath, tree._znodes))
    CountedPath.compared = 0
    assert tree.descendant_count("/many") == 30_000
    assert tree.descendant_count("/") == 30_002
    assert 0 < CountedPath.compared < 100
    CountedPath.compared = 0
    tree.commit(tree.prepare([Create("/many/x"), Delete("/many/7")], 1, 0, 8))
    assert tree.descendant_count("/many") == 30_000
    assert 0 < CountedPath.compared < 200


def test_paths_stay_in_order() -> None:
    """Whatever comes and goes, and in the order of parents: `/a-b` is between `/a` and `/a/b`."""
    rng = random.Random(7)
    paths = {"/", "/a", "/a-b", "/a/b", "/a/b/c", "/a0"}
    found = SortedPaths(paths)
    assert [found.count_below(path) for path in ("/", "/a", "/a/b", "/a-b", "/none")] == [6, 2, 1, 0, 0]
    for _ in range(3 * PIECE_MAX):
        path = f"/{rng.choice('ab')}/{rng.randrange(10 * PIECE_MAX)}"
        if path not in paths:
            paths.add(path)
            found.add(path)
    assert len(found._pieces) > 2
    assert [path for piece in found._pieces for path in piece] == sorted(paths)
    for path in rng.sample(sorted(paths), len(paths)):
        if len(paths) % 100 == 0:
            assert found.count_below("/a") == sum(other.startswith("/a/") for other in paths)
        paths.remove(path)
        found.remove(path)
    assert found._pieces == found._last == []
    assert found.count_below("/") == 0
    found.add("/b")
    assert found.count_below("/") == 1
