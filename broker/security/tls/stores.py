"""The content of key stores and trust stores: PEM, whose entries may be on a single line each, and PKCS12.

The format is told by the content: Kafka's default for the type is JKS, Java's own format, which nothing but Java reads,
and where Java reads PKCS12, too. The text of a `StoreError` follows the name of the store ("has no certificate").

`cryptography` is imported only to open PKCS12 or a private key: a command that has a CA file starts without it.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

PEM: Final = "PEM"
PKCS12: Final = "PKCS12"
JKS: Final = "JKS"

_JAVA_MAGIC: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
"""The first bytes of JKS and JCEKS."""

_DER_SEQUENCE: Final = b"\x30"
"""The first byte of PKCS12."""

_CONVERT: Final = "keytool -importkeystore -srckeystore FILE.jks -destkeystore FILE.p12 -deststoretype PKCS12"

_ENTRY: Final = re.compile(
    rb"-----BEGIN ([A-Z0-9 ]+)-----((?:\s*[\w-]+:[^\r\n]*[\r\n])*)([A-Za-z0-9/+=\s]*)-----END \1-----"
)
"""An entry: its name, its headers (of a key that OpenSSL has encrypted in its former way), and base64. Any white space
may stand for the ends of lines, so that a value of the configuration may be a single line. There is one way for it to
match: otherwise a long text without an end would take for ever."""

_LINE_LENGTH: Final = 64


class StoreError(Exception):
    """A store that cannot be used; the text follows its name."""


class Entry(NamedTuple):
    """An entry of PEM. `base64_text` has any white space."""

    label: str
    headers: bytes
    base64_text: bytes

    def __repr__(self) -> str:
        return f"<entry {self.label}>"

    @property
    def der(self) -> bytes:
        """The content. Raises ValueError."""
        try:
            return base64.b64decode(b"".join(self.base64_text.split()), validate=True)
        except binascii.Error as error:
            raise ValueError(str(error)) from error

    @property
    def pem(self) -> bytes:
        """The entry with its lines, as OpenSSL reads it. Raises ValueError."""
        if self.headers:
            text = self.headers.lstrip() + b"\n" + b"\n".join(self.base64_text.split()) + b"\n"
            return b"-----BEGIN %b-----\n%b-----END %b-----\n" % (label := self.label.encode(), text, label)
        return as_pem(self.label, self.der)


class Pkcs12(NamedTuple):
    """The private key of a PKCS12 store and its certificate, each None if there is none, and the other certificates, in
    any order."""

    key: Any
    certificate: Certificate | None
    others: tuple[Certificate, ...]

    def __repr__(self) -> str:
        return "<PKCS12>"

    @property
    def certificates(self) -> tuple[Certificate, ...]:
        """All certificates."""
        return self.others if self.certificate is None else (self.certificate, *self.others)

    @property
    def chain(self) -> tuple[Certificate, ...]:
        """The certificate of the key, its issuer, and so on. Raises StoreError without a key and its certificate."""
        if self.key is None or self.certificate is None:
            raise StoreError("has no private key with a certificate")
        chain = [self.certificate]
        try:
            while (last := chain[-1]).issuer != last.subject:
                issuer = next((each for each in self.others if each.subject == last.issuer and each not in chain), None)
                if issuer is None:
                    break
                chain.append(issuer)
        except ValueError as error:
            raise StoreError("has a certificate with a name that cannot be read") from error
        return tuple(chain)


class Identity(NamedTuple):
    """A certificate with its chain, and the private key of it, as PEM. The key may be encrypted in a PEM file."""

    chain: bytes
    key: bytes

    def __repr__(self) -> str:
        return "<certificate and key>"


def format_of(content: bytes) -> str:
    """PEM or PKCS12. Raises StoreError for anything else."""
    if content.startswith(_JAVA_MAGIC):
        raise StoreError(f"is a JKS store, which only Java reads; convert it: {_CONVERT}")
    if _ENTRY.search(content) is not None:
        return PEM
    if content.startswith(_DER_SEQUENCE):
        return PKCS12
    raise StoreError("is neither PEM nor PKCS12" if content else "is empty")


# --- PEM ----------------------------------------------------------------------------------------------


def as_pem(label: str, der: bytes) -> bytes:
    """An entry of PEM."""
    text = base64.b64encode(der)
    lines = [text[start : start + _LINE_LENGTH] for start in range(0, len(text), _LINE_LENGTH)]
    return b"\n".join((f"-----BEGIN {label}-----".encode(), *lines, f"-----END {label}-----\n".encode()))


def entries(content: bytes) -> list[Entry]:
    """The entries of PEM text."""
    return [Entry(found[1].decode(), found[2], found[3]) for found in _ENTRY.finditer(content)]


def certificates_in(content: bytes) -> list[bytes]:
    """The certificates in PEM text, which may have keys, too, as DER; at least one. Raises StoreError."""
    try:
        found = [each.der for each in entries(content) if each.label.endswith("CERTIFICATE")]
    except ValueError as error:
        raise StoreError("has a certificate that cannot be read") from error
    if not found:
        raise StoreError("has no certificate")
    return found


def private_key_in(content: bytes) -> Entry:
    """The one private key in PEM text. Raises StoreError."""
    found = [each for each in entries(content) if each.label.endswith("PRIVATE KEY")]
    if len(found) != 1:
        raise StoreError(f"has {len(found)} private keys, and has to have one" if found else "has no private key")
    return found[0]


# --- PKCS12 -------------------------------------------------------------------------------------------


def open_pkcs12(content: bytes, password: str | None) -> Pkcs12:
    """The content of a PKCS12 store. Raises StoreError."""
    from cryptography.exceptions import InternalError, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import pkcs12
    from cryptography.x509 import InvalidVersion

    try:
        store = pkcs12.load_pkcs12(content, None if password is None else password.encode())
    except (ValueError, TypeError, UnsupportedAlgorithm, InternalError, InvalidVersion) as error:
        reason = "without a password" if password is None else "with this password"
        raise StoreError(f"cannot be read {reason}") from error
    others = tuple(each.certificate for each in store.additional_certs)
    return Pkcs12(store.key, None if store.cert is None else store.cert.certificate, others)


# --- as PEM, whatever the format ----------------------------------------------------------------------


def trusted_as_pem(content: bytes, password: str) -> bytes:
    """The certificates of a trust store, at least one, as PEM. Raises StoreError."""
    if format_of(content) == PEM:
        return _certificates_as_pem(certificates_in(content))
    found = _as_der(open_pkcs12(content, password or None).certificates)
    if not found:
        raise StoreError("has no certificate")
    return _certificates_as_pem(found)


def identity_as_pem(content: bytes, password: str) -> Identity:
    """The certificate and the key of a key store. Raises StoreError."""
    if format_of(content) == PEM:
        return Identity(chain_as_pem(content), key_as_pem(content))
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    store = open_pkcs12(content, password or None)
    chain = _certificates_as_pem(_as_der(store.chain))
    return Identity(chain, store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def chain_as_pem(content: bytes) -> bytes:
    """The certificates in PEM text. Raises StoreError."""
    return _certificates_as_pem(certificates_in(content))


def key_as_pem(content: bytes) -> bytes:
    """The one private key in PEM text. Raises StoreError."""
    try:
        return private_key_in(content).pem
    except ValueError as error:
        raise StoreError("has a private key that cannot be read") from error


def _as_der(certificates: Iterable[Certificate]) -> list[bytes]:
    from cryptography.hazmat.primitives.serialization import Encoding

    return [each.public_bytes(Encoding.DER) for each in certificates]


def _certificates_as_pem(certificates: Sequence[bytes]) -> bytes:
    return b"".join(as_pem("CERTIFICATE", each) for each in certificates)
