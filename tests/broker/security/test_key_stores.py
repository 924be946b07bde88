"""Key stores and trust stores: each format, and a line that names the key for each that cannot be used."""

import os
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

from barnabas.broker.security.tls.errors import TlsConfigError
from barnabas.broker.security.tls.key_stores import StoreSettings, load_key_store, load_trust_store
from barnabas.broker.security.tls.stores import as_pem, certificates_in, entries
from tests.support.certificates import Authority, chain_of, encrypted_key, pkcs12_of

SHORT_KEY = bytes.fromhex("300f020100300506032b657004030401" + "07")
"""A key of Ed25519 that has one byte: cryptography's own error."""


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def key_settings(**settings: Any) -> StoreSettings:
    given: dict[str, Any] = {"type": "JKS", "location": None, "password": None, **settings}
    return StoreSettings("keystore", "", **given)


def trust_settings(**settings: Any) -> StoreSettings:
    return key_settings(**settings)._replace(kind="truststore")


def subject(certificate: x509.Certificate) -> str:
    return certificate.subject.rfc4514_string()


def test_pem_from_a_file_and_from_the_configuration(authority: Authority) -> None:
    leaf = authority.issue("localhost", common_name="broker")
    path = authority.directory / "key.pem"
    path.write_bytes(leaf.private_key_and_cert_chain_pem.bytes())
    from_file = load_key_store(key_settings(location=str(path)))
    inline = key_settings(type="PEM", private_key=leaf.private_key_pem.bytes().decode(), certificates=chain_of(leaf))
    from_configuration = load_key_store(inline)
    assert from_file is not None
    assert from_file == from_configuration
    assert subject(from_file.certificate).startswith("CN=broker")


def test_pem_on_a_single_line(authority: Authority) -> None:
    """As in a properties file, where spaces stand for the ends of lines."""
    leaf = authority.issue("localhost", common_name="broker")
    key, chain = (text.replace("\n", " ") for text in (leaf.private_key_pem.bytes().decode(), chain_of(leaf)))
    store = load_key_store(key_settings(private_key=key, certificates=chain))
    assert store is not None
    assert subject(store.certificate).startswith("CN=broker")


def test_an_encrypted_key(authority: Authority) -> None:
    leaf = authority.issue("localhost")
    settings = key_settings(private_key=encrypted_key(leaf, "open"), certificates=chain_of(leaf), key_password="open")
    assert load_key_store(settings) is not None


def test_pkcs12_whatever_type_is_set(authority: Authority) -> None:
    """JKS is Kafka's default, where Java reads PKCS12, too."""
    path = authority.directory / "key.p12"
    path.write_bytes(pkcs12_of(authority.issue("localhost", common_name="broker"), "secret"))
    for type in ("JKS", "PKCS12"):
        store = load_key_store(key_settings(type=type, location=str(path), password="secret"))
        assert store is not None
        assert subject(store.certificate).startswith("CN=broker")


def test_a_pkcs12_trust_store(authority: Authority) -> None:
    path = authority.directory / "trust.p12"
    certificate = x509.load_pem_x509_certificate(authority.pem.encode())
    path.write_bytes(
        pkcs12.serialize_key_and_certificates(None, None, None, [certificate], BestAvailableEncryption(b"secret"))
    )
    assert load_trust_store(trust_settings(location=str(path), password="secret")) == (certificate,)


def test_nothing_is_set() -> None:
    assert load_key_store(key_settings()) is None
    assert load_trust_store(trust_settings()) is None


def test_a_jks_store_is_refused_with_the_command_that_converts_it(tmp_path: Path) -> None:
    path = tmp_path / "key.jks"
    path.write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    with pytest.raises(TlsConfigError) as error:
        load_key_store(key_settings(location=str(path), password="secret"))
    assert str(error.value) == (
        f"ssl.keystore.location: {path} is a JKS store, which only Java reads; convert it: keytool -importkeystore"
        " -srckeystore FILE.jks -destkeystore FILE.p12 -deststoretype PKCS12"
    )


def test_refusals_name_the_key(authority: Authority) -> None:
    leaf, other = authority.issue("localhost"), authority.issue("localhost")
    key, chain = leaf.private_key_pem.bytes().decode(), chain_of(leaf)
    pem, p12, text = (authority.directory / name for name in ("key.pem", "key.p12", "text"))
    pem.write_text(key + chain)
    p12.write_bytes(pkcs12_of(leaf, "secret"))
    text.write_text("no store")
    pipe = authority.directory / "pipe"
    os.mkfifo(pipe)  # nobody writes to it
    for settings, told in (
        ({"location": "/nowhere"}, "ssl.keystore.location: cannot read /nowhere: No such file"),
        ({"location": str(text)}, "neither PEM nor PKCS12"),
        ({"location": str(pem), "type": "PKCS12"}, "is PEM, not PKCS12"),
        ({"location": str(pem), "type": "BKS"}, "ssl.keystore.type: BKS is not supported"),
        ({"location": str(pem), "password": "secret"}, "ssl.keystore.password is set, but a PEM store has no password"),
        ({"location": str(pem), "key_password": "x"}, "is not encrypted: leave out ssl.key.password"),
        ({"location": str(p12)}, "ssl.keystore.location is set, but ssl.keystore.password is not"),
        ({"location": str(p12), "password": "wrong"}, "cannot be read with this password (ssl.keystore.password)"),
        ({"password": "secret"}, "ssl.keystore.password is set, but ssl.keystore.location is not"),
        ({"private_key": key}, "ssl.keystore.key is set, but ssl.keystore.certificate.chain is not"),
        ({"private_key": key, "certificates": chain_of(other)}, "does not belong to the private key"),
        ({"private_key": encrypted_key(leaf, "open"), "certificates": chain}, "is encrypted: set ssl.key.password"),
        (
            {"private_key": encrypted_key(leaf, "open"), "certificates": chain, "key_password": "wrong"},
            "cannot be read with ssl.key.password",
        ),
        ({"private_key": as_pem("PRIVATE KEY", SHORT_KEY).decode(), "certificates": chain}, "cannot be read"),
        ({"private_key": key, "certificates": "none"}, "ssl.keystore.certificate.chain has no certificate"),
        ({"location": str(authority.directory)}, "is not a file"),
        ({"location": str(pipe)}, "is not a file"),
    ):
        with pytest.raises(TlsConfigError) as error:
            load_key_store(key_settings(**settings))
        assert told in str(error.value)
        assert "\n" not in str(error.value)
        for secret in ("secret", "wrong", key):
            assert secret not in str(error.value).replace("/secret", "")


def test_pem_without_an_end_is_read_at_once() -> None:
    """A regular expression that could match it in many ways would never be done."""
    assert entries(b"-----BEGIN A-----" + b"a: b\n\n\n" * 10_000 + b"-----END B-----") == []


def test_a_certificate_of_an_unknown_version(authority: Authority) -> None:
    """Found by the fuzzer: cryptography has an error of its own for it."""
    [certificate] = certificates_in(authority.pem.encode())
    newer = certificate.replace(bytes.fromhex("a003020102"), bytes.fromhex("a003020122"), 1)
    assert newer != certificate
    with pytest.raises(TlsConfigError, match="has a certificate that cannot be read"):
        load_trust_store(trust_settings(certificates=as_pem("CERTIFICATE", newer).decode()))


def test_settings_show_no_secret() -> None:
    settings = key_settings(password="hidden", private_key="hidden", key_password="hidden")
    assert "hidden" not in repr(settings)
