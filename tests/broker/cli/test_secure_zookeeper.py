"""`barnabas zookeeper --config`: its port with TLS, certificates of clients and users, for our own client and kazoo."""

import asyncio
import os
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.cli.zookeeper_config import ZooKeeperConfig, ZooKeeperConfigError, of, read
from barnabas.broker.cli.zookeeper_process import MEMORY, addresses, new_server, port_tls
from barnabas.broker.cluster.zookeeper_security import read as security_of
from barnabas.broker.configuration.config import load
from barnabas.broker.network.port_tls import PortTls
from barnabas.broker.timers import Timers
from barnabas.clock import SystemClock
from barnabas.controller.coordination.zookeeper import ZooKeeperSession
from barnabas.controller.coordination.zookeeper_errors import ConnectionTimedOut, NotPermitted
from barnabas.threads import OneThread
from tests.support.certificates import Authority

MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule required"
SERVER_JAAS = f'Server {{ {MODULE} user_kafka="secret" user_super="top"; }};'
CLIENT_JAAS = f'Client {{ {MODULE} username="kafka" password="secret"; }};'


class Files:
    """An authority, and what server and client have of it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority(directory)
        self.server = self.authority.key_store("server")
        self.alice = self.authority.key_store("alice", "alice", common_name="alice")

    def written(self, name: str, text: str) -> str:
        path = self.directory / name
        path.write_text(text)
        return str(path)

    def server_config(self, **values: str) -> ZooKeeperConfig:
        return of(
            {
                "secureClientPort": "0",
                "ssl.keyStore.location": str(self.server),
                "ssl.trustStore.location": str(self.authority.trust_store),
                "java.security.auth.login.config": self.written("server.conf", SERVER_JAAS),
                **{key.replace("_", "."): value for key, value in values.items()},
            }
        )

    def client(self, port: int, **overrides: str) -> tuple[str, Any]:
        """The address for a client, and its security."""
        address = f"localhost:{port}"
        configs = {
            "zookeeper.connect": address,
            "zookeeper.ssl.client.enable": "true",
            "zookeeper.ssl.truststore.location": str(self.authority.trust_store),
            **{key.replace("_", "."): value for key, value in overrides.items()},
        }
        return address, security_of(load(overrides=configs, environ={}), os.urandom)

    async def session(self, port: int, **overrides: str) -> ZooKeeperSession:
        address, security = self.client(port, **overrides)
        return await ZooKeeperSession.open(address, connection_timeout_ms=3_000, security=security)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def serve(config: ZooKeeperConfig, work: Callable[[int, PortTls], Coroutine[Any, Any, None]]) -> None:
    """Run `work` with the number of a port with TLS."""

    async def run() -> None:
        timers = Timers(SystemClock(), asyncio.get_running_loop())
        server = new_server(MEMORY, lambda _reason: None, config=config)
        server.open()
        try:
            secure = port_tls(config, timers, OneThread())
            await work(await server.listen("127.0.0.1", 0, secure.before), secure)
        finally:
            server.close()
            timers.close()

    asyncio.run(run())


def test_certificates_and_users(files: Files) -> None:
    """A znode of a client with a certificate and a login is for both."""

    async def work(port: int, _secure: PortTls) -> None:
        jaas = files.written("client.conf", CLIENT_JAAS)
        alice = {"zookeeper_ssl_keystore_location": str(files.alice), "zookeeper_set_acl": "true"}
        both = await files.session(port, java_security_auth_login_config=jaas, **alice)
        await both.create("/config")
        await both.create("/config/users", b"x" * 100_000)
        acls, _ = await both._client.get_acls_async("/config/users").future
        assert [(acl.perms, *acl.id) for acl in acls] == [
            (31, "sasl", "kafka"),
            (31, "x509", "CN=alice,OU=Tests,O=Example"),
        ]
        by_certificate = await files.session(port, **alice)
        assert (await by_certificate.get_many(["/config/users"] * 20))[19] == await both.get("/config/users")
        for session in (both, by_certificate):
            await session.close()

    serve(files.server_config(), work)


def test_without_a_certificate(files: Files) -> None:
    """`ssl.clientAuth=want` serves others, too, which may do what ACLs permit."""

    async def work(port: int, _secure: PortTls) -> None:
        alice = await files.session(port, zookeeper_ssl_keystore_location=str(files.alice), zookeeper_set_acl="true")
        await alice.create("/a", b"x")
        nobody = await files.session(port)
        assert (await nobody.get("/a"))[0] == b"x"
        with pytest.raises(NotPermitted, match="another login"):
            await nobody.set("/a", b"y")
        for session in (alice, nobody):
            await session.close()

    serve(files.server_config(ssl_clientAuth="want"), work)


def test_refused_certificates(files: Files) -> None:
    """A server with another certificate, and a client without one: the start ends, with the reason."""
    stranger = str(Authority(files.directory, "stranger").trust_store)

    async def work(port: int, _secure: PortTls) -> None:
        address, security = files.client(port, zookeeper_ssl_truststore_location=stranger)
        with pytest.raises(ConnectionTimedOut, match="the certificate of the other side is not accepted"):
            await ZooKeeperSession.open(address, connection_timeout_ms=500, security=security)
        address, security = files.client(port)
        with pytest.raises(ConnectionTimedOut, match=f"no connection to ZooKeeper at {address}"):
            await ZooKeeperSession.open(address, connection_timeout_ms=500, security=security)

    serve(files.server_config(), work)


def test_renewed_certificate(files: Files) -> None:
    """New connections get the certificate of changed files; what cannot be used changes nothing. The client reads its
    trusted certificates again, too."""
    other = Authority(files.directory, "other")

    async def work(port: int, secure: PortTls) -> None:
        before = secure.tls
        files.server.write_text("nothing")
        secure.read_changed_files()
        assert secure.tls is before
        address, security = files.client(port, zookeeper_ssl_keystore_location=str(files.alice))
        leaf = other.issue("localhost")
        files.server.write_bytes(leaf.private_key_and_cert_chain_pem.bytes())
        secure.read_changed_files()
        assert secure.tls is not before
        files.authority.trust_store.write_text(other.pem)
        session = await ZooKeeperSession.open(address, connection_timeout_ms=3_000, security=security)
        await session.close()

    serve(files.server_config(), work)


def test_properties_of_the_pages(files: Files) -> None:
    """Those of docs/zookeeper.md for the server, and of docs/security/tls.md for a broker, fit together."""
    (of_server,) = [each for each in snippets_of("zookeeper.md") if "secureClientPort" in each]
    (of_client,) = [each for each in snippets_of("security/tls.md") if "zookeeper.connect" in each]
    files.server.rename(files.directory / "broker.pem")
    files.authority.trust_store.rename(files.directory / "ca.pem")
    files.written("zookeeper-jaas.conf", SERVER_JAAS)
    server_keys, client_keys = (
        dict(line.split("=", 1) for line in text.replace("/etc/barnabas", str(files.directory)).splitlines())
        for text in (of_server, of_client)
    )

    async def work(port: int, _secure: PortTls) -> None:
        keys = {**client_keys, "zookeeper.connect": f"localhost:{port}"}
        security = security_of(load(overrides=keys, environ={}), os.urandom)
        session = await ZooKeeperSession.open(f"localhost:{port}", connection_timeout_ms=3_000, security=security)
        await session.create("/config")
        await session.close()

    serve(of({**server_keys, "secureClientPort": "0"}), work)


def snippets_of(page: str) -> list[str]:
    """The blocks of properties on a page."""
    text = (Path(__file__).parents[3] / "docs" / page).read_text()
    return re.findall(r"^```properties\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


# --- the configuration --------------------------------------------------------------------------------


def test_file(files: Files) -> None:
    """Names as in zoo.cfg, or with `zookeeper.` as those of the JVM."""
    path = files.directory / "zoo.cfg"
    jaas = files.written("server.conf", SERVER_JAAS)
    path.write_text(
        f"tickTime=2000\nclientPort=2181\nsecureClientPort=2281\nsecureClientPortAddress=::1\n"
        f"zookeeper.ssl.keyStore.location={files.server}\nssl.enabledProtocols=TLSv1.3\n"
        f"ssl.clientAuth=want\nzookeeper.superUser=kafka\njava.security.auth.login.config={jaas}\n"
    )
    config = read(path)
    assert (config.address, config.secure_address) == ("127.0.0.1:2181", "[::1]:2281")
    assert config.passwords == {"kafka": "secret", "super": "top"}
    assert config.tls is not None
    assert (config.tls.client_auth, config.tls.enabled_protocols) == ("requested", ("TLSv1.3",))
    assert config.superusers == {("sasl", "kafka")}
    assert "secret" not in repr(config)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"clientPort": "x"}, "clientPort: "),
        ({"secureClientPort": "1", "ssl.clientAuth": "perhaps"}, "ssl.clientAuth: perhaps is not one of none, want"),
        ({"java.security.auth.login.config": "/none"}, "java.security.auth.login.config: cannot read /none: No such"),
    ],
)
def test_invalid_values(values: dict[str, str], told: str) -> None:
    with pytest.raises(ZooKeeperConfigError, match=told):
        of(values)


def test_users_without_a_section(files: Files) -> None:
    path = files.written("client.conf", CLIENT_JAAS)
    with pytest.raises(ZooKeeperConfigError, match="needs a section Server"):
        of({"java.security.auth.login.config": path})


def test_addresses(files: Files) -> None:
    """Others than this machine's programs connect only with a certificate that is checked."""
    assert addresses(None, None) == ("127.0.0.1", 2181)
    assert addresses(None, ZooKeeperConfig("localhost:7")) == ("127.0.0.1", 7)
    assert addresses("127.0.0.1:5", ZooKeeperConfig("localhost:7")) == ("127.0.0.1", 5)
    open_to_others = {"secureClientPortAddress": "0.0.0.0", "ssl_clientAuth": "need"}
    assert addresses(None, files.server_config(**open_to_others)) == (None, 0)
    with pytest.raises(ValueError, match=r"secureClientPortAddress 0\.0\.0\.0:0: only this machine may connect"):
        addresses(None, files.server_config(**{**open_to_others, "ssl_clientAuth": "want"}))
    with pytest.raises(ValueError, match=r"--listen 0\.0\.0\.0:1: only this machine"):
        addresses("0.0.0.0:1", None)
