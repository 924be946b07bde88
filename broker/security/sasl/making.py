"""The mechanisms of a listener, made from its configuration.

Values of keys are looked up as `BrokerConfig.value_for_listener` does it: that of the listener and the mechanism first,
`listener.name.LISTENER.MECHANISM.KEY`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from barnabas.broker.security.sasl import jaas, kerberos, kerberos_names, oauthbearer, plain
from barnabas.broker.security.sasl.listeners import SaslListener
from barnabas.broker.security.sasl.mechanism import Identity, Mechanism
from barnabas.broker.security.sasl.scram_credentials import Credential
from barnabas.clock import Clock
from barnabas.threads import Threads

if TYPE_CHECKING:
    from barnabas.broker.security.sasl.scram import Found

ValueForListener = Callable[[str, str, str], Any]
"""The value of a key, by listener, key and mechanism ("" for that of the listener)."""

ValueOf = Callable[[str], Any]
"""The value of a key for one mechanism of one listener."""

JAAS_KEY: Final = "sasl.jaas.config"
_HANDLER: Final = "sasl.server.callback.handler.class"
SERVICE_NAME: Final = "sasl.kerberos.service.name"
_VALIDATORS: Final = tuple(
    f"org.apache.kafka.common.security.oauthbearer.{package}OAuthBearerValidatorCallbackHandler"
    for package in ("", "secured.")
)
_PLAIN_HANDLER: Final = "org.apache.kafka.common.security.plain.internals.PlainServerCallbackHandler"
_UNSECURED_VALIDATOR: Final = (
    "org.apache.kafka.common.security.oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
)


class MechanismError(ValueError):
    """A mechanism cannot be made from its configuration; the text names the key, and no secret."""


class Sources(NamedTuple):
    """What mechanisms need besides their configuration. `scram_text(mechanism, user)` is the user's credential in the
    metadata store, None without one; `find_token(mechanism, token_id)` finds that of a delegation token, and is None
    where there are no tokens. `find_gssapi` imports the package gssapi, or raises ImportError."""

    clock: Clock
    threads: Threads
    random_bytes: Callable[[int], bytes]
    scram_text: Callable[[str, str], str | None]
    find_token: Callable[[str, str], Awaitable[Found | None]] | None = None
    find_gssapi: Callable[[], Any] = kerberos.find_package


def make_listener(
    listener: str, value: ValueForListener, sources: Sources, broker_mechanism: Mechanism | None = None
) -> SaslListener:
    """The SASL of a listener. Raises MechanismError."""
    names = value(listener, "sasl.enabled.mechanisms", "")
    if not names:
        raise MechanismError(f"sasl.enabled.mechanisms is empty, and listener {listener} asks for SASL")
    return SaslListener(
        {name: make_mechanism(name, value_of_mechanism(listener, name, value), sources) for name in names},
        {name: value(listener, "connections.max.reauth.ms", name) for name in names},
        value(listener, "connection.failed.authentication.delay.ms", ""),
        broker_mechanism,
    )


def value_of_mechanism(listener: str, mechanism: str, value: ValueForListener) -> ValueOf:
    """The values of keys for one mechanism of a listener."""
    return lambda key: value(listener, key, mechanism)


def make_mechanism(name: str, value_of: ValueOf, sources: Sources) -> Mechanism:
    """The server's side of a mechanism. Raises MechanismError."""
    if name not in jaas.LOGIN_MODULES:
        raise MechanismError(f"sasl.enabled.mechanisms: {name} is not one of {', '.join(jaas.LOGIN_MODULES)}")
    if name == kerberos.MECHANISM:
        return _make_kerberos(value_of, sources)
    if name == oauthbearer.MECHANISM:
        return _make_oauthbearer(value_of, sources)
    if value_of(_HANDLER) not in (None, _PLAIN_HANDLER if name == plain.MECHANISM else None):
        raise MechanismError(f"{_HANDLER} for {name} names a Java class, which cannot be loaded")
    if name == plain.MECHANISM:
        return plain.Plain(plain.users_of(options_of(name, value_of, is_required=True)))
    return _make_scram(name, value_of, sources)


def options_of(name: str, value_of: ValueOf, *, is_required: bool = False) -> Mapping[str, str]:
    """The options of the mechanism's JAAS line; none without a line. Raises MechanismError."""
    line = value_of(JAAS_KEY)
    if line is None:
        if is_required:
            raise MechanismError(
                f"listener.name.NAME.{name.lower()}.{JAAS_KEY} is not set: {name} needs a line of its login module"
            )
        return {}
    try:
        return jaas.parse_for(name, line).options
    except jaas.JaasError as error:
        raise MechanismError(f"{JAAS_KEY} for {name}: {error}") from error


def _make_kerberos(value_of: ValueOf, sources: Sources) -> Mechanism:
    """GSSAPI, with the principal and the key table of its JAAS line. Kerberos itself is not asked before the start."""
    package = gssapi_package(sources.find_gssapi)
    options = options_of(kerberos.MECHANISM, value_of, is_required=True)
    if value_of(_HANDLER) is not None:
        raise MechanismError(f"{_HANDLER} for GSSAPI names a Java class, which cannot be loaded")
    for option in ("useKeyTab", "storeKey"):
        if options.get(option, "").lower() != "true":
            raise MechanismError(f"{JAAS_KEY} for GSSAPI needs {option}=true: the keys of a broker are in a key table")
    principal = options.get("principal", "")
    if principal in ("", "*"):
        raise MechanismError(f'{JAAS_KEY} for GSSAPI has no principal="SERVICE/HOST@REALM": that of this broker')
    check_service_name(options.get("serviceName"), value_of(SERVICE_NAME))
    rules = value_of(kerberos_names.KEY)
    try:
        kerberos_names.ShortNamer("", rules)
    except kerberos_names.RuleError as error:
        raise MechanismError(f"{kerberos_names.KEY}: {error}") from error
    library = kerberos.SystemLibrary(package, principal, options.get("keyTab"))
    return kerberos.Kerberos(library, lambda realm: kerberos_names.ShortNamer(realm, rules), sources.threads)


