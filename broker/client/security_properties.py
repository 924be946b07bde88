"""Reads how to connect from properties as Kafka's clients and librdkafka's have them (`--command-config FILE`).

A key that does not matter here is passed over, as by Kafka's tools. The file's format of a store is told by its
content (`broker/security/tls/stores.py`), so that the keys of types are not needed; they are checked all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from barnabas.broker.client.errors import ClientError
from barnabas.broker.client.security import (
    MECHANISMS,
    OAUTHBEARER,
    PLAIN,
    Security,
    Tls,
    TokenLogin,
    UserLogin,
)
from barnabas.broker.security.sasl.jaas import JaasError, LoginModule, parse
from barnabas.broker.security.tls import stores
from barnabas.broker.security.tls.stores import StoreError

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_OFF: Final = ("", "none")
_MECHANISMS_OF_MODULES: Final = {"PlainLoginModule": PLAIN, "OAuthBearerLoginModule": OAUTHBEARER}
_UNSECURED_SUBJECT: Final = "unsecuredLoginStringClaim_sub"
_EXTENSION: Final = "extension_"


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Turn what is wrong with a store into a ClientError."""
    try:
        yield
    except StoreError as error:
        raise ClientError(f"{name} {error}") from error


def trusted_certificates(content: bytes, password: str, name: str) -> bytes:
    """The certificates of a trust store, as PEM; `name` is the store in errors. Errors: ClientError."""
    with _named(name):
        return stores.trusted_as_pem(content, password)


class SecurityProperties:
    """The keys and values of one file, or of options; files in them are read here. Errors: ClientError."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def security(self) -> Security:
        """TLS and login that the properties ask for."""
        protocol = (self._first("security.protocol") or "PLAINTEXT").upper()
        if protocol not in _PROTOCOLS:
            raise ClientError(f"security.protocol={protocol} is none of {', '.join(_PROTOCOLS)}")
        tls = self._tls() if protocol.endswith("SSL") else None
        return Security(tls, self._login() if protocol.startswith("SASL") else None)

    def _first(self, *keys: str) -> str:
        """The value of the first key that is set."""
        return next((self._values[key] for key in keys if self._values.get(key)), "")

    # -- TLS

    def _tls(self) -> Tls:
        chain, key = self._identity()
        return Tls(
            trusted=self._trusted(),
            chain=chain,
            key=key,
            key_password=self._first("ssl.key.password"),
            checks_host_name=self._values.get("ssl.endpoint.identification.algorithm", "https").lower() not in _OFF,
            checks_certificate=self._first("enable.ssl.certificate.verification").lower() != "false",
        )

    def _trusted(self) -> bytes:
        self._check_type("ssl.truststore.type")
        if text := self._first("ssl.truststore.certificates", "ssl.ca.pem"):
            return trusted_certificates(text.encode(), "", "ssl.truststore.certificates")
        location = self._first("ssl.truststore.location", "ssl.ca.location")
        if not location:
            return b""
        password = self._first("ssl.truststore.password")
        return trusted_certificates(_content(location, "the CA file"), password, location)

    def _identity(self) -> tuple[bytes, bytes]:
        """The client's certificates and its key as PEM, or neither."""
        self._check_type("ssl.keystore.type")
        chain = self._first("ssl.keystore.certificate.chain", "ssl.certificate.pem").encode()
        key = self._first("ssl.keystore.key", "ssl.key.pem").encode()
        if location := self._first("ssl.certificate.location"):
            chain = _content(location, "the certificate")
        if location := self._first("ssl.key.location"):
            key = _content(location, "the key")
        elif chain and not key:
            key = chain
        if chain:
            with _named("the client's certificate"):
                chain = stores.chain_as_pem(chain)
            with _named("the client's key"):
                return chain, stores.key_as_pem(key)
        if key:
            raise ClientError(
                "there is a private key without its certificate (ssl.certificate.location, --certificate)"
            )
        if location := self._first("ssl.keystore.location"):
            content = _content(location, "the key store")
            with _named(location):
                return stores.identity_as_pem(content, self._first("ssl.keystore.password"))
        return b"", b""

    def _check_type(self, key: str) -> None:
        kind = self._first(key).upper()
        if kind not in ("", stores.PEM, stores.PKCS12, stores.JKS):
            raise ClientError(f"{key}={kind}: expected PEM or PKCS12")

    # -- SASL

    def _login(self) -> UserLogin | TokenLogin:
        module = self._login_module()
        mechanism = self._first("sasl.mechanism", "sasl.mechanisms").upper()
        if not mechanism:
            mechanism = _MECHANISMS_OF_MODULES.get(module.class_name.rpartition(".")[2], "")
        if mechanism not in ("", *MECHANISMS):
            raise ClientError(f"sasl.mechanism={mechanism} is none of {', '.join(MECHANISMS)}")
        if mechanism == OAUTHBEARER:
            return self._token_login(module)
        username = module.options.get("username") or self._first("sasl.username")
        if not username:
            raise ClientError(
                "SASL needs a user: give --user, or sasl.username or sasl.jaas.config in --command-config"
            )
        return UserLogin(username, module.options.get("password") or self._first("sasl.password"), mechanism)

    def _login_module(self) -> LoginModule:
        text = self._first("sasl.jaas.config")
        if not text:
            return LoginModule("")
        try:
            return parse(text)
        except JaasError as error:
            raise ClientError(f"sasl.jaas.config cannot be read: {error}") from error

    def _token_login(self, module: LoginModule) -> TokenLogin:
        options = module.options
        extensions = {
            name.removeprefix(_EXTENSION): value for name, value in options.items() if name.startswith(_EXTENSION)
        }
        extensions |= _pairs(self._first("sasl.oauthbearer.extensions"), ",")
        url = self._first("sasl.oauthbearer.token.endpoint.url")
        login = TokenLogin(
            endpoint_url=url,
            client_id=options.get("clientId")
            or self._first("sasl.oauthbearer.client.credentials.client.id", "sasl.oauthbearer.client.id"),
            client_secret=options.get("clientSecret")
            or self._first("sasl.oauthbearer.client.credentials.client.secret", "sasl.oauthbearer.client.secret"),
            scope=options.get("scope") or self._first("sasl.oauthbearer.scope"),
            unsecured_subject="" if url else options.get(_UNSECURED_SUBJECT) or self._principal(),
            extensions=tuple(extensions.items()),
            tls=self._tls(),
            header_urlencode=self._first("sasl.oauthbearer.header.urlencode").lower() == "true",
        )
        if not login.endpoint_url and not login.unsecured_subject:
            raise ClientError("OAUTHBEARER needs a token: sasl.oauthbearer.token.endpoint.url, or a file: URL there")
        return login

    def _principal(self) -> str:
        """The subject of librdkafka's unsecured tokens."""
        return _pairs(self._first("sasl.oauthbearer.config"), " ").get("principal", "")


def _pairs(text: str, separator: str) -> dict[str, str]:
    """NAME=VALUE pairs, of which those without an equals sign are passed over."""
    found = (each.strip().partition("=") for each in text.split(separator) if "=" in each)
    return {name: value for name, _, value in found}


def _content(location: str, what: str) -> bytes:
    try:
        return Path(location).read_bytes()
    except OSError as error:
        raise ClientError(f"{what} {location} cannot be read: {error.strerror or error}") from error
