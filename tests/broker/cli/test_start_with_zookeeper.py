"""`barnabas serve` and a protected ZooKeeper, each in its own process: a start, and one line for each refusal."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.certificates import Authority
from tools.processes import children
from tools.processes.barnabas import BarnabasProcess, BarnabasZooKeeper
from tools.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.live]

MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule required"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[BarnabasZooKeeper]:
    """With a user of SASL, and a port with TLS for everybody."""
    authority = Authority(tmp_path)
    (tmp_path / "server.conf").write_text(f'Server {{ {MODULE} user_kafka="right-password"; }};')
    config = tmp_path / "zoo.cfg"
    config.write_text(
        "clientPort=0\nsecureClientPort=0\nssl.clientAuth=none\n"
        f"ssl.keyStore.location={authority.key_store('server')}\nssl.trustStore.location={authority.trust_store}\n"
        f"java.security.auth.login.config={tmp_path / 'server.conf'}\n"
    )
    with BarnabasZooKeeper(config=config) as process:
        yield process


def login(directory: Path, password: str) -> str:
    path = directory / "client.conf"
    path.write_text(f'Client {{ {MODULE} username="kafka" password="{password}"; }};')
    return str(path)


def refused(directory: Path, **overrides: str) -> subprocess.CompletedProcess[str]:
    """A start that does not come about."""
    command = [sys.executable, "-m", "barnabas", "serve", "--listen", "127.0.0.1:0", "--data-dir", str(directory / "d")]
    for key, value in overrides.items():
        command += ["--override", f"{key.replace('_', '.')}={value}"]
    ended = children.run(command, capture_output=True, text=True)
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    return ended


def test_start_with_tls_and_a_login(server: BarnabasZooKeeper, tmp_path: Path) -> None:
    """The broker registers; neither log has the password."""
    assert server.secure_address is not None
    keys = {
        "zookeeper.connect": f"{server.secure_address}/kafka",
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.ssl.truststore.location": str(tmp_path / "authority.pem"),
        "zookeeper.set.acl": "true",
        "java.security.auth.login.config": login(tmp_path, "right-password"),
    }
    with BarnabasProcess(keys) as broker:
        assert broker.node_id >= 0
        for process in (broker, server):
            assert "right-password" not in process.log_text()


@pytest.mark.full
def test_two_brokers_share_a_login(server: BarnabasZooKeeper, tmp_path: Path) -> None:
    """One is killed: the other leads, and the killed one ends its former session and writes what the other has made."""
    keys = {
        "zookeeper.connect": f"{server.address}/kafka",
        "zookeeper.set.acl": "true",
        "java.security.auth.login.config": login(tmp_path, "right-password"),
        "offsets.topic.replication.factor": "1",
    }
    with BarnabasProcess({**keys, "node.id": "1"}) as one, BarnabasProcess({**keys, "node.id": "2"}) as other:
        client = AdminClient({"bootstrap.servers": other.bootstrap_servers})
        client.create_topics([NewTopic("t", 1, replica_assignment=[[1, 2]])])["t"].result(PATIENCE_S)
        wait_until(lambda: client.list_topics("t", timeout=PATIENCE_S).topics["t"].partitions[0].leader == 1)
        one.kill()
        one.start()
        assert "ended the session that this broker's last run left open" in one.log_text()
        client = AdminClient({"bootstrap.servers": one.bootstrap_servers})
        client.create_topics([NewTopic("u", 1, replica_assignment=[[2, 1]])])["u"].result(PATIENCE_S)
        other.kill()
        wait_until(lambda: client.list_topics("u", timeout=PATIENCE_S).topics["u"].partitions[0].leader == 1)


def test_refused_login_is_reported_in_one_line(server: BarnabasZooKeeper, tmp_path: Path) -> None:
    jaas = login(tmp_path, "wrong-password")
    ended = refused(tmp_path, zookeeper_connect=server.address, java_security_auth_login_config=jaas)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].endswith(
        f"ZooKeeper at {server.address} does not accept the login of kafka: a wrong user or password"
    )
    assert "wrong-password" not in ended.stderr


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    """By `serve` and by `config check`, before ZooKeeper is asked."""
    store = tmp_path / "kafka.jks"
    store.write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    keys = {"zookeeper_connect": "127.0.0.1:1", "zookeeper_ssl_client_enable": "true"}
    ended = refused(tmp_path, **keys, zookeeper_ssl_keystore_location=str(store))
    assert ended.returncode == 2
    told = f"zookeeper.ssl.keystore.location: {store} is a JKS store, which only Java reads; convert it: keytool"
    assert told in ended.stderr.splitlines()[-1]
    properties = tmp_path / "server.properties"
    properties.write_text(
        "".join(f"{key.replace('_', '.')}={value}\n" for key, value in keys.items())
        + f"zookeeper.ssl.keystore.location={store}\n"
    )
    checked = children.run(
        [sys.executable, "-m", "barnabas", "config", "check", str(properties)], capture_output=True, text=True
    )
    assert checked.returncode == 2
    assert told in checked.stdout + checked.stderr
