"""What Kafka's and librdkafka's properties say about TLS and SASL."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key, pkcs12
from cryptography.x509 import load_pem_x509_certificate

from barnabas.broker.client.errors import ClientError
from barnabas.broker.client.security import PLAINTEXT, Security, Tls, TokenLogin, UserLogin
from barnabas.broker.client.security_properties import SecurityProperties
from barnabas.broker.client.tls import client_context

CA = trustme.CA()
CA_PEM = CA.cert_pem.bytes()
OWN = CA.issue_cert("client.example")
CHAIN = OWN.cert_chain_pems[0].bytes()
KEY = OWN.private_key_pem.bytes()


def read(**values: str) -> Security:
    return SecurityProperties({key.replace("__", "."): value for key, value in values.items()}).security()


def sasl(**values: str) -> object:
    return read(security__protocol="SASL_PLAINTEXT", **values).login


def test_nothing_is_plaintext() -> None:
    assert read() == PLAINTEXT
    assert read(bootstrap__servers="x:1", acks="all", sasl__username="a") == PLAINTEXT


SCRAM = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="p\\"w;";'


def test_a_user_of_kafkas_properties() -> None:
    assert sasl(sasl__mechanism="SCRAM-SHA-256", sasl__jaas__config=SCRAM) == UserLogin(
        "alice", 'p"w;', "SCRAM-SHA-256"
    )
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule required\n  username=bob password='x y';"
    assert sasl(sasl__jaas__config=plain) == UserLogin("bob", "x y", "PLAIN")


def test_a_user_of_librdkafkas_properties() -> None:
    login = sasl(sasl__mechanisms="PLAIN", sasl__username="carol", sasl__password="pw")
    assert login == UserLogin("carol", "pw", "PLAIN")
    assert read(security__protocol="sasl_ssl", sasl__username="c", sasl__password="pw").tls == Tls()


def test_tokens() -> None:
    url = "https://issuer.example/token"
    jaas = (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
        ' clientId="app" clientSecret="s" scope="kafka" extension_logicalCluster="lkc";'
    )
    expected = TokenLogin(url, "app", "s", "kafka", extensions=(("logicalCluster", "lkc"),), tls=Tls())
    assert sasl(
        sasl__mechanism="OAUTHBEARER", sasl__jaas__config=jaas, sasl__oauthbearer__token__endpoint__url=url
    ) == (expected)
    login = sasl(
        sasl__mechanisms="OAUTHBEARER",
        sasl__oauthbearer__client__id="app",
        sasl__oauthbearer__client__secret="s",
        sasl__oauthbearer__scope="kafka",
        sasl__oauthbearer__extensions="logicalCluster=lkc",
        sasl__oauthbearer__token__endpoint__url=url,
    )
    assert login == expected
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
    unsecured = sasl(sasl__jaas__config=f'{module} unsecuredLoginStringClaim_sub="alice";')
    assert unsecured == TokenLogin(unsecured_subject="alice", tls=Tls())


def test_secrets_are_in_no_text_form() -> None:
    login = sasl(sasl__jaas__config=SCRAM)
    token = TokenLogin("https://x", "app", "hidden-secret")
    told = f"{login} {token} {Security(Tls(key=b'hidden-key', key_password='hidden-pw'))}"
    assert "hidden" not in told
    assert 'p"w' not in told


def pkcs12_of(*, key: bool, password: bytes = b"changeit") -> bytes:
    own, ca = load_pem_x509_certificate(CHAIN), load_pem_x509_certificate(CA_PEM)
    encryption = BestAvailableEncryption(password)
    if not key:
        return pkcs12.serialize_java_truststore([pkcs12.PKCS12Certificate(ca, b"ca")], encryption)
    private_key = load_pem_private_key(KEY, None)
    return pkcs12.serialize_key_and_certificates(b"me", private_key, own, [ca], encryption)  # type: ignore[arg-type]


def test_pem_and_pkcs12_say_the_same(tmp_path: Path) -> None:
    for name, content in (
        ("ca.pem", CA_PEM),
        ("trust.p12", pkcs12_of(key=False)),
        ("own.p12", pkcs12_of(key=True)),
        ("own.pem", CHAIN + KEY),
        ("chain.pem", CHAIN),
        ("key.pem", KEY),
    ):
        (tmp_path / name).write_bytes(content)

    def at(name: str) -> str:
        return str(tmp_path / name)

    stores = [
        read(
            security__protocol="SSL",
            ssl__truststore__location=at("trust.p12"),
            ssl__truststore__password="changeit",
            ssl__truststore__type="PKCS12",
            ssl__keystore__location=at("own.p12"),
            ssl__keystore__password="changeit",
        ),
        read(security__protocol="SSL", ssl__truststore__location=at("ca.pem"), ssl__keystore__location=at("own.pem")),
        read(
            security__protocol="SSL",
            ssl__truststore__certificates=CA_PEM.decode(),
            ssl__keystore__certificate__chain=CHAIN.decode(),
            ssl__keystore__key=KEY.decode(),
            ssl__keystore__type="PEM",
        ),
        read(
            security__protocol="ssl",
            ssl__ca__location=at("ca.pem"),
            ssl__certificate__location=at("chain.pem"),
            ssl__key__location=at("key.pem"),
        ),
    ]
    for security in stores:
        assert security.tls is not None
        assert b"".join(security.tls.trusted.split()) == b"".join(CA_PEM.split())
        assert b"".join(security.tls.chain.split()).startswith(b"".join(CHAIN.split()))
        client_context(security.tls)


def test_pem_on_a_single_line() -> None:
    """As in a properties file, where spaces stand for the ends of lines (KIP-651)."""
    chain, key = (each.decode().replace("\n", " ") for each in (CHAIN, KEY))
    tls = read(
        security__protocol="SSL",
        ssl__truststore__certificates=CA_PEM.decode().replace("\n", " "),
        ssl__keystore__certificate__chain=chain,
        ssl__keystore__key=key,
    ).tls
    assert tls is not None
    assert (tls.trusted, tls.chain, tls.key) == (CA_PEM, CHAIN, KEY)
    client_context(tls)


def test_names_are_checked_unless_said() -> None:
    for key, value in (
        ("ssl__endpoint__identification__algorithm", ""),
        ("enable__ssl__certificate__verification", "false"),
    ):
        tls = read(security__protocol="SSL", **{key: value}).tls
        assert tls is not None
        assert not (tls.checks_host_name and tls.checks_certificate)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"security__protocol": "TLS"}, "security.protocol=TLS is none of"),
        ({"security__protocol": "SASL_SSL"}, "SASL needs a user"),
        ({"security__protocol": "SASL_SSL", "sasl__mechanism": "GSSAPI"}, "sasl.mechanism=GSSAPI is none of"),
        ({"security__protocol": "SASL_SSL", "sasl__mechanism": "OAUTHBEARER"}, "OAUTHBEARER needs a token"),
        (
            {"security__protocol": "SASL_SSL", "sasl__jaas__config": "secret"},
            "sasl.jaas.config cannot be read: the login module is not followed by a control flag",
        ),
        (
            {"security__protocol": "SSL", "ssl__ca__location": "/nowhere"},
            "the CA file /nowhere cannot be read: No such",
        ),
        ({"security__protocol": "SSL", "ssl__truststore__type": "BCFKS"}, "expected PEM or PKCS12"),
        ({"security__protocol": "SSL", "ssl__truststore__certificates": "-----BEGIN X"}, "is neither PEM nor PKCS12"),
        ({"security__protocol": "SSL", "ssl__truststore__certificates": KEY.decode()}, "has no certificate"),
        ({"security__protocol": "SSL", "ssl__key__pem": KEY.decode()}, "without its certificate"),
    ],
)
def test_what_cannot_be_used(values: dict[str, str], told: str) -> None:
    with pytest.raises(ClientError, match=told):
        read(**values)


@pytest.mark.parametrize(
    ("content", "password", "told"),
    [
        (b"\xfe\xed\xfe\xed\0\0", "", "is a JKS store, which only Java reads; convert it: keytool"),
        (pkcs12_of(key=False), "another", "cannot be read with this password"),
        (b"", "", "is empty"),
        (b"anything", "", "is neither PEM nor PKCS12"),
    ],
)
def test_stores_that_cannot_be_read(tmp_path: Path, content: bytes, password: str, told: str) -> None:
    (tmp_path / "store").write_bytes(content)
    with pytest.raises(ClientError, match=told):
        read(
            security__protocol="SSL",
            ssl__truststore__location=str(tmp_path / "store"),
            ssl__truststore__password=password,
        )
