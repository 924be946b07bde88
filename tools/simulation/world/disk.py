"""A disk in memory whose cache is lost in a crash, and every state that a crash can leave it in.

`SimulatedDisk` is a `Files` that records each operation of storage. `crash` creates the disk that a power cut after
some of these operations leaves behind, where only the guarantees of the standard hold:

- Data written to a file is on the disk for certain once `sync` of that file has returned. Before, every sector of 512
  bytes may have its content of any time since the last sync, independent of other sectors, and so may the file's
  size. Bytes within the size that were never written are zeros: no file system in use shows older data there.
- A name (created, renamed, removed) is on the disk for certain once `sync_directory` of its directory has returned;
  syncing the file itself is not enough. Before, the changes of one directory reach the disk in their order: file
  systems with a journal guarantee that, and both Kafka's and our start rely on it. There is no order between
  directories, nor between names and data.

This is the idea of ALICE (Pillai et al., OSDI 2014) and B3 (Mohan et al., OSDI 2018), on recorded calls of `Files`.
"""

from __future__ import annotations

import errno
import random
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import ClassVar, Final, TypeAlias

from barnabas.storage.files import Buffer, DirectoryEntry, FileStat
from barnabas.storage.scan import SECTOR_BYTES

_ROOT: Final = 0


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes were written to a file."""

    node: int
    position: int
    data: bytes


@dataclass(frozen=True, slots=True)
class SetSize:
    """A file was truncated or extended."""

    node: int
    size: int


@dataclass(frozen=True, slots=True)
class Name:
    """Names in one directory changed, in one step: the new node, or None for a removed name."""

    directory: int
    changes: tuple[tuple[str, int | None], ...]


@dataclass(frozen=True, slots=True)
class Sync:
    """All changes of this file, or of the names in this directory, are on the disk."""

    node: int


Change: TypeAlias = Write | SetSize | Name
Operation: TypeAlias = Change | Sync


Lives: TypeAlias = list[list[bytes]]
"""The successive contents of a file."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The effect of a crash on unsynced changes: the numbers of the name changes that reached the disk, and the
    contents of files with unsynced writes.
    """

    names: frozenset[int]
    contents: Mapping[int, bytes]


class SimulatedDisk:
    """The disk. Not thread-safe."""

    is_durable: ClassVar[bool] = True
    is_shared: ClassVar[bool] = False

    def __init__(self, nodes: Mapping[int, bytes | Mapping[str, int]] | None = None) -> None:
        self._initial: dict[int, bytes | dict[str, int]] = {}
        self._nodes: dict[int, bytearray | dict[str, int]] = {}
        for node, content in (nodes or {_ROOT: {}}).items():
            frozen = bytes(content) if isinstance(content, (bytes, bytearray)) else dict(content)
            self._initial[node] = frozen
            self._nodes[node] = bytearray(frozen) if isinstance(frozen, bytes) else dict(frozen)
        self._directories = {node for node, content in self._nodes.items() if isinstance(content, dict)}
        self._descriptors: dict[int, int] = {}
        self._next_descriptor = 3
        self._next_node = max(self._nodes) + 1
        self.operations: list[Operation] = []
        self.operations_max = inf
        """At this number of operations, those that no crash can undo any more are dropped; the numbers of operations
        start again then.
        """
        self.listing = 0
        """Changes the order of names in directory listings, as no file system guarantees one."""
        self.before_change: Callable[[], bool] = lambda: True
        """Called before each operation. Returns whether it is done: not for a process that was just killed."""

        self.trouble: Callable[[str], None] = lambda call: None
        """Called with the name of each call; raises the error of a failing one (`world/machine.py`)."""

    # --- the calls of storage

    def open(self, path: str, *, create: bool = False, truncate: bool = False) -> int:
        node = self._find(path)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            self.trouble("create")
            parent, name = self._parent(path)
            node = self._new_node(bytearray())
            self._do(Name(parent, ((name, node),)))
        elif node in self._directories:
            raise IsADirectoryError(errno.EISDIR, "a directory", path)
        elif truncate and self._file(node):
            self.trouble("truncate")
            self._do(SetSize(node, 0))
        self._next_descriptor += 1
        self._descriptors[self._next_descriptor] = node
        return self._next_descriptor

    def close(self, descriptor: int) -> None:
        del self._descriptors[descriptor]

    def pwrite(self, descriptor: int, data: Buffer, position: int) -> int:
        self.trouble("pwrite")
        self._do(Write(self._descriptors[descriptor], position, bytes(data)))
        return len(data)

    def pread(self, descriptor: int, size: int, position: int) -> Buffer:
        self.trouble("pread")
        return bytes(self._file(self._descriptors[descriptor])[position : position + size])

    def pread_cached(self, descriptor: int, size: int, position: int) -> Buffer:
        return self.pread(descriptor, size, position)

    def duplicate(self, descriptor: int) -> int:
        self._next_descriptor += 1
        self._descriptors[self._next_descriptor] = self._descriptors[descriptor]
        return self._next_descriptor

    def send(self, socket: int, descriptor: int, size: int, position: int) -> int:
        raise OSError(errno.ENOSYS, "no kernel can send what is simulated")

    def reads_cached(self, directory: str) -> bool:
        return True

    def stat(self, path: str) -> FileStat:
        node = self._existing(path)
        return FileStat(0 if node in self._directories else len(self._file(node)), 0, identity=(0, node))

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def truncate(self, descriptor: int, size: int) -> None:
        self.trouble("truncate")
        self._do(SetSize(self._descriptors[descriptor], size))

    def sync(self, descriptor: int) -> None:
        self.trouble("sync")
        self._do(Sync(self._descriptors[descriptor]))

    def sync_directory(self, path: str) -> None:
        self.trouble("sync_directory")
        self._do(Sync(self._existing(path)))

    def rename(self, old: str, new: str) -> None:
        self.trouble("rename")
        parent, name = self._parent(old)
        new_parent, new_name = self._parent(new)
        if parent != new_parent:
            raise OSError(errno.EXDEV, "renamed into another directory, which storage never does", new)
        self._do(Name(parent, ((name, None), (new_name, self._existing(old)))))

    def unlink(self, path: str) -> None:
        self.trouble("unlink")
        self._existing(path)
        parent, name = self._parent(path)
        self._do(Name(parent, ((name, None),)))

    def make_private(self, path: str) -> None:
        self._existing(path)

    def make_directory(self, path: str) -> None:
        made = ""
        for part in path.strip("/").split("/"):
            made += f"/{part}"
            if self._find(made) is None:
                self.trouble("make_directory")
                parent, name = self._parent(made)
                self._do(Name(parent, ((name, self._new_node({})),)))

    def remove_directory(self, path: str) -> None:
        if self._entries(self._existing(path)):
            raise OSError(errno.ENOTEMPTY, "not empty", path)
        self.unlink(path)

    def list(self, path: str) -> list[DirectoryEntry]:
        entries = self._entries(self._existing(path))
        names = sorted(entries, key=lambda name: zlib.crc32(name.encode(), self.listing))
        return [DirectoryEntry(name, entries[name] in self._directories) for name in names]

    def real_path(self, path: str) -> str:
        return path

    def lock(self, path: str) -> int:
        return self.open(path, create=True)

    def free_bytes(self, path: str) -> int:
        return 1 << 40

    def total_bytes(self, path: str) -> int:
        return 1 << 40

    def descriptor_limit(self) -> int:
        return 1 << 10

    # --- internals

    def _new_node(self, content: bytearray | dict[str, int]) -> int:
        node, self._next_node = self._next_node, self._next_node + 1
        self._nodes[node] = content
        if isinstance(content, dict):
            self._directories.add(node)
        return node

    def _find(self, path: str) -> int | None:
        node = _ROOT
        for part in filter(None, path.split("/")):
            entries = self._nodes[node]
            found = entries.get(part) if isinstance(entries, dict) else None
            if found is None:
                return None
            node = found
        return node

    def _existing(self, path: str) -> int:
        node = self._find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return node

    def _parent(self, path: str) -> tuple[int, str]:
        folder, _, name = path.rpartition("/")
        return (self._existing(folder) if folder else _ROOT), name

    def _file(self, node: int) -> bytearray:
        content = self._nodes[node]
        assert isinstance(content, bytearray)
        return content

    def _entries(self, node: int) -> dict[str, int]:
        content = self._nodes[node]
        assert isinstance(content, dict)
        return content

    def _do(self, operation: Operation) -> None:
        if not self.before_change():
            return
        self.operations.append(operation)
        _apply(self._nodes, operation)
        if len(self.operations) >= self.operations_max:
            self._forget()
            self.operations_max = max(self.operations_max, 2 * len(self.operations))

    def _forget(self) -> None:
        """Make everything that is certainly on the disk the new initial state, and drop unreachable nodes."""
        unsynced = self._unsynced(len(self.operations))
        certain: dict[int, bytearray | dict[str, int]] = {}
        for number, operation in enumerate(self.operations):
            if number not in unsynced and not isinstance(operation, Sync):
                node = operation.directory if isinstance(operation, Name) else operation.node
                if node not in certain:
                    before = self._initial.get(node, {} if node in self._directories else b"")
                    certain[node] = bytearray(before) if isinstance(before, bytes) else before
                _apply(certain, operation)
        for node, content in certain.items():
            self._initial[node] = bytes(content) if isinstance(content, bytearray) else content
            for entry in content.values() if isinstance(content, dict) else ():
                self._initial.setdefault(entry, {} if entry in self._directories else b"")
        known = self._known(unsynced.values())
        self.operations = [
            change
            for change in unsynced.values()
            if (change.directory if isinstance(change, Name) else change.node) in known
        ]
        for nodes in (self._nodes, self._initial):
            for node in [node for node in nodes if node not in known]:
                del nodes[node]
        self._directories &= known

    def _known(self, changes: Iterable[Change]) -> set[int]:
        """The nodes that are open, or have a name now or after some crash."""
        found: set[int] = set()
        named = [node for each in changes if isinstance(each, Name) for _, node in each.changes if node is not None]
        waiting = [_ROOT, *self._descriptors.values(), *named]
        while waiting:
            node = waiting.pop()
            if node not in found:
                found.add(node)
                for content in (self._nodes.get(node), self._initial.get(node)):
                    if isinstance(content, dict):
                        waiting += content.values()
        return found

    # --- crashes

    def _unsynced(self, count: int) -> dict[int, Change]:
        """By number, those of the first `count` operations that a crash may undo."""
        found: dict[int, Change] = {}
        synced: set[int] = set()
        for number in range(count - 1, -1, -1):
            operation = self.operations[number]
            if isinstance(operation, Sync):
                synced.add(operation.node)
            elif (operation.directory if isinstance(operation, Name) else operation.node) not in synced:
                found[number] = operation
        return dict(sorted(found.items()))

    def outcomes(self, count: int, chance: random.Random, samples: int) -> Iterator[Outcome]:
        """Possible outcomes of a crash after `count` operations: all unsynced changes lost, all kept, names without
        data, data without names, names up to each point with and without data; then `samples` mixtures drawn by
        `chance`.
        """
        unsynced = self._unsynced(count)
        names = [number for number, change in unsynced.items() if isinstance(change, Name)]
        lives = self._lives(count, unsynced)
        lost = {node: found[0][0] for node, found in lives.items()}
        kept = {node: found[-1][-1] for node, found in lives.items()}
        for some in range(len(names) + 1):
            yield Outcome(frozenset(names[:some]), lost)
            if lives:
                yield Outcome(frozenset(names[:some]), kept)
        for _ in range(samples if unsynced else 0):
            contents = {node: _mixture(found, chance) for node, found in lives.items()}
            yield Outcome(frozenset(self._some_names(names, chance)), contents)

    def _some_names(self, names: Sequence[int], chance: random.Random) -> Iterator[int]:
        """In each directory, the name changes up to a random point."""
        stopped: set[int] = set()
        for number in names:
            operation = self.operations[number]
            assert isinstance(operation, Name)
            if operation.directory not in stopped and chance.random() < 0.3:
                stopped.add(operation.directory)
            if operation.directory not in stopped:
                yield number

    def _lives(self, count: int, unsynced: Mapping[int, Change]) -> dict[int, Lives]:
        """Each content since the last sync of files with unsynced changes. A truncation starts a new life: the removed
        data does not come back in it.
        """
        nodes = {change.node for change in unsynced.values() if not isinstance(change, Name)}
        contents = {node: bytearray(self._initial_file(node)) for node in nodes}
        lives = {node: [[bytes(content)]] for node, content in contents.items()}
        for number, operation in enumerate(self.operations[:count]):
            if isinstance(operation, (Name, Sync)) or operation.node not in nodes:
                continue
            _apply_to_file(contents[operation.node], operation)
            content, known = bytes(contents[operation.node]), lives[operation.node]
            if number not in unsynced:
                known[:] = [[content]]
            elif isinstance(operation, SetSize):
                known.append([content])
            else:
                known[-1].append(content)
        return lives

    def _initial_file(self, node: int) -> bytes:
        content = self._initial.get(node, b"")
        assert isinstance(content, bytes)
        return content

    def crash(self, count: int, outcome: Outcome) -> SimulatedDisk:
        """The disk after the first `count` operations and a power cut with this outcome."""
        unsynced = self._unsynced(count)
        nodes: dict[int, bytearray | dict[str, int]] = {
            node: bytearray(content) if isinstance(content, bytes) else dict(content)
            for node, content in self._initial.items()
        }
        for number, operation in enumerate(self.operations[:count]):
            if isinstance(operation, Name):
                for _, node in operation.changes:
                    if node is not None and node not in nodes:
                        nodes[node] = {} if node in self._directories else bytearray()
                if number not in unsynced or number in outcome.names:
                    _apply(nodes, operation)
            elif not isinstance(operation, Sync) and operation.node not in outcome.contents:
                _apply(nodes, operation)
        for node, content in outcome.contents.items():
            nodes[node] = bytearray(content)
        disk = type(self)(_reachable(nodes))
        disk.listing = count
        return disk

    def power_cut(self, chance: random.Random) -> SimulatedDisk:
        """The disk after a power cut now, with an outcome drawn by `chance`."""
        count = len(self.operations)
        unsynced = self._unsynced(count)
        names = [number for number, change in unsynced.items() if isinstance(change, Name)]
        contents = {node: _mixture(found, chance) for node, found in self._lives(count, unsynced).items()}
        return self.crash(count, Outcome(frozenset(self._some_names(names, chance)), contents))

    def end_process(self) -> None:
        """The process was killed: all its changes stay, but no more of them is synced than before."""
        self._descriptors.clear()

    def turn_bit(self, path: str, position: int) -> None:
        """Flip a bit on the medium, undetected: no sync restores it."""
        node = self._existing(path)
        data = bytes([self._file(node)[position] ^ 1])
        for operation in (Write(node, position, data), Sync(node)):
            self.operations.append(operation)
            _apply(self._nodes, operation)

    def killed(self, count: int) -> SimulatedDisk:
        """The disk after the first `count` operations of a process that ended: all changes are there, but no more of
        them is synced than before.
        """
        disk = SimulatedDisk(self._initial)
        for operation in self.operations[:count]:
            if isinstance(operation, Name):
                for _, node in operation.changes:
                    if node is not None and node not in disk._nodes:
                        is_directory = node in self._directories
                        disk._nodes[node] = {} if is_directory else bytearray()
                        disk._directories |= {node} if is_directory else set()
                        disk._next_node = max(disk._next_node, node + 1)
            disk._do(operation)
        return disk

    def tree(self) -> dict[str, bytes | None]:
        """Every path and its content; None for a directory."""
        found: dict[str, bytes | None] = {}

        def walk(node: int, path: str) -> None:
            for name, child in sorted(self._entries(node).items()):
                content = self._nodes[child]
                found[f"{path}/{name}"] = bytes(content) if isinstance(content, bytearray) else None
                if isinstance(content, dict):
                    walk(child, f"{path}/{name}")

        walk(_ROOT, "")
        return found


def _apply(nodes: dict[int, bytearray | dict[str, int]], operation: Operation) -> None:
    if isinstance(operation, Sync):
        return
    content = nodes[operation.directory if isinstance(operation, Name) else operation.node]
    if isinstance(operation, Name):
        assert isinstance(content, dict)
        for name, node in operation.changes:
            if node is None:
                content.pop(name, None)
            else:
                content[name] = node
    else:
        assert isinstance(content, bytearray)
        _apply_to_file(content, operation)


def _apply_to_file(content: bytearray, operation: Write | SetSize) -> None:
    if isinstance(operation, Write):
        content.extend(bytes(max(0, operation.position - len(content))))
        content[operation.position : operation.position + len(operation.data)] = operation.data
    else:
        content.extend(bytes(max(0, operation.size - len(content))))
        del content[operation.size :]


def _reachable(nodes: dict[int, bytearray | dict[str, int]]) -> dict[int, bytes | dict[str, int]]:
    """The nodes that have a name, numbered in the order of their paths, so that equal disks are equal."""
    found: dict[int, bytes | dict[str, int]] = {}

    def walk(node: int) -> int:
        number = len(found)
        content = nodes[node]
        if isinstance(content, bytearray):
            found[number] = bytes(content)
        else:
            found[number] = {}
            found[number] = {name: walk(child) for name, child in sorted(content.items())}
        return number

    walk(_ROOT)
    return found


def _mixture(lives: Sequence[Sequence[bytes]], chance: random.Random) -> bytes:
    """A file with each sector from some time of its life."""
    times = chance.choice(lives) if chance.random() < 0.3 else lives[-1]
    size, at = len(times[-1]), chance.random()
    if at < 0.2:
        size = len(chance.choice(times))
    elif at < 0.4:
        known = len(times[0])
        size = max(known, chance.randrange(known, max(known, size) + 1) // SECTOR_BYTES * SECTOR_BYTES)
    content = bytearray(size)
    for start in range(0, size, SECTOR_BYTES):
        at = chance.random()
        version = times[-1] if at < 0.5 else times[0] if at < 0.75 else chance.choice(times)
        sector = version[start : min(size, start + SECTOR_BYTES)]
        content[start : start + len(sector)] = sector
    return bytes(content)
