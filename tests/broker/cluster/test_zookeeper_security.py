"""The protection of sessions with ZooKeeper, from the configuration: what is read, and what is refused, in one line."""

import os
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.cluster.zookeeper_security import Encryption, problems, read
from barnabas.broker.configuration.config import BrokerConfig, load, resolve
from barnabas.controller.znode_acls import acls_of
from tests.support.certificates import Authority, chain_of, encrypted_key, pkcs12_of

MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule"
TLS = {"zookeeper.ssl.client.enable": "true"}


def config(configs: dict[str, str]) -> BrokerConfig:
    return load(overrides={"zookeeper.connect": "zk:2181", **configs}, environ={})


def errors(configs: dict[str, str]) -> tuple[str, ...]:
    return resolve(overrides={"zookeeper.connect": "zk:2181", **configs}, environ={}).errors


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def jaas(directory: Path, line: str, section: str = "Client") -> str:
    path = directory / "login.conf"
    path.write_text(f"{section} {{ {line} }};")
    return str(path)


def test_nothing_is_protected() -> None:
    """The default: plain connections, for which nothing is imported."""
    assert not config({}).has_protected_zookeeper
    assert not load(overrides=TLS, environ={}).has_protected_zookeeper, "there is no ZooKeeper"


def test_all_of_it(authority: Authority) -> None:
    found = read(
        config(
            {
                **TLS,
                "zookeeper.ssl.truststore.location": str(authority.trust_store),
                "zookeeper.set.acl": "true",
                "java.security.auth.login.config": jaas(
                    authority.directory, f'{MODULE} required username="kafka" password="secret";'
                ),
                "barnabas.zookeeper.digest": "bob:hidden",
            }
        ),
        os.urandom,
    )
    assert isinstance(found.encrypt, Encryption)
    assert found.login is not None
    assert (found.login.username, found.login.password) == ("kafka", "secret")
    assert found.acls_of is acls_of
    assert found.user == "kafka"
    assert "secret" not in repr(found)
    assert "hidden" not in repr(found)


@pytest.mark.parametrize(
    ("configs", "enabled"),
    [
        ({}, ("TLSv1_2", "TLSv1_3")),
        ({"zookeeper.ssl.protocol": "TLSv1.2"}, ("TLSv1_2", "TLSv1_2")),
        ({"zookeeper.ssl.protocol": "TLSv1.2", "zookeeper.ssl.enabled.protocols": "TLSv1.3"}, ("TLSv1_3", "TLSv1_3")),
        ({"zookeeper.ssl.cipher.suites": "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"}, ("TLSv1_2", "TLSv1_2")),
    ],
)
def test_versions(authority: Authority, configs: dict[str, str], enabled: tuple[str, str]) -> None:
    """Suites of TLS 1.2 alone leave no other version."""
    stores = {"zookeeper.ssl.truststore.location": str(authority.trust_store)}
    context = encryption(config({**TLS, **stores, **configs}))._context
    assert (context.minimum_version.name, context.maximum_version.name) == enabled
    assert context.check_hostname


def encryption(found: BrokerConfig) -> Any:
    return read(found, os.urandom).encrypt


def test_names_are_not_compared() -> None:
    """With an empty algorithm, as in Kafka."""
    found = encryption(config({**TLS, "zookeeper.ssl.endpoint.identification.algorithm": ""}))
    assert not found._context.check_hostname


def test_stores_as_in_zookeeper(authority: Authority) -> None:
    """The password of a store in PEM is that of its key; a file whose name does not say so may be PKCS12 or PEM."""
    directory, leaf = authority.directory, authority.issue("kafka")
    files = {
        "encrypted.pem": (encrypted_key(leaf, "secret") + chain_of(leaf)).encode(),
        "store.p12": pkcs12_of(leaf, "secret"),
        "plain.pem": leaf.private_key_and_cert_chain_pem.bytes(),
        "of_any_name": leaf.private_key_and_cert_chain_pem.bytes(),
    }
    for name, content in files.items():
        (directory / name).write_bytes(content)
        keys = {"zookeeper.ssl.keystore.location": str(directory / name)}
        if b"ENCRYPTED" in content or name == "store.p12":
            keys["zookeeper.ssl.keystore.password"] = "secret"
        assert problems(config({**TLS, **keys})) == [], name


