"""How a broker logs in to others, made from its configuration: by `sasl.mechanism.inter.broker.protocol`, with the
credentials of its JAAS line, or with tokens of an issuer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from barnabas.broker.security.sasl import jaas, kerberos, oauthbearer, plain
from barnabas.broker.security.sasl.making import (
    JAAS_KEY,
    SERVICE_NAME,
    MechanismError,
    Sources,
    ValueForListener,
    ValueOf,
    check_service_name,
    gssapi_package,
    make_listener,
    options_of,
    refuse_tls_options,
    value_of_mechanism,
)
from barnabas.broker.security.sasl.mechanism import ClientMechanism
from barnabas.broker.security.sasl.plain import Credentials
from barnabas.clock import Clock
from barnabas.threads import Threads

_OAUTH: Final = "sasl.oauthbearer"
_URL: Final = f"{_OAUTH}.token.endpoint.url"
_CLIENT: Final = f"{_OAUTH}.client.credentials.client"
_HANDLER: Final = "sasl.login.callback.handler.class"
_UNSECURED_HANDLER: Final = "OAuthBearerUnsecuredLoginCallbackHandler"
_EXTENSION: Final = re.compile(r"([A-Za-z]+)=([\x21-\x7e \t\r\n]+)")


class ClientSources(NamedTuple):
    """What the mechanisms of clients need besides their configuration."""

    clock: Clock
    threads: Threads
    random_bytes: Callable[[int], bytes]
    find_gssapi: Callable[[], Any] = kerberos.find_package


def problems(listeners: Iterable[str], brokers_listener: str | None, value: ValueForListener) -> Iterator[str]:
    """What is wrong with the SASL of these listeners, and with that by which this broker logs in to others on
    `brokers_listener`, if it does."""
    nothing: Any = None  # no mechanism uses its sources before a login
    for listener in listeners:
        try:
            make_listener(listener, value, Sources(nothing, nothing, bytes, nothing))
            if listener == brokers_listener:
                make_client(listener, value, ClientSources(nothing, nothing, bytes))
        except MechanismError as error:
            yield str(error)


def make_client(listener: str, value: ValueForListener, sources: ClientSources) -> ClientMechanism:
    """How brokers log in to others on their listener. Raises MechanismError."""
    name = value(listener, "sasl.mechanism.inter.broker.protocol", "")
    if name not in jaas.LOGIN_MODULES:
        raise MechanismError(
            f"sasl.mechanism.inter.broker.protocol: {name} is not one of {', '.join(jaas.LOGIN_MODULES)}"
        )
    if name not in value(listener, "sasl.enabled.mechanisms", ""):
        raise MechanismError(f"sasl.mechanism.inter.broker.protocol: {name} is not one of sasl.enabled.mechanisms")
    value_of = value_of_mechanism(listener, name, value)
    options = options_of(name, value_of, is_required=name != oauthbearer.MECHANISM)
    if name == oauthbearer.MECHANISM:
        return _make_oauthbearer(value_of, options, sources)
    if name == kerberos.MECHANISM:
        return _make_kerberos(value_of, options, sources)
    if not options.get("username") or not options.get("password"):
        raise MechanismError(
            f"{JAAS_KEY} for {name} has no username and password, with which this broker logs in to others"
        )
    credentials = Credentials(options["username"], options["password"])
    if name == plain.MECHANISM:
        return plain.Client(credentials)
    from barnabas.broker.security.sasl.scram import Client

    return Client(name, credentials, sources.random_bytes, is_token=options.get("tokenauth", "").lower() == "true")


def _make_kerberos(value_of: ValueOf, options: Mapping[str, str], sources: ClientSources) -> ClientMechanism:
    """With the principal and the key table by which the broker is logged in to."""
    from barnabas.broker.security.sasl.kerberos_client import Client, SystemClientLibrary

    package = gssapi_package(sources.find_gssapi)
    principal, key_table = options.get("principal", ""), options.get("keyTab", "")
    if not principal or not key_table:
        raise MechanismError(
            f"{JAAS_KEY} for GSSAPI has no principal and keyTab, with which this broker logs in to others"
        )
    service = check_service_name(options.get("serviceName"), value_of(SERVICE_NAME))
    return Client(SystemClientLibrary(package, principal, key_table), service)


def _make_oauthbearer(value_of: ValueOf, options: Mapping[str, str], sources: ClientSources) -> ClientMechanism:
    """With tokens of the endpoint, if there is its URL and no other callback handler; else with unsecured ones."""
    from barnabas.broker.security.sasl.token_keeper import RefreshSettings, TokenKeeper

    handler, url = value_of(_HANDLER) or "", value_of(_URL)
    if handler.endswith(f".{_UNSECURED_HANDLER}") or not (handler or url):
        retrieve, prefix = _unsecured(options, sources.clock), "unsecuredLoginExtension_"
    elif not url:
        raise MechanismError(f"{_URL} is not set: {_HANDLER} gets this broker's tokens there")
    else:
        retrieve, prefix = _endpoint(url, value_of, options, sources.clock), "extension_"
    settings = RefreshSettings(
        value_of("sasl.login.refresh.window.factor"),
        value_of("sasl.login.refresh.window.jitter"),
        value_of("sasl.login.refresh.min.period.seconds"),
        value_of("sasl.login.refresh.buffer.seconds"),
        value_of("sasl.login.retry.backoff.ms"),
        value_of("sasl.login.retry.backoff.max.ms"),
    )
    random_bytes = sources.random_bytes
    keeper = TokenKeeper(
        retrieve, settings, sources.threads, sources.clock, lambda: int.from_bytes(random_bytes(4), "big") / 2**32
    )
    return oauthbearer.Client(keeper.token, keeper.prepare, _extensions(options, prefix))


def _unsecured(options: Mapping[str, str], clock: Clock) -> Callable[[], str]:
    from barnabas.broker.security.sasl.token_endpoint import UnsecuredTokens

    try:
        return UnsecuredTokens(options, clock).make
    except ValueError as error:
        raise MechanismError(
            f"{JAAS_KEY} for OAUTHBEARER: {error} (without {_URL}, unsecured tokens are made of the line)"
        ) from error


def _endpoint(url: str, value_of: ValueOf, options: Mapping[str, str], clock: Clock) -> Callable[[], str]:
    """Tokens of a file, or of the endpoint, for the client of the keys or else of the JAAS line."""
    from barnabas.broker.security.sasl.token_endpoint import ClientCredentials, retrieve
    from barnabas.broker.security.sasl.urls import FETCH_TIMEOUT_S, check_url

    try:
        check_url(url)
    except ValueError as error:
        raise MechanismError(f"{_URL}: {error}") from error
    is_file = urlsplit(url).scheme == "file"
    retriever = value_of(f"{_OAUTH}.jwt.retriever.class").rpartition(".")[2]
    if retriever == ("ClientCredentialsJwtRetriever" if is_file else "FileJwtRetriever"):
        raise MechanismError(f"{_OAUTH}.jwt.retriever.class: {retriever} gets no tokens from {_URL}")
    if is_file:
        return partial(retrieve, url, None, clock)
    client_id = value_of(f"{_CLIENT}.id") or options.get("clientId", "").strip()
    client_secret = value_of(f"{_CLIENT}.secret") or options.get("clientSecret", "").strip()
    if not client_id or not client_secret:
        raise MechanismError(
            f"{_CLIENT}.id and .secret are not set, nor clientId and clientSecret in {JAAS_KEY}: {_URL} wants to know"
            " them"
        )
    scope = value_of(f"{_OAUTH}.scope") or options.get("scope", "").strip()
    refuse_tls_options(options)
    credentials = ClientCredentials(client_id, client_secret, scope)
    timeouts_s = [
        FETCH_TIMEOUT_S if timeout_ms is None else timeout_ms / 1000
        for timeout_ms in map(value_of, ("sasl.login.connect.timeout.ms", "sasl.login.read.timeout.ms"))
    ]
    return partial(retrieve, url, credentials, clock, *timeouts_s)


def _extensions(options: Mapping[str, str], prefix: str) -> tuple[tuple[str, str], ...]:
    """The extensions of the client's message (KIP-342)."""
    found = {name.removeprefix(prefix): text for name, text in options.items() if name.startswith(prefix)}
    for name, text in found.items():
        if name == "auth" or _EXTENSION.fullmatch(f"{name}={text}") is None:
            raise MechanismError(f"{JAAS_KEY} for OAUTHBEARER: {prefix}{name} is no extension of RFC 7628")
    return tuple(found.items())
