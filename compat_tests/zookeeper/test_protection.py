"""TLS, logins and ACLs of znodes: our broker on a real ZooKeeper, and Kafka's own shell on our server."""

import base64
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from barnabas.broker.cli.authority import pkcs12_trust
from compat_tests.conftest import create_topic
from compat_tests.zookeeper.conftest import broker_on
from compat_tests.zookeeper.test_change_of_broker import hand_over
from compat_tests.zookeeper.waiting import consume, produce
from tests.support.certificates import Authority, pkcs12_of
from tools.foreign.kafka import ZOOKEEPER_ERA_VERSION, kafka_runtime
from tools.foreign.zookeeper import ZooKeeperServer
from tools.jvm.shared import SharedJvm
from tools.processes.barnabas import BarnabasZooKeeper
from tools.waiting import PATIENCE_S

pytestmark = pytest.mark.java

PASSWORD = "password"  # of the stores
SUPERUSER = "super:top"
MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule required"
PROVIDERS = "org.apache.zookeeper.server.auth"
SHELL = "org.apache.zookeeper.ZooKeeperMainWithTlsSupportForKafka"
IDENTITIES = {
    "certificate": {("x509", "CN=alice,OU=Tests,O=Example")},
    "user": {("sasl", "kafka")},
    "certificate and user": {("x509", "CN=alice,OU=Tests,O=Example"), ("sasl", "kafka")},
}


def digest(credentials: str) -> str:
    hashed = base64.b64encode(hashlib.sha1(credentials.encode(), usedforsecurity=False).digest()).decode()
    return f"{credentials.partition(':')[0]}:{hashed}"


@dataclass(frozen=True)
class Files:
    """Stores as PKCS12, which Java reads, and JAAS files."""

    server: Path
    trusted: Path
    alice: Path
    server_jaas: Path
    client_jaas: Path

    @classmethod
    def make(cls, directory: Path) -> "Files":
        authority = Authority(directory)
        found = cls(*(directory / name for name in ("server.p12", "ca.p12", "alice.p12", "server.conf", "client.conf")))
        found.server.write_bytes(pkcs12_of(authority.issue("localhost", "127.0.0.1"), PASSWORD))
        found.trusted.write_bytes(pkcs12_trust(authority.pem.encode(), PASSWORD))
        found.alice.write_bytes(pkcs12_of(authority.issue("alice", common_name="alice"), PASSWORD))
        found.server_jaas.write_text(f'Server {{ {MODULE} user_kafka="secret"; }};')
        found.client_jaas.write_text(f'Client {{ {MODULE} username="kafka" password="secret"; }};')
        return found

    def of_server(self) -> dict[str, str]:
        """The keys of a server's TLS and users, without `zookeeper.`."""
        return {
            "java.security.auth.login.config": str(self.server_jaas),
            "ssl.keyStore.location": str(self.server),
            "ssl.keyStore.password": PASSWORD,
            "ssl.trustStore.location": str(self.trusted),
            "ssl.trustStore.password": PASSWORD,
        }

    def of_client(self, login: str) -> dict[str, str]:
        """The keys of a broker that logs in by one of `IDENTITIES`."""
        tls = {
            "zookeeper.ssl.client.enable": "true",
            "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
            "zookeeper.ssl.keystore.location": str(self.alice),
            "zookeeper.ssl.keystore.password": PASSWORD,
            "zookeeper.ssl.truststore.location": str(self.trusted),
            "zookeeper.ssl.truststore.password": PASSWORD,
        }
        user = {"java.security.auth.login.config": str(self.client_jaas)}
        return {
            "zookeeper.set.acl": "true",
            **{
                "certificate": tls,
                "user": user,
                "certificate and user": {**tls, **user},
                "digest": {"barnabas.zookeeper.digest": "bob:pw"},
            }[login],
        }


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files.make(tmp_path_factory.mktemp("stores"))


@pytest.fixture(scope="module")
def secure(files: Files, zookeeper: ZooKeeperServer) -> Iterator[ZooKeeperServer]:
    """A real ZooKeeper with a port with TLS, users of SASL and a superuser of the scheme digest."""
    assert zookeeper.address, "there is Java"
    properties = {
        f"zookeeper.{key}" if key.startswith("ssl.") else key: value for key, value in files.of_server().items()
    }
    properties |= {
        "zookeeper.authProvider.sasl": f"{PROVIDERS}.SASLAuthenticationProvider",
        "zookeeper.authProvider.x509": f"{PROVIDERS}.X509AuthenticationProvider",
        "zookeeper.DigestAuthenticationProvider.superDigest": digest(SUPERUSER),
    }
    with ZooKeeperServer(is_secure=True, properties=properties) as server:
        yield server


