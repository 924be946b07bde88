"""`serve --secure`: what it makes, keeps and configures."""

from __future__ import annotations

import argparse
import ast
import json
import stat
from pathlib import Path

import pytest
from cryptography import x509
from joserfc import jwk, jwt

from barnabas.broker.cli.one_broker import read_configuration
from barnabas.broker.cli.secure import (
    AUDIENCE,
    ISSUER,
    MECHANISMS_BEFORE,
    Secured,
    accounts,
    directory_of,
    secure,
    write_client_files,
)
from barnabas.broker.cli.secure_clients import instructions, spark_options
from barnabas.broker.cli.serve import parser
from barnabas.broker.client.errors import ClientError
from barnabas.broker.client.security import UserLogin
from barnabas.broker.client.security_properties import SecurityProperties
from barnabas.broker.client.tls import client_context
from barnabas.broker.configuration.config import BrokerConfig, ConfigError
from barnabas.broker.configuration.properties import parse_properties
from barnabas.broker.http.oauth import LIFETIME_S, Issuer, key_set_text
from barnabas.clock import ManualClock


def options(folder: Path, *more: str) -> argparse.Namespace:
    return parser().parse_args(["--secure", "--data-dir", str(folder), *(more or ("--listen", "127.0.0.1:0"))])


def config_of(folder: Path, *more: str) -> BrokerConfig:
    config = read_configuration(options(folder, *more), {}, unless_set=MECHANISMS_BEFORE).config
    assert config is not None
    return config


def secured(folder: Path, *more: str) -> Secured:
    return secure(folder / "secure", config_of(folder, *more))


def test_the_directory_is_for_its_owner_alone(tmp_path: Path) -> None:
    found = secured(tmp_path)
    write_client_files(found, "127.0.0.1:9093")
    assert stat.S_IMODE(found.directory.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in found.directory.iterdir()}
    assert set(modes) == {
        "admin.properties", "broker.pem", "ca-key.pem", "ca.pem", "client.p12", "client.properties",
        "librdkafka.properties", "truststore.p12", "users.properties",
    }  # fmt: skip
    assert set(modes.values()) == {0o600}


