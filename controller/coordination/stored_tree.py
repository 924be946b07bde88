"""ZooKeeper's tree in memory, made durable by SQLite: the storage behind a store's sessions.

One file (WAL, synchronous=FULL) contains every znode, the last zxid, and an upper bound of the ids of all sessions so
far. A transaction is written and synced before the tree changes and before it is visible. Crash safety is SQLite's:
after a power cut the file contains exactly the acknowledged transactions, and possibly the one that was under way. If a
commit fails, the content of the disk is unknown: everything is refused then until the file is opened again. A file is
opened by one process at a time; one thread owns file and tree.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from barnabas.clock import Clock
from barnabas.controller.coordination.acl import Acl
from barnabas.controller.coordination.interface import Delete, StoreUnavailable
from barnabas.controller.coordination.reserve import DiskReserve
from barnabas.controller.coordination.tree import ROOT, Change, DataTree, Transaction, Znode

if TYPE_CHECKING:
    from barnabas.controller.coordination.access import Access

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
FORMAT_WITH_ACLS = 2
"""`PRAGMA user_version` of the files written here, without and with ACLs; a newer file is refused. A version that knows
no ACLs refuses a file that has some, instead of passing over them."""

_SCHEMA = """
CREATE TABLE znode (
    path TEXT PRIMARY KEY, data BLOB NOT NULL, czxid INTEGER NOT NULL, mzxid INTEGER NOT NULL, pzxid INTEGER NOT NULL,
    version INTEGER NOT NULL, children_created INTEGER NOT NULL, ctime_ms INTEGER NOT NULL, mtime_ms INTEGER NOT NULL,
    ephemeral_owner INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE last_zxid (only INTEGER PRIMARY KEY CHECK (only = 0), zxid INTEGER NOT NULL);
INSERT INTO last_zxid VALUES (0, 0);
"""

_ACL_SCHEMA = """
CREATE TABLE znode_acl (path TEXT PRIMARY KEY, acl TEXT NOT NULL, acl_version INTEGER NOT NULL) WITHOUT ROWID
"""
"""The ACLs of znodes that are not open to everyone, or have been changed: created with the first."""

_SESSION_IDS_SCHEMA = """
CREATE TABLE IF NOT EXISTS session_ids (only INTEGER PRIMARY KEY CHECK (only = 0), used_below INTEGER NOT NULL)
"""
"""Created at the first start; earlier versions pass over it."""

_COLUMNS = 9
"""The number of fields of a `Znode` in its row, besides the path."""

_SESSION_TIME_MASK = (1 << 40) - 1
"""The part of a session id that contains milliseconds: those of 34 years."""

_SESSION_IDS = 1 << 16
"""The number of session ids that one write reserves: one at each start is enough for most lives."""

_PASSING = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_CANTOPEN})
"""SQLite's codes for a lack of space, memory or descriptors, which may pass. An exhausted quota (EDQUOT) is not among
them: SQLite reports it with the code of a failing disk.
"""


class StoredTree:
    """The file and the tree. `path` is the file, created if missing; ":memory:" stores nothing. Without `is_durable`
    nothing is synced: acknowledged writes survive the process, not the machine.

    `bytes_max` is the limit of the memory of all znodes, None for none; a larger file is opened all the same. `tree` is
    read directly and changed by `change` alone; `last_zxid` is that of its newest transaction, `failure` the
    reason why everything is refused, None while the store works.
    """

    def __init__(self, path: str, clock: Clock, *, is_durable: bool) -> None:
        self._path = path
        self._clock = clock
        self._synchronous = "FULL" if is_durable else "OFF"
        self._database: sqlite3.Connection | None = None
        self._unwritten: dict[str, Znode | None] = {}
        self._reserve = DiskReserve(path) if path != ":memory:" else None
        self._lacks_reserve = True
        self._has_acls = False
        self.bytes_max: int | None = None
        self._next_session_id = self._session_ids_end = self._written_session_ids_end = 0
        self.tree = DataTree()
        self.last_zxid = 0
        self.failure: str | None = None

    def new_session_id(self) -> int:
        """The id of a new session, which none had before, whatever the clock says: later than all ids that the file
        names as used. A new run begins at the present time, as in ZooKeeper
        (`SessionTrackerImpl.initializeNextSessionId`; the highest byte, a server's number there, is 0).
        """
        if self._next_session_id == self._session_ids_end:
            self._reserve_session_ids()
        self._next_session_id += 1
        return self._next_session_id - 1

    def _reserve_session_ids(self) -> None:
        """Write that the next ids are used. If there is no space, the next transaction writes it."""
        self._session_ids_end = self._next_session_id + _SESSION_IDS
        with suppress(StoreUnavailable):
            self._write(self._unwritten, self.last_zxid)
            self._unwritten = {}

    def open(self) -> None:
        """Open or create the file and delete the ephemeral znodes of the last run.

        Raises: StoreUnavailable if the file cannot be opened, is damaged, in use by another process, or of a newer
        format.
        """
        try:
            try:
                self._open_file()
            except sqlite3.OperationalError as error:
                # The disk may have no inode for the write-ahead log.
                lacks_name = error.sqlite_errorcode == sqlite3.SQLITE_CANTOPEN
                if not lacks_name or self._reserve is None or not self._reserve.give_up():
                    raise
                self._open_file()
            self._reserve_session_ids()
            self.require_no_failure()
        except (sqlite3.Error, StoreUnavailable) as error:
            self.close()
            if isinstance(error, StoreUnavailable):
                raise
            in_use = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY
            raise StoreUnavailable(self._path, "another process is using it" if in_use else str(error)) from error
        self._make_reserve()

    def _open_file(self) -> None:
        if self._database is not None:
            self._database.close()
        # Transactions are begun and ended explicitly, so that no statement begins one by itself.
        self._database = sqlite3.connect(self._path, timeout=0, isolation_level=None, check_same_thread=False)
        self._database.execute("PRAGMA locking_mode = EXCLUSIVE")
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute(f"PRAGMA synchronous = {self._synchronous}")
        self._load(self._database)

    def _make_reserve(self) -> None:
        if self._reserve is not None:
            self._lacks_reserve = not self._reserve.make()

    def _load(self, database: sqlite3.Connection) -> None:
        (found,) = database.execute("PRAGMA user_version").fetchone()
        if found == 0:
            database.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {FORMAT_VERSION}; COMMIT;")
        elif found > FORMAT_WITH_ACLS:
            raise StoreUnavailable(self._path, f"format {found} is newer than the {FORMAT_WITH_ACLS} known here")
        self._has_acls = found == FORMAT_WITH_ACLS
        (self.last_zxid,) = database.execute("SELECT zxid FROM last_zxid").fetchone()
        znodes = {row[0]: Znode(*row[1:]) for row in database.execute("SELECT * FROM znode")}
        if self._has_acls:
            for path, acl, acl_version in database.execute("SELECT * FROM znode_acl"):
                entries = tuple(Acl(*entry) for entry in json.loads(acl))
                znodes[path] = znodes[path]._replace(acl=entries, acl_version=acl_version)
        self.tree = DataTree(znodes)
        self._load_session_ids(database)
        leftovers = self.tree.ephemerals()
        if leftovers:
            # Written along with the next transaction: if there is no space for any, the next open deletes them.
            transaction = self._prepare([Delete(path) for path in leftovers], 0)
            self._unwritten = transaction.changes
            self.last_zxid = transaction.zxid
            self.tree.commit(transaction)

    def _load_session_ids(self, database: sqlite3.Connection) -> None:
        tables = database.execute("SELECT name FROM sqlite_master WHERE name = 'session_ids'").fetchall()
        (used_below,) = database.execute("SELECT used_below FROM session_ids").fetchone() if tables else (0,)
        began = max(self._clock.now_ms() & _SESSION_TIME_MASK, self.last_zxid + 1) << 16
        self._written_session_ids_end = used_below
        self._next_session_id = max(began, used_below)

    def change(self, operations: Sequence[Change], session_id: int, access: Access | None = None) -> Transaction:
        """Execute all operations or none; on return they are durable and visible. The caller notifies watchers of the
        events. With `access` the ACLs of znodes count.

        Raises: the error of the first impossible operation; QuotaExceeded; StoreUnavailable.
        """
        self.require_no_failure()
        transaction = self._prepare(operations, session_id, access, self.bytes_max)
        if transaction.changes:
            self._write({**self._unwritten, **transaction.changes}, transaction.zxid)
            self._unwritten = {}
            self.last_zxid = transaction.zxid
            self.tree.commit(transaction)
        return transaction

    def require_no_failure(self) -> None:
        """Raises: StoreUnavailable after a commit with an unknown outcome."""
        if self.failure is not None:
            raise StoreUnavailable(self._path, self.failure)

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._database is not None:
            self._database.close()
            self._database = None
            if self._reserve is not None:
                self._reserve.make(share_max=1)  # in the space of the write-ahead log, which is deleted now

    def _prepare(
        self,
        operations: Sequence[Change],
        session_id: int,
        access: Access | None = None,
        bytes_max: int | None = None,
    ) -> Transaction:
        return self.tree.prepare(operations, self.last_zxid + 1, self._clock.now_ms(), session_id, access, bytes_max)

    def _write(self, changes: dict[str, Znode | None], zxid: int) -> None:
        assert self._database is not None, "not open"
        try:
            self._write_rows(self._database, changes, zxid)
        except sqlite3.Error as error:
            self._take_back(error)
            if self._reserve is None or not self._reserve.give_up():
                raise StoreUnavailable(self._path, "no space left; nothing was written") from error
            logger.warning("the disk of %s is full: the store goes on in the room that was kept for it", self._path)
            self._lacks_reserve = True
            try:
                self._write_rows(self._database, changes, zxid)
            except sqlite3.Error as second:
                self._take_back(second)
                raise StoreUnavailable(self._path, "no space left; nothing was written") from second
        else:
            if self._lacks_reserve:
                self._make_reserve()

    def _write_rows(self, database: sqlite3.Connection, changes: dict[str, Znode | None], zxid: int) -> None:
        deletions = [(path,) for path, znode in changes.items() if znode is None]
        upserts = [(path, *znode[:_COLUMNS]) for path, znode in changes.items() if znode is not None]
        database.execute("BEGIN IMMEDIATE")
        database.executemany("DELETE FROM znode WHERE path = ?", deletions)
        database.executemany("INSERT OR REPLACE INTO znode VALUES (?,?,?,?,?,?,?,?,?,?)", upserts)
        has_acls = self._write_acls(database, changes)
        database.execute("UPDATE last_zxid SET zxid = ?", (zxid,))
        session_ids_end = self._session_ids_end
        if session_ids_end != self._written_session_ids_end:
            database.execute(_SESSION_IDS_SCHEMA)
            database.execute("INSERT OR REPLACE INTO session_ids VALUES (0, ?)", (session_ids_end,))
        database.execute("COMMIT")
        self._has_acls, self._written_session_ids_end = has_acls, session_ids_end

    def _write_acls(self, database: sqlite3.Connection, changes: dict[str, Znode | None]) -> bool:
        """Write the ACLs of changed znodes; returns whether the file has a table of ACLs."""
        rows = [
            (path, json.dumps(znode.acl), znode.acl_version)
            for path, znode in changes.items()
            if znode is not None and (znode.acl_version or znode.acl != ROOT.acl)
        ]
        if not self._has_acls:
            if not rows:
                return False
            database.execute(_ACL_SCHEMA)
            database.execute(f"PRAGMA user_version = {FORMAT_WITH_ACLS}")
        database.executemany("DELETE FROM znode_acl WHERE path = ?", [(path,) for path in changes])
        database.executemany("INSERT INTO znode_acl VALUES (?,?,?)", rows)
        return True

    def _take_back(self, error: sqlite3.Error) -> None:
        """Handle a failed write. A lack of space, memory or a descriptor for a file that was not open yet leaves the
        file unchanged: the transaction is rolled back. After any other error, including one of the rollback, the
        content of the file is unknown: everything is refused.

        Raises: StoreUnavailable after such an error.
        """
        assert self._database is not None, "not open"
        if (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _PASSING:
            try:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                return
            except sqlite3.Error as second:
                error = second
        self.failure = str(error)
        logger.critical("the metadata store %s failed and stays closed until it is opened anew: %s", self._path, error)
        raise StoreUnavailable(self._path, self.failure) from error
