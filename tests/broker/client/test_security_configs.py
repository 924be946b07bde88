"""How a client connects, in the words of Java and of librdkafka: what these say is read back as the same."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import trustme
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.client.errors import ClientError
from barnabas.broker.client.security import PLAINTEXT, Security, Tls, TokenLogin, UserLogin
from barnabas.broker.client.security_configs import java_config, librdkafka_config
from barnabas.broker.client.security_properties import SecurityProperties

CA = trustme.CA().cert_pem.bytes()
CHAIN = trustme.CA().issue_cert("alice").cert_chain_pems[0].bytes()
KEY = ec.generate_private_key(ec.SECP256R1())
PKCS8 = KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
TRADITIONAL = KEY.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())

LOGINS = {
    "nobody": None,
    "SCRAM": UserLogin("alice", "secret", "SCRAM-SHA-256"),
    "PLAIN": UserLogin("alice", 'se"cr\\et;', "PLAIN"),
    "a token": TokenLogin("https://issuer/token", "alice", "secret", "kafka", extensions=(("cluster", "a"),)),
    "an unsecured token": TokenLogin(unsecured_subject="alice"),
}
TLS = {
    "no TLS": None,
    "TLS": Tls(CA),
    "TLS of the system": Tls(),
    "a certificate": Tls(CA, CHAIN, PKCS8),
    "other hosts": Tls(CA, checks_host_name=False),
}


def with_tls(login: UserLogin | TokenLogin | None, tls: Tls | None) -> UserLogin | TokenLogin | None:
    """The login, as it is read: the endpoint of tokens is reached by the same TLS."""
    if not isinstance(login, TokenLogin):
        return login
    return TokenLogin(**{**{name: getattr(login, name) for name in TokenLogin.__slots__}, "tls": tls or Tls()})


@pytest.mark.parametrize("words", [java_config, librdkafka_config])
@pytest.mark.parametrize("login", LOGINS)
@pytest.mark.parametrize("tls", TLS)
def test_it_is_read_back(words: Callable[[Security], dict[str, str]], login: str, tls: str) -> None:
    security = Security(TLS[tls], with_tls(LOGINS[login], TLS[tls]))
    assert SecurityProperties(words(security)).security() == security


@given(st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"]), min_size=1))
def test_any_password_is_read_back(password: str) -> None:
    security = Security(Tls(CA), UserLogin("alice", password, "SCRAM-SHA-512"))
    assert SecurityProperties(java_config(security)).security() == security


def test_plaintext_is_nothing() -> None:
    assert java_config(PLAINTEXT) == librdkafka_config(PLAINTEXT) == {}


def test_without_a_mechanism_it_is_scram() -> None:
    security = Security(Tls(CA), UserLogin("alice", "secret"))
    assert java_config(security)["sasl.mechanism"] == "SCRAM-SHA-512"
    assert librdkafka_config(security)["sasl.mechanisms"] == "SCRAM-SHA-512"


def test_no_check_of_certificates_is_librdkafkas_alone() -> None:
    security = Security(Tls(CA, checks_certificate=False))
    assert librdkafka_config(security)["enable.ssl.certificate.verification"] == "false"


@pytest.mark.parametrize("key", [TRADITIONAL, CHAIN + PKCS8, PKCS8])
def test_java_gets_a_key_that_it_reads(key: bytes) -> None:
    """Of PKCS #8, and without the certificates that may be in the same file."""
    text = java_config(Security(Tls(CA, CHAIN, key)))["ssl.keystore.key"]
    assert re.findall("-----BEGIN (.*?)-----", text) == ["PRIVATE KEY"]


@pytest.mark.parametrize("key", [b"", CHAIN, TRADITIONAL.replace(b"M", b"N")])
def test_a_damaged_key_is_an_error(key: bytes) -> None:
    with pytest.raises(ClientError, match="private key"):
        java_config(Security(Tls(CA, CHAIN, key)))


def test_secrets_are_not_shown() -> None:
    assert "secret" not in repr(Security(Tls(CA, CHAIN, PKCS8), UserLogin("alice", "secret")))
