"""Logins and ACLs of our server of ZooKeeper's protocol, as kazoo meets them; what it permits is what a real ZooKeeper
permits."""

import asyncio
import secrets
import sqlite3
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kazoo import exceptions
from kazoo.client import KazooClient
from kazoo.security import ACL, Id, make_digest_acl

from barnabas.broker.timers import Timers
from barnabas.clock import SystemClock
from barnabas.controller.coordination.access import (
    ENTRIES_MAX,
    IDENTITIES_MAX,
    IDENTITY_BYTES_MAX,
    digest_identity,
)
from barnabas.controller.coordination.digest_md5 import DigestMd5Login
from barnabas.controller.coordination.session_security import SessionSecurity
from barnabas.controller.coordination.stored_tree import FORMAT_VERSION, FORMAT_WITH_ACLS, StoredTree
from barnabas.controller.coordination.zookeeper import ZooKeeperSession
from barnabas.controller.coordination.zookeeper_errors import LoginRefused
from barnabas.controller.coordination.zookeeper_server.authentication import Authentication
from barnabas.controller.coordination.zookeeper_server.server import ZooKeeperServer
from barnabas.controller.znode_acls import acls_of
from barnabas.network import OsNetwork
from tools.waiting import PATIENCE_S

USERS = {"kafka": "secret", "super": "top"}
EVERYONE = ACL(31, Id("world", "anyone"))


class ServerWithUsers:
    """A server with two users of SASL, one of them the superuser."""

    def __init__(self, path: str = ":memory:", authentication: Authentication | None = None) -> None:
        clock = SystemClock()
        self.stored = StoredTree(path, clock, is_durable=False)
        self._timers = Timers(clock, asyncio.get_running_loop())
        self.server = ZooKeeperServer(
            self.stored,
            OsNetwork(),
            clock,
            self._timers,
            secrets.token_bytes,
            lambda _reason: None,
            version="test",
            authentication=authentication or Authentication(secrets.token_bytes, USERS.get),
        )

    async def __aenter__(self) -> "ServerWithUsers":
        self.server.open()
        self.address = f"127.0.0.1:{await self.server.listen('127.0.0.1', 0)}"
        return self

    async def __aexit__(self, *_error: object) -> None:
        self.server.close()
        self._timers.close()


@contextmanager
def client(address: str, *digests: str) -> Iterator[KazooClient]:
    authentication = [("digest", each) for each in digests]
    found = KazooClient(address, timeout=10, auth_data=authentication)  # Real time: of a session, which it renews
    found.start(timeout=PATIENCE_S)
    try:
        yield found
    finally:
        found.stop()
        found.close()


async def judge(work: Callable[[str], None], path: str = ":memory:") -> None:
    """Run what kazoo does in a thread, against a server on this loop."""
    async with ServerWithUsers(path) as server:
        await asyncio.to_thread(work, server.address)


Judge = Callable[[Callable[[str], None]], Coroutine[Any, Any, None]]


@pytest.fixture(params=["ours", pytest.param("zookeeper", marks=pytest.mark.java)])
def judge_both(request: pytest.FixtureRequest, chroot: str) -> Judge:
    """`judge`, by our server and by a real one."""
    if request.param == "ours":
        return judge
    real = request.getfixturevalue("zookeeper").address

    async def judge_real(work: Callable[[str], None]) -> None:
        with client(real) as maker:
            maker.ensure_path(chroot)
        await asyncio.to_thread(work, f"{real}{chroot}")

    return judge_real


async def test_permissions(judge_both: Judge) -> None:
    """Each operation needs the permission that it needs in ZooKeeper; the parent's for creations and deletions."""

    def work(address: str) -> None:
        only_read = [make_digest_acl("alice", "secret", all=True), ACL(1, Id("world", "anyone"))]
        with client(address, "alice:secret") as alice, client(address, "eve:evil") as eve:
            alice.create("/open", b"x", acl=only_read)
            alice.create("/open/child", b"x", acl=only_read)
            alice.create("/closed", b"x", acl=[make_digest_acl("alice", "secret", all=True)])
            assert eve.get("/open")[0] == b"x"
            assert eve.get_children("/open") == ["child"]
            assert eve.exists("/missing") is None
            for refused in (
                lambda: eve.get("/closed"),
                lambda: eve.exists("/closed"),
                lambda: eve.get_children("/closed"),
                lambda: eve.get_acls("/closed"),
                lambda: eve.set("/open", b"y"),
                lambda: eve.create("/open/other"),
                lambda: eve.delete("/open/child"),
                lambda: eve.set_acls("/open", [EVERYONE]),
            ):
                with pytest.raises(exceptions.NoAuthError):
                    refused()
            transaction = eve.transaction()
            transaction.create("/mine")
            transaction.check("/closed", 0)
            assert isinstance(transaction.commit()[1], exceptions.NoAuthError)
            assert eve.exists("/mine") is None, "all or nothing"
            alice.set("/closed", b"y")
            alice.set_acls("/open", [EVERYONE], version=0)
            with pytest.raises(exceptions.BadVersionError):
                alice.set_acls("/open", [EVERYONE], version=0)
            assert alice.exists("/open").aversion == 1
            eve.delete("/open/child")

    await judge_both(work)


