"""Key stores and trust stores of a listener: PEM in files, PEM in the configuration, and PKCS12 (`stores.py`).

Source: DefaultSslEngineFactory (KIP-651 for PEM).

All functions block, and decrypting a key takes milliseconds: they are called in threads.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import InternalError, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_der_private_key,
    load_pem_private_key,
)

from barnabas.broker.security.tls import stores
from barnabas.broker.security.tls.errors import TlsConfigError
from barnabas.broker.security.tls.stores import StoreError

STORE_BYTES_MAX: Final = 16 * 1024 * 1024
"""A larger file is no key store: the trust store of a whole operating system has less than 1 MiB."""


class StoreSettings(NamedTuple):
    """The settings of one store. `kind` is "keystore" or "truststore", `prefix` the beginning of its keys, for messages
    ("listener.name.external."). `certificates` and `private_key` are PEM from the configuration itself.
    `key_password_name` is the name of the key that has `key_password`, without the prefix.
    """

    kind: str
    prefix: str
    type: str
    location: str | None
    password: str | None
    certificates: str | None = None
    private_key: str | None = None
    key_password: str | None = None
    key_password_name: str = "ssl.key.password"

    def __repr__(self) -> str:
        return f"<{self.kind} of {self.prefix or 'all listeners'}: {self.location or 'inline'}>"

    def key(self, name: str) -> str:
        """The full name of a key of this store: "location" is `ssl.keystore.location`."""
        return f"{self.prefix}ssl.{self.kind}.{name}"


def as_in_zookeeper(store: StoreSettings) -> StoreSettings:
    """A store as ZooKeeper reads it: without a type, the end of the file's name says whether it is PEM, and the
    password of a key store in PEM is that of its key (X509Util.java). Content decides between the other types."""
    kind = store.type or ("PEM" if (store.location or "").lower().endswith(".pem") else "JKS")
    if kind.upper() != "PEM":
        return store._replace(type=kind)
    is_key_store = store.kind.lower() == "keystore"
    return store._replace(
        type=kind,
        password=None,
        key_password=store.password or None if is_key_store else None,
        key_password_name=f"ssl.{store.kind}.password",
    )


@dataclass(frozen=True, slots=True)
class KeyStore:
    """A private key, and the certificates that belong to it, its own first."""

    private_key_pem: bytes
    chain: tuple[x509.Certificate, ...]

    def __repr__(self) -> str:
        return f"<the key of {self.chain[0].subject.rfc4514_string()}>"

    @property
    def certificate(self) -> x509.Certificate:
        """The certificate of the key."""
        return self.chain[0]

    @contextmanager
    def as_file(self) -> Iterator[str]:
        """The path of a PEM file of the key and its chain: `ssl.SSLContext.load_cert_chain` reads only files.

        On Linux the file is in memory; elsewhere it is a temporary one that only this user may read.
        """
        content = self.private_key_pem + b"".join(each.public_bytes(Encoding.PEM) for each in self.chain)
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("key store")
            try:
                os.write(descriptor, content)
                yield f"/proc/self/fd/{descriptor}"
            finally:
                os.close(descriptor)
        else:
            with tempfile.NamedTemporaryFile() as file:
                file.write(content)
                file.flush()
                yield file.name


class Stamp(NamedTuple):
    """The state of a file: its time of modification, in nanoseconds, and its size in bytes."""

    modified_ns: int
    size: int


def stamp_of(path: str) -> Stamp | None:
    """The stamp of a file; None if there is no such file, or it cannot be reached."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return Stamp(found.st_mtime_ns, found.st_size)


def load_key_store(settings: StoreSettings) -> KeyStore | None:
    """The key store of these settings; None if nothing is set. Raises TlsConfigError."""
    if settings.private_key is not None or settings.certificates is not None:
        return _inline_key_store(settings)
    if settings.location is None:
        _refuse_password_without_store(settings)
        return None
    content, location = _read(settings), settings.key("location")
    if _is_pem(settings, content):
        _refuse_password_of_pem(settings)
        return _pem_key_store(content, content, settings, location, location)
    if settings.password is None:
        raise TlsConfigError(f"{location} is set, but {settings.key('password')} is not: set both")
    try:
        store = stores.open_pkcs12(content, settings.password)
        return _key_store(store.key, store.chain, location)
    except StoreError as error:
        raise _of_file(settings, error) from error


def load_trust_store(settings: StoreSettings) -> tuple[x509.Certificate, ...] | None:
    """The certificates of a trust store, at least one; None if nothing is set. Raises TlsConfigError."""
    if settings.certificates is not None:
        _refuse_beside_inline(settings, "certificates")
        return _certificates(settings.certificates.encode(), settings.key("certificates"))
    if settings.location is None:
        _refuse_password_without_store(settings)
        return None
    content = _read(settings)
    if _is_pem(settings, content):
        _refuse_password_of_pem(settings)
        return _certificates(content, settings.key("location"))
    try:
        found = stores.open_pkcs12(content, settings.password).certificates
    except StoreError as error:
        raise _of_file(settings, error) from error
    if not found:
        raise TlsConfigError(f"{settings.key('location')}: {settings.location} has no certificate")
    return found


# --- files --------------------------------------------------------------------------------------------


