"""Stored passwords: the format of Kafka 3.9."""

import os

import pytest

from barnabas.broker.security.tls.passwords import CBC, GCM, EncoderSettings, PasswordError, decode, encode

BY_KAFKA = (
    "initializationVector:12JDI3dwhFND1qtzj/iMHA==,keyLength:128,salt:O8X5FDDRSWI54jBIJXlXIBMKkMe2uxxKScC"
    "mrbLOJw0SuVaF3Xc9aIPYfM98dZFafH1NOykPpPYBeHvMN2p3h6xibpGRRVlg/8GM+pkizyZIyFlHYzTC8VzpRCYssLM5J4jBhBt"
    "bdzaac/7n+ChWNVFfrsJaruE+QMfXrBzaW9KAjixnMf9rMypZlVWvTdE1phgeB+isMb1ub7lwtdw21rECuCqgnySaxBm1b6Y93nW"
    "hmMQdJgXx1VowcKTJHXJN1splYRBLD9xKH+IuYZGFTcrEOrK/Ws2YiZthReOne9DNQHwEbYoE6gfNHdHhfYeSHhZZT06exyAcW51"
    "KnOyFzg==,keyFactoryAlgorithm:PBKDF2WithHmacSHA512,cipherAlgorithm:AES/CBC/PKCS5Padding,iterations:4"
    "096,passwordLength:11,encryptedPassword:4/Ecf402jCYIf9GTcyR6Ng=="
)
"""What Kafka 3.9.1 has encoded with the secret "the secret" (PasswordEncoder.encrypting)."""


def test_what_kafka_has_encoded() -> None:
    assert decode(BY_KAFKA, "the secret") == "pässwörd 😀"


@pytest.mark.parametrize("cipher", [CBC, GCM])
@pytest.mark.parametrize("keyfactory", ["PBKDF2WithHmacSHA512", "PBKDF2WithHmacSHA1"])
def test_what_is_encoded_is_decoded(cipher: str, keyfactory: str) -> None:
    settings = EncoderSettings("a secret", keyfactory, cipher, 256, 1024)
    text = encode("pässwörd 😀", settings, os.urandom)
    assert decode(text, "a secret") == "pässwörd 😀"
    assert "passwordLength:11" in text  # as Java counts: the last character is two
    assert "a secret" not in text + repr(settings)


def test_a_wrong_secret() -> None:
    text = encode("password", EncoderSettings("one"), lambda count: bytes(count))
    with pytest.raises(PasswordError, match="cannot be decoded"):
        decode(text, "other")


@pytest.mark.parametrize(
    ("found", "instead"),
    [
        ("iterations:4096", "iterations:2000000000"),
        ("iterations:4096", "iterations:-1"),
        ("keyLength:128", "keyLength:8"),
        ("PBKDF2WithHmacSHA512", "PBKDF2WithNothing"),
        ("AES/CBC/PKCS5Padding", "DES/CBC/PKCS5Padding"),
        ("salt:", "salt:!"),
        ("passwordLength:8", "passwordLength:9"),
        ("initializationVector:", "vector:"),
        ("initializationVector:", "initializationVector:AAAA"),
    ],
)
def test_what_cannot_be_decoded(found: str, instead: str) -> None:
    text = encode("password", EncoderSettings("secret"), os.urandom)
    assert found in text
    with pytest.raises(PasswordError):
        decode(text.replace(found, instead), "secret")
    with pytest.raises(PasswordError):
        decode("no password", "secret")
