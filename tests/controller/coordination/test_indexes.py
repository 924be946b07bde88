"""Searches that the server of ZooKeeper's protocol avoids, however many znodes and watches there are."""

from barnabas.controller.coordination.interface import Create, Delete, EventType, SetData, WatchedEvent
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
