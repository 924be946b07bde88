"""Certificates and keys in the files of Kafka's clients: PEM and PKCS12. Java's own format JKS is refused, with the
command that converts it.

The format of a file is told by its content, because Kafka's default for the type, JKS, reads PKCS12, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.broker.client.errors import ClientError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12KeyAndCertificates

PEM: Final = "PEM"
PKCS12: Final = "PKCS12"
JKS: Final = "JKS"

_PEM_BEGIN: Final = b"-----BEGIN "
_JKS_MAGIC: Final = b"\xfe\xed\xfe\xed"
_CERTIFICATE: Final = (b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----")


class Identity(NamedTuple):
    """A certificate with its chain, and the private key of it, as PEM. The key may be encrypted in a PEM file."""

    chain: bytes
    key: bytes

    def __repr__(self) -> str:
        return "<certificate and key>"


def format_of(data: bytes) -> str:
    """The format of a store's content."""
    if _PEM_BEGIN in data:
        return PEM
    return JKS if data.startswith(_JKS_MAGIC) else PKCS12


def trusted_certificates(data: bytes, password: str, name: str) -> bytes:
    """The certificates of a trust store, as PEM; `name` is the store in errors. Errors: ClientError."""
    if _format(data, name) == PEM:
        if _CERTIFICATE[0] not in data:
            raise ClientError(f"{name} has no certificate")
        return data
    from cryptography.hazmat.primitives.serialization import Encoding

    store = _load_pkcs12(data, password, name)
    found = ([store.cert] if store.cert is not None else []) + list(store.additional_certs)
    if not found:
        raise ClientError(f"{name} has no certificate")
    return b"".join(each.certificate.public_bytes(Encoding.PEM) for each in found)


def identity(data: bytes, password: str, name: str) -> Identity:
    """The certificate and the key of a key store; `name` is the store in errors. Errors: ClientError."""
    if _format(data, name) == PEM:
        return Identity(certificates_in(data, name), data)
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    store = _load_pkcs12(data, password, name)
    if store.key is None or store.cert is None:
        raise ClientError(f"{name} has no private key with its certificate")
    chain = [store.cert, *store.additional_certs]
    return Identity(
        b"".join(each.certificate.public_bytes(Encoding.PEM) for each in chain),
        store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )


def certificates_in(data: bytes, name: str) -> bytes:
    """The certificates in PEM text that may have keys, too. Errors: ClientError if there is none."""
    begin, end = _CERTIFICATE
    found = [begin + part.split(end)[0] + end + b"\n" for part in data.split(begin)[1:] if end in part]
    if not found:
        raise ClientError(f"{name} has no certificate")
    return b"".join(found)


def _format(data: bytes, name: str) -> str:
    kind = format_of(data)
    if kind == JKS:
        raise ClientError(
            f"{name} is a JKS store, which only Java reads: convert it with `keytool -importkeystore -srckeystore"
            f" FILE.jks -destkeystore FILE.p12 -deststoretype PKCS12`"
        )
    return kind


def _load_pkcs12(data: bytes, password: str, name: str) -> PKCS12KeyAndCertificates:
    from cryptography.hazmat.primitives.serialization import pkcs12

    try:
        return pkcs12.load_pkcs12(data, password.encode() or None)
    except ValueError as error:
        reason = "is no PEM or PKCS12 store, or its password is another one"
        raise ClientError(f"{name} {reason}" if data else f"{name} is empty") from error