def _read(settings: StoreSettings) -> bytes:
    """The content of the file. One that is no file (a pipe, a device) is not read: that might never end."""
    path = settings.location or ""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise TlsConfigError(f"{settings.key('location')}: {path} is not a file")
        with open(path, "rb") as file:
            content = file.read(STORE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise TlsConfigError(f"{settings.key('location')}: cannot read {path}: {reason}") from error
    if len(content) > STORE_BYTES_MAX:
        raise TlsConfigError(f"{settings.key('location')}: {path} is too large for a key store")
    return content


def _of_file(settings: StoreSettings, error: StoreError) -> TlsConfigError:
    return TlsConfigError(f"{settings.key('location')}: {settings.location} {error} ({settings.key('password')})")


def _is_pem(settings: StoreSettings, content: bytes) -> bool:
    """Whether the content is PEM, and not PKCS12. Raises TlsConfigError if it is neither, or not of its type."""
    kind = settings.type.upper()
    if kind not in (stores.PEM, stores.PKCS12, stores.JKS):
        raise TlsConfigError(f"{settings.key('type')}: {settings.type} is not supported: use PEM or PKCS12")
    try:
        found = stores.format_of(content)
    except StoreError as error:
        raise TlsConfigError(f"{settings.key('location')}: {settings.location} {error}") from error
    if kind not in (found, stores.JKS):
        raise TlsConfigError(f"{settings.key('type')}: {settings.location} is {found}, not {kind}")
    return found == stores.PEM


def _refuse_password_without_store(settings: StoreSettings) -> None:
    if settings.password is not None:
        raise TlsConfigError(f"{settings.key('password')} is set, but {settings.key('location')} is not: set both")


def _refuse_password_of_pem(settings: StoreSettings) -> None:
    if settings.password is not None:
        also = f"; {settings.prefix}ssl.key.password is that of its key" if settings.kind == "keystore" else ""
        raise TlsConfigError(f"{settings.key('password')} is set, but a PEM store has no password: leave it out{also}")


def _refuse_beside_inline(settings: StoreSettings, name: str) -> None:
    """Refuse what cannot be set together with PEM in the configuration."""
    if settings.location is not None:
        raise TlsConfigError(f"{settings.key('location')} and {settings.key(name)} are both set: leave one out")
    if settings.type.upper() not in (stores.PEM, stores.JKS):
        raise TlsConfigError(
            f"{settings.key(name)} is PEM, but {settings.key('type')} is {settings.type}: set it to PEM"
        )
    _refuse_password_of_pem(settings)


# --- keys and certificates ----------------------------------------------------------------------------


def _inline_key_store(settings: StoreSettings) -> KeyStore:
    key_name, chain_name = settings.key("key"), settings.key("certificate.chain")
    if settings.private_key is None or settings.certificates is None:
        is_set, is_missing = (key_name, chain_name) if settings.certificates is None else (chain_name, key_name)
        raise TlsConfigError(f"{is_set} is set, but {is_missing} is not: set both")
    _refuse_beside_inline(settings, "key")
    return _pem_key_store(settings.private_key.encode(), settings.certificates.encode(), settings, key_name, chain_name)


def _pem_key_store(
    key_pem: bytes, chain_pem: bytes, settings: StoreSettings, key_name: str, chain_name: str
) -> KeyStore:
    password = None if settings.key_password is None else settings.key_password.encode()
    password_name = f"{settings.prefix}{settings.key_password_name}"
    try:
        entry = stores.private_key_in(key_pem)
        if entry.headers:
            private_key = load_pem_private_key(entry.pem, password)
        else:
            private_key = load_der_private_key(entry.der, password)
    except StoreError as error:
        raise TlsConfigError(f"{key_name} {error}") from error
    except TypeError as error:
        sentence = "is encrypted: set" if password is None else "is not encrypted: leave out"
        raise TlsConfigError(f"{key_name}: the private key {sentence} {password_name}") from error
    except (ValueError, UnsupportedAlgorithm, InternalError) as error:  # InternalError: a key of the wrong length
        reason = "cannot be read" if password is None else f"cannot be read with {password_name}"
        raise TlsConfigError(f"{key_name}: the private key {reason}") from error
    return _key_store(private_key, _certificates(chain_pem, chain_name), chain_name)


def _certificates(pem: bytes, name: str) -> tuple[x509.Certificate, ...]:
    try:
        return tuple(map(x509.load_der_x509_certificate, stores.certificates_in(pem)))
    except StoreError as error:
        raise TlsConfigError(f"{name} {error}") from error
    except (ValueError, x509.InvalidVersion) as error:
        raise TlsConfigError(f"{name} has a certificate that cannot be read") from error


def _key_store(private_key: object, chain: tuple[x509.Certificate, ...], name: str) -> KeyStore:
    serialize = getattr(private_key, "private_bytes", None)
    public_key = getattr(private_key, "public_key", None)
    try:
        certified_key = chain[0].public_key()
    except (ValueError, UnsupportedAlgorithm, InternalError) as error:
        raise TlsConfigError(f"{name}: the public key of the first certificate cannot be read") from error
    if serialize is None or public_key is None or certified_key != public_key():
        raise TlsConfigError(f"{name}: the first certificate does not belong to the private key")
    return KeyStore(serialize(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), chain)
