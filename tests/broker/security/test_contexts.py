"""Contexts: versions, cipher suites, trust, and which replacements a running listener accepts."""

import ssl
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.configuration.keys import BROKER_KEYS
from barnabas.broker.security.tls.contexts import (
    Tls,
    TlsSettings,
    check_among_brokers,
    check_replacement,
    load,
    openssl_name,
)
from barnabas.broker.security.tls.errors import TlsConfigError
from tests.support.certificates import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def tls(authority: Authority, key_store: Path | None = None, **values: Any) -> Tls:
    """`values` by keys, without "ssl." and with underscores for dots."""
    given: dict[str, Any] = {
        "ssl.keystore.location": str(key_store or authority.key_store("broker")),
        "ssl.truststore.location": str(authority.trust_store),
        **{f"ssl.{key.replace('_', '.')}": value for key, value in values.items()},
    }
    return load(TlsSettings.read(lambda key: given.get(key, BROKER_KEYS[key].default), ""))


def test_versions(authority: Authority) -> None:
    assert tls(authority).server.minimum_version == ssl.TLSVersion.TLSv1_2
    assert tls(authority).server.maximum_version == ssl.TLSVersion.TLSv1_3
    assert tls(authority, enabled_protocols=("TLSv1.3",)).server.minimum_version == ssl.TLSVersion.TLSv1_3
    with pytest.raises(TlsConfigError, match=r"ssl\.enabled\.protocols: TLSv1\.1 is not supported"):
        tls(authority, enabled_protocols=("TLSv1.1", "TLSv1.2"))


def test_suites_have_java_names_or_those_of_openssl(authority: Authority) -> None:
    java = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"
    assert openssl_name(java) == "ECDHE-RSA-AES128-GCM-SHA256"
    assert openssl_name("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256") == "ECDHE-ECDSA-CHACHA20-POLY1305"
    assert openssl_name("TLS_DHE_RSA_WITH_AES_256_CBC_SHA256") == "DHE-RSA-AES256-SHA256"
    assert openssl_name("TLS_RSA_WITH_AES_256_CBC_SHA") == "AES256-SHA"
    found = tls(authority, cipher_suites=(java, "AES256-SHA", "TLS_AES_256_GCM_SHA384")).server
    assert [each["name"] for each in found.get_ciphers() if each["protocol"] != "TLSv1.3"] == [
        "ECDHE-RSA-AES128-GCM-SHA256",
        "AES256-SHA",
    ]


def test_suites_select_versions(authority: Authority) -> None:
    """Those of one version alone disable the other, as in Java."""
    newer = tls(authority, cipher_suites=("TLS_AES_256_GCM_SHA384",)).server
    assert newer.minimum_version == ssl.TLSVersion.TLSv1_3
    older = tls(authority, cipher_suites=("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",)).server
    assert older.maximum_version == ssl.TLSVersion.TLSv1_2
    with pytest.raises(TlsConfigError, match="TLS_NO_SUCH is no cipher suite"):
        tls(authority, cipher_suites=("TLS_NO_SUCH",))


def test_client_certificates(authority: Authority) -> None:
    for client_auth, mode in (
        ("none", ssl.CERT_NONE),
        ("requested", ssl.CERT_OPTIONAL),
        ("required", ssl.CERT_REQUIRED),
    ):
        assert tls(authority, client_auth=client_auth).server.verify_mode == mode


def test_host_names(authority: Authority) -> None:
    assert tls(authority).client.check_hostname
    assert not tls(authority, endpoint_identification_algorithm="").client.check_hostname
    with pytest.raises(TlsConfigError, match="ldaps is not supported"):
        tls(authority, endpoint_identification_algorithm="LDAPS")


def test_a_listener_needs_a_key() -> None:
    with pytest.raises(TlsConfigError, match=r"a TLS listener needs a key: set ssl\.keystore\.location, or"):
        load(TlsSettings.read(lambda key: BROKER_KEYS[key].default, ""))


def test_brokers_that_cannot_connect_to_each_other(authority: Authority, tmp_path: Path) -> None:
    """A trust store that lacks the authority of the broker's own key."""
    check_among_brokers(tls(authority), tls(authority))
    other = Authority(tmp_path, "other")
    wrong = tls(authority, truststore_location=str(other.trust_store))
    with pytest.raises(TlsConfigError, match="brokers could not connect to each other"):
        check_among_brokers(wrong, wrong)


def test_the_certificate_of_an_issuer_in_between_is_trusted_by_itself(authority: Authority) -> None:
    """As in Java: whatever the trust store has is trusted."""
    key_store = authority.key_store("broker")
    pem = key_store.read_text()
    leaf_alone = authority.directory / "leaf.pem"
    leaf_alone.write_text(pem[pem.index("-----BEGIN CERTIFICATE") :])
    trusting = tls(authority, key_store, truststore_location=str(leaf_alone), client_auth="required")
    check_among_brokers(trusting, trusting)


def test_replacements(authority: Authority) -> None:
    before = tls(authority, authority.key_store("one", "localhost", common_name="broker"))
    same = tls(authority, authority.key_store("two", "localhost", "more", common_name="broker"))
    fewer = tls(authority, authority.key_store("three", "more", common_name="broker"))
    other = tls(authority, authority.key_store("four", "localhost", common_name="other"))
    check_replacement(before, same)
    with pytest.raises(TlsConfigError, match=r"lacks alternative names .*localhost.*ssl\.allow\.san\.changes"):
        check_replacement(before, fewer)
    with pytest.raises(TlsConfigError, match=r"of CN=other.*CN=broker.*ssl\.allow\.dn\.changes"):
        check_replacement(before, other)
    check_replacement(before, tls(authority, authority.directory / "three.pem", allow_san_changes=True))
    check_replacement(before, tls(authority, authority.directory / "four.pem", allow_dn_changes=True))
