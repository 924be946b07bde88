"""Barnabas' commands on Apache Kafka with TLS, SASL and its authorizer: logins, users, ACLs, quotas, refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.cli.app import main
from tools.foreign.kafka import KafkaServer
from tools.processes.server import free_ports

pytestmark = [pytest.mark.slow, pytest.mark.java]

PASSWORD = "pl=ain,secret"
MODULES = "org.apache.kafka.common.security"


@dataclass
class Secured:
    """Apache Kafka, and the files of its CA."""

    plaintext: str
    sasl: str
    tls: str
    files: Path


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    files = tmp_path_factory.mktemp("certificates")
    assert main(["certificates", "make", str(files), "--client", "carol"]) == 0
    port, controller_port, sasl_port, tls_port = free_ports(4)
    addresses = {"PLAINTEXT": port, "SASL_SSL": sasl_port, "SSL": tls_port}
    told = ",".join(f"{name}://127.0.0.1:{number}" for name, number in addresses.items())
    overrides = {
        "listeners": f"{told},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": told,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,SSL:SSL,CONTROLLER:PLAINTEXT",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:admin",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": (
            f'{MODULES}.plain.PlainLoginModule required user_admin="{PASSWORD}";'
        ),
        "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": f"{MODULES}.scram.ScramLoginModule required;",
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": f"{MODULES}.scram.ScramLoginModule required;",
        "listener.name.sasl_ssl.oauthbearer.sasl.jaas.config": (
            f'{MODULES}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
        ),
        "listener.name.sasl_ssl.oauthbearer.sasl.server.callback.handler.class": (
            f"{MODULES}.oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
        ),
        "listener.name.ssl.ssl.client.auth": "required",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(files / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(files / "ca.pem"),
    }
    with KafkaServer(overrides=overrides, ports=(port, controller_port)):
        yield Secured(f"127.0.0.1:{port}", f"127.0.0.1:{sasl_port}", f"127.0.0.1:{tls_port}", files)


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Status, output and errors of a command."""

    def command(servers: str, *arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        status = main([*arguments, "-b", servers])
        return status, *capfd.readouterr()

    return command


def user(kafka: Secured, name: str, password: str, option: str = "--user") -> list[str]:
    return [option, name, "--password", password, "--ca", str(kafka.files / "ca.pem")]


def test_a_user_that_the_commands_add_logs_in(kafka: Secured, run: Run) -> None:
    """By both mechanisms of SCRAM; one without a permission is told what it lacks, and then has it."""
    added = run(kafka.plaintext, "users", "add", "alice", "--new-password", "a,b=c")
    assert added == (0, "user alice is added, for SCRAM-SHA-256 and SCRAM-SHA-512\n", "")
    assert run(kafka.plaintext, "topics", "create", "orders-eu")[0] == 0
    login = user(kafka, "alice", "a,b=c")
    status, _, err = run(kafka.sasl, "topics", "offsets", "orders-eu", *login)
    assert status == 1
    assert "alice lacks DESCRIBE on topic orders-eu" in err
    advice = err.partition("`barnabas ")[2].partition("`")[0].split()
    admin = user(kafka, "admin", PASSWORD, "--as")
    assert run(kafka.sasl, *advice, *admin)[:2] == (0, "alice may DESCRIBE topic orders-eu\n")
    assert run(kafka.sasl, "topics", "offsets", "orders-eu", *login)[0] == 0
    assert run(kafka.plaintext, "users", "password", "alice", "--mechanism", "SCRAM-SHA-256")[0] == 0
    assert run(kafka.sasl, "topics", "list", *login)[0] == 0
    assert run(kafka.plaintext, "users", "remove", "alice")[:2] == (0, "user alice is removed\n")
    status, _, err = run(kafka.sasl, "topics", "list", *login)
    assert (status, "does not accept user alice with this password" in err) == (1, True)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"])
def test_each_mechanism(kafka: Secured, run: Run, tmp_path: Path, mechanism: str) -> None:
    action = "password" if run(kafka.plaintext, "users", "list", "admin")[0] == 0 else "add"
    assert run(kafka.plaintext, "users", action, "admin", "--new-password", PASSWORD)[0] == 0
    module = {"PLAIN": "plain.Plain", "OAUTHBEARER": "oauthbearer.OAuthBearer"}.get(mechanism, "scram.Scram")
    options = f'username="admin" password="{PASSWORD}"'
    if mechanism == "OAUTHBEARER":
        options = 'unsecuredLoginStringClaim_sub="admin"'
    config = tmp_path / "client.properties"
    config.write_text(
        f"security.protocol=SASL_SSL\nsasl.mechanism={mechanism}\n"
        f"sasl.jaas.config={MODULES}.{module}LoginModule required {options};\n"
        f"ssl.truststore.type=PEM\nssl.truststore.location={kafka.files / 'ca.pem'}\n"
        f"bootstrap.servers={kafka.sasl}\n"
    )
    assert run(kafka.sasl, "cluster", "describe", "--command-config", str(config))[0] == 0


def test_a_certificate(kafka: Secured, run: Run) -> None:
    own = ["--ca", str(kafka.files / "ca.pem"), "--certificate", str(kafka.files / "carol.pem")]
    assert run(kafka.tls, "topics", "list", *own)[0] == 0
    status, _, err = run(kafka.tls, "topics", "list", *own[:2])
    assert status == 1
    assert "certificate (give --certificate and --key)" in err or "certificate: give --certificate" in err
    status, _, err = run(kafka.tls, "topics", "create", "t", *own)
    assert status == 1
    assert "User:CN=carol" not in err
    assert "`barnabas acls add --user NAME --create --topic t`" in err


def test_what_does_not_fit(kafka: Secured, run: Run, tmp_path: Path) -> None:
    login = user(kafka, "admin", PASSWORD)
    assert main(["certificates", "make", str(tmp_path / "other")]) == 0
    for servers, options, told in (
        (kafka.plaintext, login, "does not speak TLS"),
        (kafka.tls, login, "certificate"),
        (kafka.sasl, [], "--ca"),
        (kafka.sasl, ["--ca", str(kafka.files / "ca.pem")], "(give --user)"),
        (kafka.sasl, user(kafka, "admin", "wrong"), "does not accept user admin with this password"),
        (kafka.sasl, [*login[:4], "--ca", str(tmp_path / "other" / "ca.pem")], "is of another CA than the one given"),
        (kafka.sasl, login[:4], "is of a CA that this system does not know"),
    ):
        status, _, err = run(servers, "topics", "list", *options)
        assert (status, err.count("\n")) == (1, 1), err
        assert told in err


def test_acls(kafka: Secured, run: Run) -> None:
    run(kafka.plaintext, "acls", "add", "--user", "eve", "--consumer", "--topic", "o", "--group", "g", "--prefix")
    status, out, _ = run(kafka.plaintext, "acls", "list", "--user", "eve", "--topic", "orders")
    assert status == 0
    assert out.count("User:eve") == 2
    assert run(kafka.plaintext, "acls", "remove", "--user", "eve", "--read")[1] == (
        "removed: eve may READ topic o...\nremoved: eve may READ group g...\n2 rules removed\n"
    )
    assert run(kafka.plaintext, "acls", "remove", "--user", "eve")[1].endswith("2 rules removed\n")


def test_quotas(kafka: Secured, run: Run) -> None:
    def change(*arguments: str) -> Any:
        return run(kafka.plaintext, "quotas", *arguments)

    assert change("set", "--user", "fred", "--client", "app", "--produce", "10MB")[0] == 0
    assert change("set", "--user-defaults", "--requests", "25")[0] == 0
    assert change("set", "--ip", "10.0.0.7", "--connections", "5")[0] == 0
    listed = change("list")[1]
    for row in (
        "user fred, client-id app  producer_byte_rate        10000000",
        "any user                  request_percentage        25",
        "ip 10.0.0.7               connection_creation_rate  5",
    ):
        assert row in listed
    assert change("remove", "--user", "fred", "--client", "app")[0] == 0
    assert change("remove", "--user", "fred", "--client", "app")[0] == 1
