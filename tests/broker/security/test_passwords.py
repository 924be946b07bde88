"""Stored passwords: the format of Kafka 3.9."""

import os

import pytest

from barnabas.broker.security.tls.passwords import CBC, GCM, EncoderSettings, PasswordError, decode, encode


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