async def test_hashes_are_not_shown(judge_both: Judge) -> None:
    """Only those who may set an ACL see the hashes of the passwords in it."""

    def work(address: str) -> None:
        entry = make_digest_acl("alice", "secret", all=True)
        with client(address, "alice:secret") as alice, client(address) as nobody:
            alice.create("/a", acl=[entry, ACL(1, Id("world", "anyone"))])
            assert alice.get_acls("/a")[0][0] == entry
            assert nobody.get_acls("/a")[0][0] == ACL(31, Id("digest", "alice:x"))

    await judge_both(work)


async def test_addresses(judge_both: Judge) -> None:
    """The scheme `ip` has networks."""

    def work(address: str) -> None:
        with client(address) as nobody:
            nobody.create("/here", b"x", acl=[ACL(31, Id("ip", "127.0.0.0/8"))])
            nobody.create("/elsewhere", b"x", acl=[ACL(31, Id("ip", "10.0.0.1"))])
            assert nobody.get("/here")[0] == b"x"
            with pytest.raises(exceptions.NoAuthError):
                nobody.get("/elsewhere")

    await judge_both(work)


async def test_lists_that_name_nobody(judge_both: Judge) -> None:
    def work(address: str) -> None:
        with client(address) as nobody:
            for acl in (
                [ACL(31, Id("auth", ""))],
                [ACL(31, Id("digest", "without a hash"))],
                [ACL(31, Id("digest", "nothing behind it:"))],
                [ACL(31, Id("world", "someone"))],
                [ACL(31, Id("unheard-of", "x"))],
                [ACL(31, Id("ip", "nowhere"))],
                [ACL(31, Id("ip", "10.0.0.1/255.0.0.0"))],
                [EVERYONE, ACL(31, Id("auth", ""))],
            ):
                with pytest.raises(exceptions.InvalidACLError):
                    nobody.create("/a", acl=acl)
            nobody.create("/a", acl=[EVERYONE, EVERYONE, ACL(1, Id("ip", "10.0.0.0/8"))])
            assert nobody.get_acls("/a")[0] == [EVERYONE, ACL(1, Id("ip", "10.0.0.0/8"))]

    await judge_both(work)


async def test_own_identities(judge_both: Judge) -> None:
    """`auth` stands for all of them, with its permissions; each of them is enough."""

    def work(address: str) -> None:
        with client(address, "alice:secret", "bob:pw") as both, client(address, "bob:pw") as bob:
            both.create("/a", b"x", acl=[ACL(31, Id("auth", "ignored"))])
            expected = {make_digest_acl("alice", "secret", all=True), make_digest_acl("bob", "pw", all=True)}
            assert set(both.get_acls("/a")[0]) == expected
            bob.set("/a", b"y")

    await judge_both(work)


async def test_long_lists() -> None:
    """An operation looks at each entry, and there may be many operations."""

    def work(address: str) -> None:
        many = [ACL(1, Id("sasl", f"user{number}")) for number in range(ENTRIES_MAX + 1)]
        with client(address) as nobody:
            for acl in (many, [ACL(31, Id("sasl", "x" * (IDENTITY_BYTES_MAX + 1)))]):
                with pytest.raises(exceptions.InvalidACLError):
                    nobody.create("/a", acl=acl)
            nobody.create("/a", acl=many[1:])

    await judge(work)


async def test_too_many_identities() -> None:
    """A connection that logs in more often than anybody needs is closed, as one with credentials that are too long."""

    def work(address: str) -> None:
        with client(address) as one:
            for number in range(IDENTITIES_MAX - 1):
                one.add_auth("digest", f"user{number}:x")
            with pytest.raises(exceptions.AuthFailedError):
                one.add_auth("digest", "another:x")
        with client(address) as one, pytest.raises(exceptions.AuthFailedError):
            one.add_auth("digest", "x" * IDENTITY_BYTES_MAX + ":x")

    await judge(work)