def gssapi_package(find: Callable[[], Any]) -> Any:
    """The package gssapi. Raises MechanismError."""
    try:
        return find()
    except ImportError as error:
        raise MechanismError(
            "sasl.enabled.mechanisms: GSSAPI (Kerberos), Kafka's default, needs the Python package gssapi:"
            " pip install 'barnabas[kerberos]' (on Debian after apt-get install gcc python3-dev libkrb5-dev); or name"
            f" other mechanisms, for example SCRAM-SHA-512 ({error})"
        ) from error


def check_service_name(in_line: str | None, in_key: str | None) -> str:
    """The name by which brokers name each other to Kerberos. It must be set once, or twice as the same, as Kafka
    requires it (KerberosLogin.getServiceName). Raises MechanismError."""
    if not in_line and not in_key:
        raise MechanismError(f"{SERVICE_NAME} is not set: it is the first component of the brokers' principals")
    if in_line and in_key and in_line != in_key:
        raise MechanismError(f"{SERVICE_NAME} is {in_key}, and serviceName in {JAAS_KEY} for GSSAPI is {in_line}")
    return in_line or in_key or ""


def _make_scram(name: str, value_of: ValueOf, sources: Sources) -> Mechanism:
    from barnabas.broker.security.sasl.scram import Found, Scram

    options_of(name, value_of)  # a line is checked; unlike in Kafka, none is needed

    def look_up(user: str, is_token: bool) -> Found | Awaitable[Found | None] | None:
        if is_token:
            return None if sources.find_token is None else sources.find_token(name, user)
        text = sources.scram_text(name, user)
        if text is None:
            return None
        try:
            return Found(Credential.from_text(text), Identity(user))
        except ValueError:
            return None  # like a user who does not exist; DescribeUserScramCredentials shows the error

    return Scram(name, look_up, sources.random_bytes(32), sources.random_bytes)


def _make_oauthbearer(value_of: ValueOf, sources: Sources) -> Mechanism:
    """OAUTHBEARER, with the validator of the callback handler's class; without a class, Kafka validates unsecured
    tokens, and so does a broker without a URL of keys. With one it validates signed tokens only."""
    options = options_of(oauthbearer.MECHANISM, value_of)
    handler, url = value_of(_HANDLER), value_of("sasl.oauthbearer.jwks.endpoint.url")
    if handler not in (None, *_VALIDATORS, _UNSECURED_VALIDATOR):
        raise MechanismError(f"{_HANDLER} for OAUTHBEARER names a Java class, which cannot be loaded")
    if handler in _VALIDATORS and not url:
        raise MechanismError("sasl.oauthbearer.jwks.endpoint.url is not set: OAUTHBEARER needs the issuer's keys")
    if handler == _UNSECURED_VALIDATOR or not url:
        if value_of(JAAS_KEY) is None:
            raise MechanismError(
                "OAUTHBEARER needs sasl.oauthbearer.jwks.endpoint.url for signed tokens, or, for development, the line"
                f" of OAuthBearerLoginModule in listener.name.NAME.oauthbearer.{JAAS_KEY}, with which unsecured tokens"
                " are accepted"
            )
        from barnabas.broker.security.sasl.unsecured_jwt import UnsecuredJwtValidator

        try:
            return oauthbearer.OAuthBearer(UnsecuredJwtValidator(options, sources.clock).validate)
        except ValueError as error:
            raise MechanismError(f"{JAAS_KEY} for OAUTHBEARER: {error}") from error
    refuse_tls_options(options)
    return _make_secured(url, value_of, sources)


def refuse_tls_options(options: Mapping[str, str]) -> None:
    """Refuse the options by which Kafka's connections to an issuer have key stores of their own. Raises
    MechanismError."""
    if any(option.startswith("ssl.") for option in options):
        raise MechanismError(
            f"{JAAS_KEY} for OAUTHBEARER: the options ssl. have no effect; the certificates of this machine, or of the"
            " file in the variable SSL_CERT_FILE, are trusted"
        )


def _make_secured(url: str, value_of: ValueOf, sources: Sources) -> Mechanism:
    from barnabas.broker.security.sasl.jwks import Jwks
    from barnabas.broker.security.sasl.jwt import Claims, JwtValidator

    prefix = "sasl.oauthbearer"
    try:
        keys = Jwks(
            url,
            value_of(f"{prefix}.jwks.endpoint.refresh.ms"),
            value_of(f"{prefix}.jwks.endpoint.retry.backoff.ms"),
            value_of(f"{prefix}.jwks.endpoint.retry.backoff.max.ms"),
            sources.threads,
            sources.clock,
        )
    except ValueError as error:
        raise MechanismError(f"{prefix}.jwks.endpoint.url: {error}") from error
    claims = Claims(
        frozenset(value_of(f"{prefix}.expected.audience")),
        value_of(f"{prefix}.expected.issuer"),
        value_of(f"{prefix}.clock.skew.seconds"),
        value_of(f"{prefix}.scope.claim.name"),
        value_of(f"{prefix}.sub.claim.name"),
    )
    return oauthbearer.OAuthBearer(JwtValidator(keys, claims, sources.clock).validate)
