"""A certificate authority in a directory, and the certificates that it issues: for one machine or a development
cluster, where nobody runs another authority.

Keys are ECDSA P-256. The directory is readable by its owner alone, and so are the files.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from barnabas.broker.client.errors import ClientError
from barnabas.network import OsNetwork

CA_FILE: Final = "ca.pem"
CA_KEY_FILE: Final = "ca-key.pem"

AUTHORITY_DAYS: Final = 3650
CERTIFICATE_DAYS: Final = 825
"""The longest that all of today's TLS libraries accept of a server."""

_BACKDATED: Final = datetime.timedelta(hours=1)
"""Clocks of clients may be late."""
_NAME_LENGTH_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate with its key, as PEM, without the CA's certificate."""

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return "<certificate and key>"


def names_in(certificate: x509.Certificate) -> list[str]:
    """The host names and the addresses in a certificate. Errors: ValueError for extensions that cannot be read."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]


class Authority:
    """A CA's certificate and key. `now_ms` is the present time, from which certificates are valid."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, now_ms: int) -> None:
        self._certificate = certificate
        self._key = key
        self._now = _moment(now_ms)

    @classmethod
    def new(cls, name: str, now_ms: int) -> Authority:
        """Make a CA."""
        key, now = ec.generate_private_key(ec.SECP256R1()), _moment(now_ms)
        subject = _name(name)
        key_id = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        builder = (
            _builder(subject, subject, key, now, AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(of_authority=True), critical=True)
            .add_extension(key_id, critical=False)
        )
        return cls(builder.sign(key, hashes.SHA256()), key, now_ms)

    @classmethod
    def load(cls, directory: Path, now_ms: int) -> Authority:
        """Read the CA of a directory. Raises: ClientError; FileNotFoundError if there is none."""
        certificate, key = (directory / CA_FILE).read_bytes(), (directory / CA_KEY_FILE).read_bytes()
        try:
            loaded = serialization.load_pem_private_key(key, None)
            found = x509.load_pem_x509_certificate(certificate)
        except (ValueError, TypeError) as error:
            raise ClientError(f"{directory / CA_FILE} or {CA_KEY_FILE} is damaged, or encrypted") from error
        if not isinstance(loaded, ec.EllipticCurvePrivateKey) or loaded.public_key() != found.public_key():
            raise ClientError(f"{directory / CA_KEY_FILE} is not the key of {CA_FILE}")
        return cls(found, loaded, now_ms)

    @property
    def certificate(self) -> bytes:
        """The CA's certificate, as PEM."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key(self) -> bytes:
        """The CA's key, as PEM."""
        return _pem(self._key)

    def issue(self, name: str, hosts: Sequence[str] = (), *, days: int = CERTIFICATE_DAYS) -> Issued:
        """A certificate for a server, valid for these names and addresses, or without them for a client."""
        key = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
        key_id = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        of_issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = (
            _builder(_name(name), self._certificate.subject, key, self._now, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(of_authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(key_id, critical=False)
            .add_extension(of_issuer, critical=False)
        )
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName(map(_general_name, hosts)), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return Issued(certificate.public_bytes(serialization.Encoding.PEM), _pem(key))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime.datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _usage(*, of_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=of_authority,
        crl_sign=of_authority,
        encipher_only=False,
        decipher_only=False,
    )


def _name(name: str) -> x509.Name:
    if not name or len(name) > _NAME_LENGTH_MAX:
        raise ClientError(f"{name!r} is no name of a certificate: it has 1 to {_NAME_LENGTH_MAX} characters")
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise ClientError(
            f"{host!r} is no host name: internationalized names are written in ASCII (xn--...)"
        ) from error


def _moment(now_ms: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(now_ms // 1000, datetime.UTC)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def pkcs12_store(issued: Issued, ca: bytes, name: str, password: str) -> bytes:
    """A key store for Java with a certificate, its key, and the CA's certificate."""
    key = serialization.load_pem_private_key(issued.key, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return pkcs12.serialize_key_and_certificates(
        name.encode(),
        key,
        x509.load_pem_x509_certificate(issued.certificate),
        [x509.load_pem_x509_certificate(ca)],
        serialization.BestAvailableEncryption(password.encode()),
    )


def pkcs12_trust(ca: bytes, password: str) -> bytes:
    """A trust store for Java with the CA's certificate."""
    entry = pkcs12.PKCS12Certificate(x509.load_pem_x509_certificate(ca), b"ca")
    return pkcs12.serialize_java_truststore([entry], serialization.BestAvailableEncryption(password.encode()))


def make_private_directory(path: Path) -> None:
    """Make a directory for its owner alone, or have an existing one be that. Raises: OSError."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)


def write_private(path: Path, content: bytes) -> None:
    """Write a file that its owner alone may read, in place of any other: whole, or not at all. Raises: OSError."""
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def hosts_of(names: Iterable[str]) -> list[str]:
    """Names and addresses of a server, each once, with those by which its own machine reaches it."""
    return list(dict.fromkeys([*filter(None, names), "localhost", "127.0.0.1", "::1"]))


async def names_of_this_machine() -> list[str]:
    """The name of this machine, and its addresses that the name stands for."""
    network = OsNetwork()
    name = network.host_name()
    with contextlib.suppress(OSError):
        return [name, *await network.addresses(name)]
    return [name]
