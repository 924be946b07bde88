"""Values of security keys that are refused, because what they ask for does not exist here.

A key of `tables/security.py` is obeyed where it is read, or is here: a broker that started without what its
configuration says about security would let in whom it should keep out. Of the keys that name classes, Kafka's own are
accepted: they stand for what happens here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from barnabas.broker.configuration.definitions import PASSWORD, ConfigKey, ConfigValueError, parse

_PACKAGE: Final = "org.apache.kafka.common.security"
_OAUTH: Final = f"{_PACKAGE}.oauthbearer"
_NO_JAVA: Final = "other Java classes cannot be loaded"
_NO_ASSERTIONS: Final = (
    "a broker's tokens come by the grant of client credentials (sasl.oauthbearer.client.credentials.client.id)"
)

KAFKA_CLASSES: Final[Mapping[str, tuple[str, ...]]] = {
    "principal.builder.class": (f"{_PACKAGE}.authenticator.DefaultKafkaPrincipalBuilder",),
    "sasl.client.callback.handler.class": (
        f"{_PACKAGE}.authenticator.SaslClientCallbackHandler",
        f"{_OAUTH}.internals.OAuthBearerSaslClientCallbackHandler",
        f"{_PACKAGE}.kerberos.KerberosClientCallbackHandler",
    ),
    "sasl.login.callback.handler.class": (
        f"{_OAUTH}.OAuthBearerLoginCallbackHandler",
        f"{_OAUTH}.secured.OAuthBearerLoginCallbackHandler",
        f"{_OAUTH}.internals.unsecured.OAuthBearerUnsecuredLoginCallbackHandler",
    ),
    "sasl.login.class": (
        f"{_PACKAGE}.authenticator.DefaultLogin",
        f"{_PACKAGE}.kerberos.KerberosLogin",
        f"{_OAUTH}.internals.OAuthBearerRefreshingLogin",
    ),
    "sasl.oauthbearer.jwt.retriever.class": (
        f"{_OAUTH}.DefaultJwtRetriever",
        f"{_OAUTH}.ClientCredentialsJwtRetriever",
        f"{_OAUTH}.FileJwtRetriever",
    ),
    "sasl.oauthbearer.jwt.validator.class": (
        f"{_OAUTH}.DefaultJwtValidator",
        f"{_OAUTH}.BrokerJwtValidator",
    ),
    "sasl.server.callback.handler.class": (
        f"{_OAUTH}.OAuthBearerValidatorCallbackHandler",
        f"{_OAUTH}.secured.OAuthBearerValidatorCallbackHandler",
        f"{_OAUTH}.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler",
        f"{_PACKAGE}.plain.internals.PlainServerCallbackHandler",
    ),
    "ssl.engine.factory.class": (f"{_PACKAGE}.ssl.DefaultSslEngineFactory",),
}
"""Keys that name classes, and their only values."""

JAVA_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "ssl.keymanager.algorithm": ("SunX509", "NewSunX509", "PKIX"),
    "ssl.protocol": ("TLSv1.3", "TLSv1.2", "TLS"),
    "ssl.provider": ("SunJSSE",),
    "ssl.secure.random.implementation": (
        "DRBG",
        "NativePRNG",
        "NativePRNGBlocking",
        "NativePRNGNonBlocking",
        "SHA1PRNG",
    ),
    "ssl.trustmanager.algorithm": ("PKIX", "SunX509"),
}
"""Keys that name parts of Java's own TLS, and the values by which Java does what OpenSSL does here."""

ABSENT: Final[Mapping[str, str]] = {
    "security.providers": "Java's security providers cannot be loaded",
    **{
        f"sasl.oauthbearer.assertion.{name}": _NO_ASSERTIONS
        for name in (
            "algorithm",
            "claim.aud",
            "claim.exp.seconds",
            "claim.iss",
            "claim.jti.include",
            "claim.nbf.seconds",
            "claim.sub",
            "file",
            "private.key.file",
            "private.key.passphrase",
            "template.file",
        )
    },
}
"""Keys of parts of Kafka that do not exist here, of which only the default is accepted."""

WITHOUT_EFFECT: Final = frozenset(
    (
        "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.min.time.before.relogin",
        "sasl.kerberos.ticket.renew.jitter",
        "sasl.kerberos.ticket.renew.window.factor",
    )
)
"""Keys of tickets, which Kafka's brokers renew by a command where they log in to others by GSSAPI. Here the library of
Kerberos gets newer ones by itself, with the keys of the key table."""


def refusal(key: ConfigKey[Any], name: str, text: str) -> str | None:
    """Why `text` is refused as the value of a security key; None if it is not. `name` is the key's, with its prefix."""
    text = text.strip()
    shown = "[hidden]" if key.type == PASSWORD else text
    allowed = KAFKA_CLASSES.get(key.name) or JAVA_NAMES.get(key.name)
    if allowed is not None and text not in ("", *allowed):
        what = _NO_JAVA if key.name in KAFKA_CLASSES else "it is none of Java's own"
        return f"Invalid value {shown} for configuration {name}: {what}. Allowed: {', '.join(allowed)}"
    if key.name in ABSENT and text and not _is_default(key, text):
        return f"Invalid value {shown} for configuration {name}: {ABSENT[key.name]}"
    return None


def _is_default(key: ConfigKey[Any], text: str) -> bool:
    try:
        return parse(key, text) == key.default
    except ConfigValueError:
        return True  # an error of its own
