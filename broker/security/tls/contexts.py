"""The TLS of one listener: Kafka's `ssl.` keys as one value, and the contexts made from it.

Source: DefaultSslEngineFactory, SslFactory (which changes of a running listener are allowed), ChannelBuilders
(`ssl.client.auth` of a SASL_SSL listener). Differences from Java's TLS: OpenSSL verifies and encrypts; TLS 1.3's cipher
suites cannot be selected before Python 3.15, only TLS 1.3 as a whole; the keys `ssl.protocol`, `ssl.provider`,
`ssl.keymanager.algorithm`, `ssl.trustmanager.algorithm` and `ssl.secure.random.implementation` name parts of Java, and
have no effect.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from barnabas.broker.security.tls.errors import TlsConfigError
from barnabas.broker.security.tls.key_stores import (
    KeyStore,
    Stamp,
    StoreSettings,
    load_key_store,
    load_trust_store,
    stamp_of,
)
from barnabas.broker.security.tls.principal_mapping import PrincipalMapping, subject_name

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_TLS_1_3_SUITES: Final = ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The TLS settings of one listener. `prefix` is that of its keys, for messages ("listener.name.external.")."""

    prefix: str
    key_store: StoreSettings
    trust_store: StoreSettings
    enabled_protocols: tuple[str, ...]
    cipher_suites: tuple[str, ...]
    client_auth: str
    endpoint_identification_algorithm: str
    principal_mapping_rules: str
    allow_dn_changes: bool
    allow_san_changes: bool

    @classmethod
    def read(cls, value: Callable[[str], Any], prefix: str, client_auth: str | None = None) -> TlsSettings:
        """The settings by their keys: `value("ssl.client.auth")` is the typed value for this listener. `client_auth`
        takes the place of that key."""

        def store(kind: str, certificates: str, private_key: str | None, key_password: str | None) -> StoreSettings:
            return StoreSettings(
                kind,
                prefix,
                value(f"ssl.{kind}.type") or "",
                value(f"ssl.{kind}.location"),
                value(f"ssl.{kind}.password"),
                value(certificates),
                private_key,
                key_password,
            )

        return cls(
            prefix,
            store("keystore", "ssl.keystore.certificate.chain", value("ssl.keystore.key"), value("ssl.key.password")),
            store("truststore", "ssl.truststore.certificates", None, None),
            tuple(value("ssl.enabled.protocols") or ()),
            tuple(value("ssl.cipher.suites") or ()),
            value("ssl.client.auth") if client_auth is None else client_auth,
            value("ssl.endpoint.identification.algorithm") or "",
            value("ssl.principal.mapping.rules") or "DEFAULT",
            bool(value("ssl.allow.dn.changes")),
            bool(value("ssl.allow.san.changes")),
        )

    def with_stores(self, key_store: StoreSettings, trust_store: StoreSettings) -> TlsSettings:
        """The same settings with other stores."""
        return replace(self, key_store=key_store, trust_store=trust_store)

    @property
    def paths(self) -> tuple[str, ...]:
        """The files of the stores."""
        return tuple(store.location for store in (self.key_store, self.trust_store) if store.location is not None)

    def stamps(self) -> tuple[Stamp | None, ...]:
        """The present stamps of the files. Blocking."""
        return tuple(map(stamp_of, self.paths))


@dataclass(frozen=True, slots=True)
class Tls:
    """The contexts of a listener, made from its settings and stores as they were at one time; never changed.

    `server` is for its connections, `client` for connections to the same listener of other brokers; `nameless_client`
    compares no host names. `stamps` are those of the files, taken before they were read.
    """

    settings: TlsSettings
    server: ssl.SSLContext
    client: ssl.SSLContext
    nameless_client: ssl.SSLContext
    certificate: x509.Certificate
    mapping: PrincipalMapping
    stamps: tuple[Stamp | None, ...]


def load(settings: TlsSettings) -> Tls:
    """Read the stores, and make the contexts. Blocking, some milliseconds. Raises TlsConfigError."""
    stamps = settings.stamps()
    key_store = load_key_store(settings.key_store)
    if key_store is None:
        raise TlsConfigError(
            f"a TLS listener needs a key: set {settings.key_store.key('location')}, or"
            f" {settings.key_store.key('key')} and {settings.key_store.key('certificate.chain')}"
        )
    trusted = load_trust_store(settings.trust_store)
    server, client, nameless_client = _server_context(settings), _client_context(settings), _client_context(settings)
    nameless_client.check_hostname = False
    for context in (server, client, nameless_client):
        _select_protocols(context, settings)
        _load_key(context, key_store, settings)
        _trust(context, trusted, settings)
    mapping = PrincipalMapping(settings.principal_mapping_rules)
    return Tls(settings, server, client, nameless_client, key_store.certificate, mapping, stamps)


def load_client(settings: TlsSettings) -> ssl.SSLContext:
    """Read the stores, and make the context of a client, which needs no key. Blocking, some milliseconds. Raises
    TlsConfigError."""
    context = _client_context(settings)
    _select_protocols(context, settings)
    if (key_store := load_key_store(settings.key_store)) is not None:
        _load_key(context, key_store, settings)
    _trust(context, load_trust_store(settings.trust_store), settings)
    return context