async def test_acls_survive(tmp_path: Path) -> None:
    """A file with ACLs has a format of its own, so that no version passes over them; without, it stays as it was."""
    path = str(tmp_path / "znodes.sqlite")

    def create(address: str) -> None:
        with client(address, "alice:secret") as alice:
            alice.create("/a", b"x", acl=[make_digest_acl("alice", "secret", all=True)])
            alice.create("/b", b"x")

    def read(address: str) -> None:
        with client(address, "alice:secret") as alice, client(address) as nobody:
            with pytest.raises(exceptions.NoAuthError):
                nobody.get("/a")
            assert alice.get("/a")[0] == b"x"
            assert alice.get_acls("/b")[0] == [EVERYONE]
            alice.delete("/a")
            alice.create("/a", b"open again")

    def last(address: str) -> None:
        with client(address) as nobody:
            assert nobody.get("/a")[0] == b"open again"

    for work, expected in ((lambda _address: None, FORMAT_VERSION), (create, FORMAT_WITH_ACLS)):
        await judge(work, path)
        assert format_of(path) == expected
    await judge(read, path)
    await judge(last, path)


def format_of(path: str) -> int:
    with sqlite3.connect(path) as database:
        (found,) = database.execute("PRAGMA user_version").fetchone()
    database.close()
    assert isinstance(found, int)
    return found


async def test_superusers() -> None:
    """Who is named may do everything, whatever the scheme."""
    alice = digest_identity(b"alice:secret")
    assert alice is not None
    authentication = Authentication(secrets.token_bytes, superusers=[alice])

    def work(address: str) -> None:
        with client(address, "bob:pw") as bob, client(address, "alice:secret") as superuser:
            bob.create("/a", b"x", acl=[make_digest_acl("bob", "pw", all=True)])
            assert superuser.get("/a")[0] == b"x"
            superuser.create("/b", acl=[ACL(31, Id("auth", ""))])
            assert superuser.get_acls("/b")[0] == [make_digest_acl("alice", "secret", all=True)]
            superuser.delete("/a")

    async with ServerWithUsers(authentication=authentication) as server:
        await asyncio.to_thread(work, server.address)


# --- logins of our client -------------------------------------------------------------------------------


def security(username: str = "kafka", password: str = "secret", **keywords: object) -> SessionSecurity:
    login = DigestMd5Login(username, password, secrets.token_bytes)
    return SessionSecurity(login=login, **keywords)  # type: ignore[arg-type]


async def test_login() -> None:
    """SASL, and the ACLs of Kafka; each entry for a user of SASL is for the user `super`, too."""
    async with ServerWithUsers() as server:
        broker = await ZooKeeperSession.open(server.address + "/root", security=security(acls_of=acls_of))
        await broker.create("/config")
        await broker.create("/config/users", b"hashes")
        tree = server.stored.tree
        assert [tuple(entry) for entry in tree._znodes["/root/config"].acl] == [
            (31, "sasl", "kafka"),
            (1, "world", "anyone"),
        ]
        assert [tuple(entry) for entry in tree._znodes["/root/config/users"].acl] == [(31, "sasl", "kafka")]
        superuser = await ZooKeeperSession.open(server.address + "/root", security=security("super", "top"))
        assert (await superuser.get("/config/users"))[0] == b"hashes"
        await superuser.close()
        await broker.close()


@pytest.mark.parametrize(("username", "password"), [("kafka", "wrong"), ("nobody", ""), ("kafka", "")])
async def test_refused_login(username: str, password: str) -> None:
    """The start ends with one line, which has no password."""
    async with ServerWithUsers() as server:
        with pytest.raises(LoginRefused, match=f"does not accept the login of {username}: a wrong user or password$"):
            await ZooKeeperSession.open(server.address, security=security(username, password))


async def test_login_after_a_connection_is_lost() -> None:
    """A connection has to log in again; the session stays."""
    async with ServerWithUsers() as server:
        broker = await ZooKeeperSession.open(server.address, security=security(acls_of=acls_of))
        await broker.create("/config")
        session_id = broker.session_id
        for connection in list(server.server._connections):
            connection.abort("the test cuts it")
        await broker.get("/config")  # repeated until there is a connection
        await broker.create("/config/users", b"hashes")
        assert (await broker.get("/config/users"))[0] == b"hashes"
        assert broker.session_id == session_id
        await broker.close()
