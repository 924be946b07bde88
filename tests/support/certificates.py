"""An authority and its certificates, in files, for tests of TLS."""

import ssl
from functools import cached_property
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)
from cryptography.x509 import Certificate, load_pem_x509_certificate


class Authority:
    """Issues certificates, and writes key stores and trust stores into `directory`."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self.directory = directory
        self._name = name
        self._authority = trustme.CA(organization_name=name)

    @property
    def pem(self) -> str:
        return self._authority.cert_pem.bytes().decode()

    @cached_property
    def trust_store(self) -> Path:
        """PEM, with the authority's certificate."""
        path = self.directory / f"{self._name}.pem"
        path.write_text(self.pem)
        return path

    def issue(self, *names: str, common_name: str | None = None) -> trustme.LeafCert:
        return self._authority.issue_cert(
            *names, common_name=common_name, organization_name="Example", organization_unit_name="Tests"
        )

    def key_store(self, name: str, *names: str, common_name: str | None = None) -> Path:
        """PEM, with a new key and its certificate; of the name `localhost` and the loopback address by default."""
        leaf = self.issue(*(names or ("localhost", "127.0.0.1")), common_name=common_name)
        path = self.directory / f"{name}.pem"
        path.write_bytes(leaf.private_key_and_cert_chain_pem.bytes())
        return path

    def client(self, leaf: trustme.LeafCert | None = None) -> ssl.SSLContext:
        """The context of a client that trusts the authority."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._authority.configure_trust(context)
        if leaf is not None:
            leaf.configure_cert(context)
        return context


def pkcs12_of(leaf: trustme.LeafCert, password: str, others: list[Certificate] | None = None) -> bytes:
    """A PKCS12 key store."""
    key = load_pem_private_key(leaf.private_key_pem.bytes(), None)
    certificate = load_pem_x509_certificate(leaf.cert_chain_pems[0].bytes())
    encryption = BestAvailableEncryption(password.encode())
    return pkcs12.serialize_key_and_certificates(b"key", key, certificate, others, encryption)  # type: ignore[arg-type]


def encrypted_key(leaf: trustme.LeafCert, password: str) -> str:
    """The private key as encrypted PKCS8 in PEM."""
    key = load_pem_private_key(leaf.private_key_pem.bytes(), None)
    encryption = BestAvailableEncryption(password.encode())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption).decode()


def chain_of(leaf: trustme.LeafCert) -> str:
    """The certificates of a key, in PEM."""
    return "".join(each.bytes().decode() for each in leaf.cert_chain_pems)
