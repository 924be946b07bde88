"""TLS of a client's connections: the context of Python's `ssl`, and sentences for its errors.

As in Java, any certificate of the trust store is trusted by itself, whether it is of a CA or not, and Python's strict
checks of extensions, which old CAs do not pass, are off.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from typing import Final

from barnabas.broker.client.errors import NO_ROOM, ClientError
from barnabas.broker.client.security import Tls

_NAME_ERRORS: Final = (62, 64)
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""
_EXPIRED: Final = 10
_NOT_YET_VALID: Final = 9

_WITHOUT_TLS: Final = (
    "ask for its TLS listener, or leave TLS out: no --ca and --certificate; security.protocol=PLAINTEXT or"
    " SASL_PLAINTEXT in --command-config"
)

_ONE_TIME_PASSWORD_BYTES: Final = 32


def client_context(tls: Tls) -> ssl.SSLContext:
    """The context of connections to brokers. Errors: ClientError if a certificate or key cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.check_hostname = tls.checks_host_name and tls.checks_certificate
    if not tls.checks_certificate:
        context.verify_mode = ssl.CERT_NONE
    if tls.trusted:
        try:
            context.load_verify_locations(cadata=tls.trusted.decode("ascii", "replace"))
        except ssl.SSLError as error:
            raise ClientError(f"the CA certificates cannot be read: {_reason(error)}") from error
    else:
        context.load_default_certs()
    if tls.chain:
        _load_identity(context, tls)
    return context


def _load_identity(context: ssl.SSLContext, tls: Tls) -> None:
    """Load certificate and key, which Python's `ssl` takes from files alone. A key without a password of its own is
    encrypted by a random one, so that the temporary file is of no use to others, even if it survives."""
    key, password = tls.key, tls.key_password
    if b"ENCRYPTED" not in key:
        key, password = _encrypted(key)
    with tempfile.TemporaryDirectory(prefix="barnabas-") as folder:
        chain_path, key_path = os.path.join(folder, "chain.pem"), os.path.join(folder, "key.pem")
        for path, content in ((chain_path, tls.chain), (key_path, key)):
            with open(path, "xb", opener=_for_the_owner) as file:
                file.write(content)
        try:
            # Without a password OpenSSL would ask at the terminal: an empty one is refused by it.
            context.load_cert_chain(chain_path, key_path, password)
        except (ssl.SSLError, ValueError) as error:
            raise ClientError(_refused_identity(error, tls)) from error


def _for_the_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _encrypted(key: bytes) -> tuple[bytes, str]:
    from cryptography.exceptions import InternalError, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    password = os.urandom(_ONE_TIME_PASSWORD_BYTES).hex()
    try:
        loaded = serialization.load_pem_private_key(key, None)
    except (ValueError, TypeError, UnsupportedAlgorithm, InternalError) as error:
        raise ClientError("the private key of the client cannot be read: expected PEM") from error
    encryption = serialization.BestAvailableEncryption(password.encode())
    return (
        loaded.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption),
        password,
    )


def _refused_identity(error: Exception, tls: Tls) -> str:
    reason = _reason(error) if isinstance(error, ssl.SSLError) else str(error)
    if "KEY_VALUES_MISMATCH" in reason:
        return "the private key is not that of the client's certificate"
    if b"ENCRYPTED" in tls.key:
        given = "is another one" if tls.key_password else "is missing (ssl.key.password in --command-config)"
        return f"the private key of the client is encrypted, and its password {given}"
    return f"the client's certificate and key cannot be used: {reason}"


def _reason(error: ssl.SSLError) -> str:
    return error.reason or error.strerror or str(error)


def sentence(error: OSError, address: str, tls: Tls) -> str | None:
    """What to do about an error of a connection with TLS, in one line; None if TLS does not explain it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _of_certificate(error, address, tls)
    if not isinstance(error, ssl.SSLError):
        return None
    reason = _reason(error)
    # Java answers a client without a certificate with bad_certificate.
    is_of_certificate = "CERTIFICATE" in reason or "HANDSHAKE_FAILURE" in reason
    if "ALERT" in reason and is_of_certificate and not tls.chain:
        return f"the broker at {address} asks for a certificate: give --certificate and --key"
    if "ALERT" in reason and any(word in reason for word in ("CERTIFICATE", "UNKNOWN_CA")):
        return f"the broker at {address} does not accept the client's certificate ({reason}): use one of a CA it trusts"
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"):
        return f"the listener at {address} does not speak TLS: {_WITHOUT_TLS}"
    if isinstance(error, ssl.SSLEOFError):
        return None
    return f"TLS with the broker at {address} failed: {reason}"


def _of_certificate(error: ssl.SSLCertVerificationError, address: str, tls: Tls) -> str:
    whose = f"the certificate of the broker at {address}"
    if error.verify_code in _NAME_ERRORS:
        return (
            f"{whose} is for other names: connect by a name it has, or turn the check off with"
            " ssl.endpoint.identification.algorithm= in --command-config"
        )
    if error.verify_code in (_EXPIRED, _NOT_YET_VALID):
        return f"{whose} {'has expired' if error.verify_code == _EXPIRED else 'is not valid yet'}: it needs a new one"
    if tls.trusted:
        return f"{whose} is of another CA than the one given: give the file of its CA with --ca"
    return f"{whose} is of a CA that this system does not know: give the file of its CA with --ca"


def closed_in_handshake(address: str) -> str:
    """What to do if a connection is closed during the handshake: by a listener without TLS, to which the client's
    message is nonsense, or by one with TLS, if the broker can have no more connections or handshakes."""
    return (
        f"the broker at {address} closed the connection during the TLS handshake: either the listener does not speak"
        f" TLS ({_WITHOUT_TLS}), or {NO_ROOM}"
    )