def check_replacement(before: Tls, after: Tls) -> None:
    """Check that `after` may take the place of `before` in a running broker: the subject is the same, unless
    `ssl.allow.dn.changes`, and it has all the alternative names, unless `ssl.allow.san.changes`; there is no trust
    store where there was none (SslFactory.CertificateEntries). Raises TlsConfigError."""
    settings = after.settings
    if _has_store(settings.trust_store) and not _has_store(before.settings.trust_store):
        raise TlsConfigError(
            f"{settings.trust_store.key('location')}: a listener that had no trust store gets none while it runs"
        )
    if not settings.allow_dn_changes:
        names = [subject_name(each.certificate.subject.public_bytes()) for each in (before, after)]
        if names[0].casefold() != names[1].casefold() and before.certificate.subject != after.certificate.subject:
            raise TlsConfigError(
                f"{settings.key_store.key('location')}: the new certificate is of {names[1]}, the present one of"
                f" {names[0]}: see ssl.allow.dn.changes"
            )
    if not settings.allow_san_changes:
        missing = _alternative_names(before.certificate) - _alternative_names(after.certificate)
        if missing:
            raise TlsConfigError(
                f"{settings.key_store.key('location')}: the new certificate lacks alternative names of the present one"
                f" ({', '.join(sorted(missing))}): see ssl.allow.san.changes"
            )


def check_among_brokers(one: Tls, other: Tls) -> None:
    """Check that a client with the settings of `one` and a server with those of `other` can connect, and the other way
    round: brokers use the same settings, and one that cannot connect to itself is wrong (SslEngineValidator).

    Host names are not compared. Raises TlsConfigError.
    """
    for client, server in ((one, other), (other, one)):
        settings = client.settings
        try:
            _shake_hands(client.nameless_client, server.server)
        except ssl.SSLError as error:
            raise TlsConfigError(
                f"{settings.trust_store.key('location')}: brokers could not connect to each other on this listener:"
                f" {reason_of(error)}"
            ) from error


_NO_TLS: Final = "the other side does not speak TLS"
_NO_VERSION: Final = "no version of TLS in common (ssl.enabled.protocols)"
_NOT_TRUSTED: Final = "the other side does not accept the certificate of this one"
_REASONS: Final = {
    "HTTP_REQUEST": _NO_TLS,
    "PACKET_LENGTH_TOO_LONG": _NO_TLS,
    "RECORD_LAYER_FAILURE": _NO_TLS,
    "WRONG_VERSION_NUMBER": _NO_TLS,
    "NO_SHARED_CIPHER": "no cipher suite in common (ssl.cipher.suites)",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client shows no certificate (ssl.client.auth)",
    "SSLV3_ALERT_BAD_CERTIFICATE": _NOT_TRUSTED,
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": _NOT_TRUSTED,
    "TLSV1_ALERT_UNKNOWN_CA": _NOT_TRUSTED,
    "TLSV1_ALERT_PROTOCOL_VERSION": _NO_VERSION,
    "UNSUPPORTED_PROTOCOL": _NO_VERSION,
    "VERSION_TOO_LOW": _NO_VERSION,
}


def reason_of(error: BaseException) -> str:
    """Why a handshake failed, for a log line: in words of ours, or in OpenSSL's without its codes."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of the other side is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return _REASONS.get(error.reason, error.reason.lower().replace("_", " "))
    if isinstance(error, ConnectionResetError):
        return "the other side closed the connection; it may not accept the certificate of this one"
    return str(error) or type(error).__name__


def _shake_hands(client_context: ssl.SSLContext, server_context: ssl.SSLContext) -> None:
    """A handshake in memory. Raises ssl.SSLError."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    client = client_context.wrap_bio(to_client, to_server)
    waiting = [client, server]
    for _ in range(10):  # TLS 1.2 takes three steps of each
        for side in list(waiting):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(side)
    if waiting:
        raise ssl.SSLError("the handshake does not end")


# --- contexts -----------------------------------------------------------------------------------------


class _AlertingObject(ssl.SSLObject):
    """Sends the alert of a failed handshake, which neither asyncio nor uvloop does."""

    outgoing: ssl.MemoryBIO
    send: Callable[[bytes], None]

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            if hasattr(self, "send") and (alert := self.outgoing.read()):
                self.send(alert)
            raise


class _AlertingContext:
    """What an event loop needs of a context, for one connection; the loops ask for its class."""

    __class__ = property(lambda self: ssl.SSLContext)

    def __init__(self, context: ssl.SSLContext, send: Callable[[bytes], None]) -> None:
        self._context = context
        self._send = send

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, **keywords: Any) -> ssl.SSLObject:
        found = self._context.wrap_bio(incoming, outgoing, **keywords)
        if isinstance(found, _AlertingObject):
            found.outgoing, found.send = outgoing, self._send
        return found


def sending_alerts(context: ssl.SSLContext, send: Callable[[bytes], None]) -> ssl.SSLContext:
    """A server's context for one connection: if its handshake fails, `send` is called with the alert, and has to send
    it at once. Kafka's clients take an alert for final, and connect again after a connection that just ends."""
    return cast(ssl.SSLContext, _AlertingContext(context, send))


