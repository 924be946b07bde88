"""Passwords in the metadata store, encrypted as Kafka 3.9 does there (`password.encoder.secret`).

An encoded password is a list of KEY:VALUE, separated by commas: how the key is derived from the secret (PBKDF2), the
cipher (AES in mode CBC or GCM) with its parameters, and the encrypted password. Source: EncryptingPasswordEncoder,
IvParamsEncoder, GcmParamsEncoder of Kafka 3.9.1, whose texts this reads, and which read those of this.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable
from typing import Final, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.padding import PKCS7

CBC: Final = "AES/CBC/PKCS5Padding"
GCM: Final = "AES/GCM/NoPadding"

SALT_BYTES: Final = 256
ITERATIONS_MAX: Final = 1_000_000
"""The limit of iterations of a stored password: half a second of one processor."""

_HASHES: Final = {
    "PBKDF2WithHmacSHA1": "sha1",
    "PBKDF2WithHmacSHA224": "sha224",
    "PBKDF2WithHmacSHA256": "sha256",
    "PBKDF2WithHmacSHA384": "sha384",
    "PBKDF2WithHmacSHA512": "sha512",
}
_TAG_BITS: Final = 128


class PasswordError(ValueError):
    """A password that cannot be decoded, or settings with which none can be encoded; it contains no secret."""


class EncoderSettings(NamedTuple):
    """The keys `password.encoder.`; those but `secret` are for encoding: an encoded password has its own."""

    secret: str
    keyfactory_algorithm: str = "PBKDF2WithHmacSHA512"
    cipher_algorithm: str = CBC
    key_length: int = 128
    iterations: int = 4096

    def __repr__(self) -> str:
        return f"<password encoder with {self.cipher_algorithm}>"


def encode(password: str, settings: EncoderSettings, random_bytes: Callable[[int], bytes]) -> str:
    """An encoded password. Blocking, some milliseconds. Raises PasswordError."""
    salt = random_bytes(SALT_BYTES)
    key = _key(settings.secret, settings.keyfactory_algorithm, salt, settings.iterations, settings.key_length)
    parameters = {}
    if settings.cipher_algorithm == GCM:
        vector = random_bytes(12)
        encrypted = AESGCM(key).encrypt(vector, password.encode(), None)
        parameters["authenticationTagLength"] = str(_TAG_BITS)
    elif settings.cipher_algorithm == CBC:
        vector = random_bytes(16)
        padder = PKCS7(128).padder()
        encryptor = Cipher(algorithms.AES(key), modes.CBC(vector)).encryptor()
        encrypted = encryptor.update(padder.update(password.encode()) + padder.finalize()) + encryptor.finalize()
    else:
        raise PasswordError(f"password.encoder.cipher.algorithm: {settings.cipher_algorithm} is not {CBC} or {GCM}")
    parts = {
        "keyFactoryAlgorithm": settings.keyfactory_algorithm,
        "cipherAlgorithm": settings.cipher_algorithm,
        "keyLength": str(settings.key_length),
        "salt": _text(salt),
        "iterations": str(settings.iterations),
        "encryptedPassword": _text(encrypted),
        "passwordLength": str(_java_length(password)),
        "initializationVector": _text(vector),
        **parameters,
    }
    return ",".join(f"{name}:{value}" for name, value in parts.items())


def decode(text: str, secret: str) -> str:
    """The password of an encoded one. Blocking, some milliseconds. Raises PasswordError."""
    parts = dict(part.strip().rpartition(":")[::2] for part in text.split(","))
    try:
        salt, vector, encrypted = (
            base64.b64decode(parts[name], validate=True)
            for name in ("salt", "initializationVector", "encryptedPassword")
        )
        key_length, iterations, length = (int(parts[name]) for name in ("keyLength", "iterations", "passwordLength"))
        key = _key(secret, parts["keyFactoryAlgorithm"], salt, iterations, key_length)
        password = _decrypted(parts["cipherAlgorithm"], key, vector, encrypted).decode()
    except PasswordError:
        raise
    except (KeyError, ValueError, binascii.Error, InvalidTag, OverflowError) as error:
        raise PasswordError("a stored password cannot be decoded with password.encoder.secret") from error
    if _java_length(password) != length:
        raise PasswordError("a stored password cannot be decoded with password.encoder.secret")
    return password


def _decrypted(cipher: str, key: bytes, vector: bytes, encrypted: bytes) -> bytes:
    """Errors: ValueError, InvalidTag."""
    if cipher == GCM:
        return AESGCM(key).decrypt(vector, encrypted, None)
    if cipher != CBC:
        raise ValueError(f"unknown cipher {cipher}")
    decryptor = Cipher(algorithms.AES(key), modes.CBC(vector)).decryptor()
    unpadder = PKCS7(128).unpadder()
    return unpadder.update(decryptor.update(encrypted) + decryptor.finalize()) + unpadder.finalize()


def _key(secret: str, keyfactory_algorithm: str, salt: bytes, iterations: int, key_length: int) -> bytes:
    if keyfactory_algorithm not in _HASHES:
        raise PasswordError(f"password.encoder.keyfactory.algorithm: {keyfactory_algorithm} is not supported")
    if key_length not in (128, 192, 256):
        raise PasswordError(f"password.encoder.key.length: {key_length} is none of AES: 128, 192 or 256")
    if not 0 < iterations <= ITERATIONS_MAX:
        raise PasswordError(f"password.encoder.iterations: {iterations} is not between 1 and {ITERATIONS_MAX}")
    return hashlib.pbkdf2_hmac(_HASHES[keyfactory_algorithm], secret.encode(), salt, iterations, key_length // 8)


def _java_length(text: str) -> int:
    """The length of a text in UTF-16, as Java counts it."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
