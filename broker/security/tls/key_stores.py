"""Key stores and trust stores: PEM in files, PEM in the configuration, and PKCS12.

Kafka's default type is JKS, Java's own format, which nothing but Java reads: a store of that type is read if its
content is PEM or PKCS12, as Java reads PKCS12 there, too. Source: DefaultSslEngineFactory (KIP-651 for PEM).

All functions block, and decrypting a key takes milliseconds: they are called in threads.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_der_private_key,
    load_pem_private_key,
    pkcs12,
)

from barnabas.broker.security.tls.errors import TlsConfigError

STORE_BYTES_MAX: Final = 16 * 1024 * 1024
"""A larger file is no key store: the trust store of a whole operating system has less than 1 MiB."""

_JAVA_MAGIC: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
"""The first bytes of JKS and JCEKS."""

_PEM_BLOCK: Final = re.compile(
    rb"-----BEGIN ([A-Z0-9 ]+)-----((?:\s*[\w-]+:[^\r\n]*[\r\n]+)*)([A-Za-z0-9/+=\s]*)-----END \1-----"
)
"""An entry: its name, its headers (of a key that OpenSSL has encrypted in its former way), and base64. Any white space
may stand for the ends of lines, so that a value of the configuration may be a single line."""


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
    content = _read(settings)
    if _is_pem(settings, content):
        _refuse_password_of_pem(settings)
        location = settings.key("location")
        return _pem_key_store(content, content, settings, location, location)
    return _pkcs12_key_store(content, settings)


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
    store = _open_pkcs12(content, settings)
    entries = [store.cert, *store.additional_certs]
    found = tuple(entry.certificate for entry in entries if entry is not None)
    if not found:
        raise TlsConfigError(f"{settings.key('location')}: {settings.location} has no certificate")
    return found


# --- which kind of store ------------------------------------------------------------------------------


def _read(settings: StoreSettings) -> bytes:
    path = settings.location or ""
    try:
        with open(path, "rb") as file:
            content = file.read(STORE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise TlsConfigError(f"{settings.key('location')}: cannot read {path}: {reason}") from error
    if len(content) > STORE_BYTES_MAX:
        raise TlsConfigError(f"{settings.key('location')}: {path} is too large for a key store")
    return content


def _is_pem(settings: StoreSettings, content: bytes) -> bool:
    """Whether the content is PEM, and not PKCS12. Raises TlsConfigError if it is neither, or not of its type."""
    location, kind = settings.key("location"), settings.type.upper()
    if content.startswith(_JAVA_MAGIC):
        path = settings.location
        raise TlsConfigError(
            f"{location}: {path} is a JKS store, which only Java reads; convert it: keytool -importkeystore"
            f" -srckeystore {path} -destkeystore {path}.p12 -deststoretype PKCS12"
        )
    if kind not in ("PEM", "PKCS12", "JKS"):
        raise TlsConfigError(f"{settings.key('type')}: {settings.type} is not supported: use PEM or PKCS12")
    is_pem = _PEM_BLOCK.search(content) is not None
    if not is_pem and content[:1] != b"\x30":  # a DER sequence, which PKCS12 is
        raise TlsConfigError(f"{location}: {settings.location} is neither PEM nor PKCS12")
    found = "PEM" if is_pem else "PKCS12"
    if kind not in (found, "JKS"):
        raise TlsConfigError(f"{settings.key('type')}: {settings.location} is {found}, not {kind}")
    return is_pem


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
    if settings.type.upper() not in ("PEM", "JKS"):
        raise TlsConfigError(
            f"{settings.key(name)} is PEM, but {settings.key('type')} is {settings.type}: set it to PEM"
        )
    _refuse_password_of_pem(settings)


# --- PEM ----------------------------------------------------------------------------------------------


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
    blocks = [found for found in _PEM_BLOCK.finditer(key_pem) if found[1].endswith(b"PRIVATE KEY")]
    if len(blocks) != 1:
        raise TlsConfigError(f"{key_name}: expected one PRIVATE KEY in PEM, found {len(blocks)}")
    [block] = blocks
    password = None if settings.key_password is None else settings.key_password.encode()
    password_name = f"{settings.prefix}{settings.key_password_name}"
    try:
        if block[2]:
            private_key = load_pem_private_key(block[0], password)
        else:
            private_key = load_der_private_key(_decoded(block[3]), password)
    except TypeError as error:
        sentence = "is encrypted: set" if password is None else "is not encrypted: leave out"
        raise TlsConfigError(f"{key_name}: the private key {sentence} {password_name}") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        reason = "cannot be read" if password is None else f"cannot be read with {password_name}"
        raise TlsConfigError(f"{key_name}: the private key {reason}") from error
    return _key_store(private_key, _certificates(chain_pem, chain_name), chain_name)


def _certificates(pem: bytes, name: str) -> tuple[x509.Certificate, ...]:
    blocks = [found[3] for found in _PEM_BLOCK.finditer(pem) if found[1].endswith(b"CERTIFICATE")]
    if not blocks:
        raise TlsConfigError(f"{name}: no CERTIFICATE in PEM")
    try:
        return tuple(x509.load_der_x509_certificate(_decoded(block)) for block in blocks)
    except ValueError as error:
        raise TlsConfigError(f"{name}: a certificate cannot be read") from error


def _decoded(base64_text: bytes) -> bytes:
    """Errors: ValueError."""
    try:
        return base64.b64decode(b"".join(base64_text.split()), validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error


# --- PKCS12 -------------------------------------------------------------------------------------------


def _open_pkcs12(content: bytes, settings: StoreSettings) -> pkcs12.PKCS12KeyAndCertificates:
    password = None if settings.password is None else settings.password.encode()
    try:
        return pkcs12.load_pkcs12(content, password)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        reason = "without" if password is None else "with"
        raise TlsConfigError(
            f"{settings.key('location')}: {settings.location} cannot be read {reason} {settings.key('password')}"
        ) from error


def _pkcs12_key_store(content: bytes, settings: StoreSettings) -> KeyStore:
    location = settings.key("location")
    if settings.password is None:
        raise TlsConfigError(f"{location} is set, but {settings.key('password')} is not: set both")
    store = _open_pkcs12(content, settings)
    if store.key is None or store.cert is None:
        raise TlsConfigError(f"{location}: {settings.location} has no private key with a certificate")
    others = [entry.certificate for entry in store.additional_certs]
    return _key_store(store.key, _chain_of(store.cert.certificate, others), location)


def _chain_of(certificate: x509.Certificate, others: Sequence[x509.Certificate]) -> tuple[x509.Certificate, ...]:
    """The certificate, its issuer, and so on: a PKCS12 store has them in any order."""
    chain = [certificate]
    while (last := chain[-1]).issuer != last.subject:
        issuer = next((each for each in others if each.subject == last.issuer and each not in chain), None)
        if issuer is None:
            break
        chain.append(issuer)
    return tuple(chain)


def _key_store(private_key: object, chain: tuple[x509.Certificate, ...], name: str) -> KeyStore:
    serialize = getattr(private_key, "private_bytes", None)
    public_key = getattr(private_key, "public_key", None)
    if serialize is None or public_key is None or chain[0].public_key() != public_key():
        raise TlsConfigError(f"{name}: the first certificate does not belong to the private key")
    return KeyStore(serialize(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), chain)