def test_another_start_keeps_all(tmp_path: Path) -> None:
    first = secured(tmp_path, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
    before = {path.name: path.read_bytes() for path in first.directory.iterdir()}
    second = secured(tmp_path, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
    assert second == first
    assert {path.name: path.read_bytes() for path in first.directory.iterdir()} == before


def test_a_certificate_that_lacks_a_name_is_issued_anew(tmp_path: Path) -> None:
    found = secured(tmp_path)
    ca, former = (found.directory / "ca.pem").read_bytes(), (found.directory / "broker.pem").read_bytes()
    secured(tmp_path, "--listen", "kafka.example:9092")
    now = (found.directory / "broker.pem").read_bytes()
    assert now != former
    assert (found.directory / "ca.pem").read_bytes() == ca
    names = x509.load_pem_x509_certificate(now).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {"kafka.example", "localhost"} <= set(names.get_values_for_type(x509.DNSName))


@pytest.mark.parametrize("listen", ["127.0.0.1:0", ":9092", "[::1]:9092", "kafka.example:19092"])
def test_the_configuration(tmp_path: Path, listen: str) -> None:
    """Is one that a broker takes, with the address that was given and no listener in plain."""
    given = options(tmp_path, "--listen", listen)
    found = secured(tmp_path, "--listen", listen)
    resolution = read_configuration(given, {}, found.configs)
    assert resolution.config is not None, resolution.errors
    [listener] = resolution.config.listeners
    assert listener.security_protocol == "SASL_SSL"
    assert listener.port == int(listen.rpartition(":")[2])
    assert (listener.has_tls, listener.has_sasl) == (True, True)
    assert resolution.config.value("super.users") == "User:admin"
    plain = resolution.config.value_for_listener(listener.name, "sasl.jaas.config", "PLAIN")
    assert f'user_client="{found.users[1].password}"' in str(getattr(plain, "value", plain))


def test_a_listener_that_is_configured(tmp_path: Path) -> None:
    """As one of SASL_SSL, whose mechanisms and key follow here."""
    given = ("--override", "listeners=SASL_SSL://127.0.0.1:0")
    resolution = read_configuration(options(tmp_path, *given), {}, secured(tmp_path, *given).configs)
    assert resolution.config is not None, resolution.errors
    assert resolution.config.value("sasl.enabled.mechanisms") == ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")


def test_what_somebody_configured_stays(tmp_path: Path) -> None:
    found = secured(tmp_path, "--override", "super.users=User:me", "--override", "sasl.enabled.mechanisms=PLAIN")
    assert not {"super.users", "sasl.enabled.mechanisms"} & set(found.configs)


def test_the_files_of_clients_are_understood(tmp_path: Path) -> None:
    found = secured(tmp_path)
    write_client_files(found, "127.0.0.1:9093")
    for file, name in (("admin", "admin"), ("client", "client"), ("librdkafka", "client")):
        values = parse_properties((found.directory / f"{file}.properties").read_text())
        assert values["bootstrap.servers"] == "127.0.0.1:9093"
        security = SecurityProperties(values).security()
        [user] = [user for user in found.users if user.name == name]
        assert security.login == UserLogin(name, user.password, "SCRAM-SHA-512")
        assert security.tls is not None
        client_context(security.tls)


def test_secrets_are_in_no_text_form(tmp_path: Path) -> None:
    found = secured(tmp_path)
    told = f"{found} {found.users} {accounts(found, 'h:1')}"
    assert not any(user.password in told for user in found.users)


def test_each_client_has_lines_to_paste(tmp_path: Path) -> None:
    account = accounts(secured(tmp_path), "h:1,[::1]:2")["client"]
    told = instructions(account, "/secure", "http://127.0.0.1:8080/oauth/token")
    for client in (
        "Java",
        "kcat",
        "librdkafka",
        "aiokafka",
        "kafka-python",
        "kafkajs",
        "franz-go",
        "Spark",
        "OAUTHBEARER",
    ):
        assert client in told
    assert told.count(account.password) >= 7
    assert '"h:1", "[::1]:2"' in told


def test_the_lines_of_spark_are_python(tmp_path: Path) -> None:
    """They begin at the margin, where a prompt takes them."""
    account = accounts(secured(tmp_path), "h:1,[::1]:2")["client"]
    lines = instructions(account, "/secure", None).partition("Spark (Python):\n")[2]
    settings, records = ast.parse(lines).body
    assert isinstance(settings, ast.Assign)
    assert ast.literal_eval(settings.value) == spark_options(account)
    assert ast.unparse(records).startswith("records = spark.read.format('kafka')")


@pytest.mark.parametrize(
    "more",
    [
        ("--override", "listeners=PLAINTEXT://:0,SSL://:1"),
        ("--override", "listeners=SSL://127.0.0.1:0"),
        ("--override", "listeners=SASL_PLAINTEXT://127.0.0.1:0"),
    ],
)
def test_listeners_that_cannot_be_secured(tmp_path: Path, more: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="--secure sets up one listener"):
        secured(tmp_path, *more)


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "server.properties").write_text("")
    with pytest.raises(ConfigError, match="is a file: name the configuration file before --secure"):
        directory_of(str(tmp_path / "server.properties"), str(tmp_path))


def test_brokers_of_a_cluster_have_their_own_listener(tmp_path: Path) -> None:
    """Which of them is that, says each one's plan."""
    found = secured(tmp_path)
    assert found.configs.keys() - found.of_cluster.keys() == {
        "security.inter.broker.protocol", "sasl.mechanism.inter.broker.protocol",
    }  # fmt: skip


def test_a_broker_that_starts_again_has_no_new_passwords(tmp_path: Path) -> None:
    found = secured(tmp_path)
    assert [user.has_new_password for user in found.users] == [True, True]
    assert [user.has_new_password for user in found.later.users] == [False, False]
    assert found.later.users == found.users


def test_a_lost_key_of_the_ca(tmp_path: Path) -> None:
    found = secured(tmp_path)
    (found.directory / "ca-key.pem").unlink()
    with pytest.raises(ClientError, match=r"ca-key\.pem is missing: restore it"):
        secured(tmp_path)


def test_tokens_of_the_issuer(tmp_path: Path) -> None:
    """By the file of keys alone, and for an hour."""
    found = secured(tmp_path, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
    assert found.token_key is not None
    clock = ManualClock()
    issuer = Issuer(
        found.token_key, {"client": "pw"}, issuer=ISSUER, audience=AUDIENCE, clock=clock, random_bytes=bytes
    )
    keys = jwk.KeySet.import_key_set(json.loads(key_set_text(issuer)))
    claims = jwt.decode(issuer.token("client", "a b"), keys, algorithms=["ES256"]).claims
    now_s = clock.now_ms() // 1000
    assert claims == {
        "iss": ISSUER, "sub": "client", "aud": AUDIENCE, "iat": now_s, "exp": now_s + LIFETIME_S, "jti": "00" * 16,
        "scope": "a b",
    }  # fmt: skip
    assert '"d"' not in key_set_text(issuer)