def test_jks_is_refused(tmp_path: Path) -> None:
    """With the command that converts it."""
    path = tmp_path / "kafka.jks"
    path.write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    (told,) = problems(config({**TLS, "zookeeper.ssl.keystore.location": str(path)}))
    assert told == (
        f"zookeeper.ssl.keystore.location: {path} is a JKS store, which only Java reads; convert it: keytool"
        " -importkeystore -srckeystore FILE.jks -destkeystore FILE.p12 -deststoretype PKCS12"
    )


def test_wrong_password_of_a_key(authority: Authority) -> None:
    """The key is named by which ZooKeeper has it; the password is not there."""
    leaf = authority.issue("kafka")
    path = authority.directory / "kafka.pem"
    path.write_text(encrypted_key(leaf, "secret") + chain_of(leaf))
    keys = {**TLS, "zookeeper.ssl.keystore.location": str(path), "zookeeper.ssl.keystore.password": "guess"}
    (told,) = problems(config(keys))
    location = "zookeeper.ssl.keystore.location"
    assert told == f"{location}: the private key cannot be read with zookeeper.ssl.keystore.password"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("com.sun.security.auth.module.Krb5LoginModule required;", "Krb5LoginModule needs a principal and a keyTab"),
        ("org.example.LoginModule required;", "org.example.LoginModule is not supported: use org.apache.zookeeper"),
        (f'{MODULE} required username="kafka";', "needs a username and a password"),
        (f"{MODULE} perhaps;", "not followed by a control flag"),
    ],
)
def test_modules_that_cannot_log_in(tmp_path: Path, line: str, told: str) -> None:
    path = jaas(tmp_path, line)
    (found,) = problems(config({"java.security.auth.login.config": path}))
    assert found.startswith(f"java.security.auth.login.config: section Client of {path}")
    assert told in found


def test_a_file_without_the_section(tmp_path: Path) -> None:
    """No login, as in Kafka: the file may be for other connections. Then there is nobody whose the ACLs could be."""
    path = jaas(tmp_path, f'{MODULE} required username="a" password="b";', "Server")
    keys = {"java.security.auth.login.config": path}
    assert read(config(keys), os.urandom).login is None
    (told,) = problems(config({**keys, "zookeeper.set.acl": "true"}))
    assert told == f"zookeeper.set.acl needs a login, but {path} has no section Client"


@pytest.mark.parametrize(
    ("configs", "told"),
    [
        ({"zookeeper.set.acl": "true"}, "the broker has no login for ZooKeeper: set java.security.auth.login.config"),
        ({"zookeeper.set.acl": "true", **TLS}, "the broker has no login for ZooKeeper"),
        ({"zookeeper.ssl.crl.enable": "true"}, "zookeeper.ssl.crl.enable: revoked certificates are not looked up"),
        ({"zookeeper.ssl.ocsp.enable": "true"}, "zookeeper.ssl.ocsp.enable: revoked certificates are not looked up"),
        ({"zookeeper.clientCnxnSocket": "com.example.Socket"}, "other Java classes cannot be loaded"),
        (
            {**TLS, "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNIO"},
            "with TLS it is org.apache.zookeeper.ClientCnxnSocketNetty",
        ),
        ({"barnabas.zookeeper.digest": "no-colon-secret"}, "expected USER:PASSWORD"),
    ],
)
def test_refused_keys(configs: dict[str, str], told: str) -> None:
    (found,) = errors(configs)
    assert told in found
    assert "no-colon-secret" not in found


def test_properties_of_the_jvm() -> None:
    """The file that Kafka's images have in KAFKA_OPTS; the key itself counts before it."""
    options = {"KAFKA_OPTS": "-Xmx1g -Djava.security.auth.login.config=/etc/jaas.conf -Da=b"}
    connect = {"zookeeper.connect": "zk:2181"}
    assert load(overrides=connect, environ=options).java_security_auth_login_config == "/etc/jaas.conf"
    own = {**connect, "java.security.auth.login.config": "/own.conf"}
    assert load(overrides=own, environ=options).java_security_auth_login_config == "/own.conf"


def test_keys_without_zookeeper() -> None:
    """Each is told to have no effect."""
    keys = {**TLS, "java.security.auth.login.config": "/none", "barnabas.zookeeper.digest": "a:b"}
    warnings = resolve(overrides=keys, environ={}).warnings
    assert len([each for each in warnings if "has no effect without zookeeper.connect" in each]) == 3