def _server_context(settings: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sslobject_class = _AlertingObject
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE | ssl.OP_NO_RENEGOTIATION
    context.verify_mode = _CLIENT_AUTH[settings.client_auth]
    return context


def _client_context(settings: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    algorithm = settings.endpoint_identification_algorithm.lower()
    if algorithm not in ("", "https"):
        key = f"{settings.prefix}ssl.endpoint.identification.algorithm"
        raise TlsConfigError(f"{key}: {algorithm} is not supported: use https, or leave it empty")
    context.check_hostname = algorithm == "https"
    return context


def _select_protocols(context: ssl.SSLContext, settings: TlsSettings) -> None:
    """Enable the versions of TLS, and the cipher suites."""
    key = f"{settings.prefix}ssl.enabled.protocols"
    unknown = [name for name in settings.enabled_protocols if name not in _VERSIONS]
    if unknown:
        raise TlsConfigError(f"{key}: {', '.join(unknown)} is not supported: use {', '.join(_VERSIONS)}")
    versions = {_VERSIONS[name] for name in settings.enabled_protocols or _VERSIONS}
    if settings.cipher_suites:
        versions = _select_ciphers(context, settings, versions)
    context.minimum_version, context.maximum_version = min(versions), max(versions)


def _select_ciphers(
    context: ssl.SSLContext, settings: TlsSettings, versions: Iterable[ssl.TLSVersion]
) -> set[ssl.TLSVersion]:
    """Enable the cipher suites; returns the versions for which there is one."""
    key = f"{settings.prefix}ssl.cipher.suites"
    newer = [name for name in settings.cipher_suites if name in _TLS_1_3_SUITES]
    older = [openssl_name(name) for name in settings.cipher_suites if name not in newer]
    known = _all_ciphers()
    unknown = [name for name in settings.cipher_suites if name not in newer and openssl_name(name) not in known]
    if unknown:
        raise TlsConfigError(f"{key}: {', '.join(unknown)} is no cipher suite of this OpenSSL")
    if older:
        context.set_ciphers(":".join(older))
    if newer and hasattr(context, "set_ciphersuites"):
        context.set_ciphersuites(":".join(newer))
    has_suites = {ssl.TLSVersion.TLSv1_2: bool(older), ssl.TLSVersion.TLSv1_3: bool(newer)}
    usable = {version for version in versions if has_suites[version]}
    if not usable:
        raise TlsConfigError(f"{key}: none of the suites belongs to an enabled protocol (ssl.enabled.protocols)")
    return usable


def openssl_name(name: str) -> str:
    """OpenSSL's name of a cipher suite of TLS 1.2 that has Java's: TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 is
    ECDHE-RSA-AES128-GCM-SHA256. OpenSSL's own names stay."""
    exchange, separator, cipher = name.removeprefix("TLS_").partition("_WITH_")
    if not separator:
        return name
    if cipher.endswith("POLY1305_SHA256"):
        cipher = cipher.removesuffix("_SHA256")
    cipher = cipher.replace("AES_128", "AES128").replace("AES_256", "AES256").replace("_CBC", "")
    parts = [*([] if exchange == "RSA" else [exchange]), cipher]
    return "-".join(parts).replace("_", "-")


def _all_ciphers() -> set[str]:
    """OpenSSL's names of all cipher suites."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("ALL")
    return {each["name"] for each in context.get_ciphers()}


def _load_key(context: ssl.SSLContext, key_store: KeyStore, settings: TlsSettings) -> None:
    with key_store.as_file() as path:
        try:
            context.load_cert_chain(path)
        except ssl.SSLError as error:
            raise TlsConfigError(
                f"{settings.key_store.key('location')}: OpenSSL refuses the key: {reason_of(error)}"
            ) from error


def _trust(context: ssl.SSLContext, certificates: Iterable[x509.Certificate] | None, settings: TlsSettings) -> None:
    """Trust these certificates, or those of this machine: in Java, without a trust store, those of its runtime."""
    if certificates is None:
        if context.verify_mode != ssl.CERT_NONE:
            context.load_default_certs(
                ssl.Purpose.CLIENT_AUTH if context.protocol == ssl.PROTOCOL_TLS_SERVER else ssl.Purpose.SERVER_AUTH
            )
        return
    pem = "".join(each.public_bytes(Encoding.PEM).decode() for each in certificates)
    try:
        context.load_verify_locations(cadata=pem)
    except ssl.SSLError as error:
        raise TlsConfigError(
            f"{settings.trust_store.key('location')}: OpenSSL refuses the certificates: {reason_of(error)}"
        ) from error
    # As in Java, each of them is trusted by itself, also one that another has issued.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


# --- changes ------------------------------------------------------------------------------------------


def _has_store(settings: StoreSettings) -> bool:
    return settings.location is not None or settings.certificates is not None


def _alternative_names(certificate: x509.Certificate) -> set[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (x509.ExtensionNotFound, ValueError):
        return set()
    return {str(getattr(each, "value", each)) for each in found.value}