def acls_of_tree(address: str, root: str) -> dict[str, set[tuple[int, str, str]]]:
    """The ACL of each znode below a root, and of the root, as the superuser sees it."""
    client = KazooClient(address, auth_data=[("digest", SUPERUSER)])
    client.start(timeout=PATIENCE_S)
    try:
        found, waiting = {}, [root]
        while waiting:
            path = waiting.pop()
            acls, _ = client.get_acls(path)
            found[path.removeprefix(root) or root] = {(acl.perms, *acl.id) for acl in acls}
            waiting += [f"{path}/{name}" for name in client.get_children(path)]
        return found
    finally:
        client.stop()
        client.close()


@pytest.mark.parametrize(
    "login",
    [
        "certificate and user",
        *(pytest.param(each, marks=pytest.mark.full) for each in ("certificate", "user", "digest")),
    ],
)
def test_acls_of_a_cluster(secure: ZooKeeperServer, files: Files, login: str) -> None:
    """A cluster is served, and each znode has the ACL that Kafka's ZkData gives it."""
    root = f"/{login.replace(' ', '-')}"
    keys = files.of_client(login)
    address = secure.secure_address if "zookeeper.ssl.client.enable" in keys else secure.address
    keys["zookeeper.connect"] = address + root
    keys["authorizer.class.name"] = "kafka.security.authorizer.AclAuthorizer"
    keys["super.users"] = "User:ANONYMOUS"
    with broker_on(secure, root, **keys) as broker:
        create_topic(broker.bootstrap_servers, "letters", 1, {"retention.ms": "86400000"})
        assert produce(broker.bootstrap_servers, "letters", "a") == 0
        assert consume(broker.bootstrap_servers, "letters", "readers", 1) == ["a"]
        found = acls_of_tree(secure.address, root)
        for secret in ("password", "secret", "bob:pw"):
            assert f"{secret}\n" not in broker.log_text()
    assert len(found) > 30, sorted(found)
    with SharedJvm(ZOOKEEPER_ERA_VERSION) as jvm:
        collections = jvm.java.scala.jdk.javaapi.CollectionConverters
        for path, acls in found.items():
            theirs = collections.asJava(jvm.java.kafka.zk.ZkData.defaultAcls(True, path))
            expected = {(acl.getPerms(), acl.getId().getScheme(), acl.getId().getId()) for acl in theirs}
            for creator in [each for each in expected if each[1] == "auth"]:
                expected.remove(creator)
                expected |= {(creator[0], *identity) for identity in identities(login)}
            assert acls == expected, path


def identities(login: str) -> set[tuple[str, str]]:
    return {("digest", digest("bob:pw"))} if login == "digest" else IDENTITIES[login]


@pytest.mark.full
def test_kafka_takes_over(secure: ZooKeeperServer, files: Files, tmp_path: Path) -> None:
    """Apache Kafka 3.9.1 with the same keys in our place, and back: either may write what the other has created."""
    keys = {**files.of_client("certificate"), "zookeeper.ssl.protocol": "TLSv1.3"}
    hand_over(secure, tmp_path, secure.secure_address, keys)


@pytest.fixture
def own(files: Files, tmp_path: Path) -> Iterator[BarnabasZooKeeper]:
    """Our server, with the same keys."""
    config = tmp_path / "zoo.cfg"
    values = {"clientPort": "0", "secureClientPort": "0", **files.of_server()}
    config.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    with BarnabasZooKeeper(config=config) as process:
        yield process


def in_shell(address: str, *lines: str, tls: Path | None = None) -> str:
    """The output of zookeeper-shell for each line, with its complaints."""
    options = [] if tls is None else ["-zk-tls-config-file", str(tls)]
    done = kafka_runtime(ZOOKEEPER_ERA_VERSION).tool(
        SHELL, ["-server", address, *options], stdin="".join(f"{line}\n" for line in (*lines, "quit"))
    )
    return done.stdout + done.stderr


def test_shell_with_logins(
    own: BarnabasZooKeeper, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java's client logs in by its certificate, by SASL and by `addauth`, and may do what the ACLs permit."""
    out = in_shell(
        own.address,
        "addauth digest bob:pw",
        "create /a x auth::cdrwa",
        "getAcl /a",
        "create /b x world:anyone:r",
        "set /b y",
    )
    assert f"'digest,'{digest('bob:pw')}\n: cdrwa" in out, out
    assert "Insufficient permission : /b" in out, out
    assert "Insufficient permission : /a" in in_shell(own.address, "get /a"), "nobody else may"

    tls = tmp_path / "tls.properties"
    tls.write_text("".join(f"{key}={value}\n" for key, value in files.of_client("certificate").items()))
    assert own.secure_address is not None
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Djava.security.auth.login.config={files.client_jaas}")
    out = in_shell(own.secure_address, "create /c x auth::cdrwa", "getAcl /c", tls=tls)
    assert "'x509,'CN=alice%2COU=Tests%2CO=Example\n: cdrwa" in out, out
    assert "'sasl,'kafka\n: cdrwa" in out, out
