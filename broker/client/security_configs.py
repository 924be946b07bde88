"""How a client connects, in the words of other clients: Kafka's for Java, and librdkafka's.

Certificates and keys are in the values, as PEM, and not in files: the processes of a Spark cluster, which get these
settings, run on other machines.
"""

from __future__ import annotations

from typing import Final

from barnabas.broker.client.errors import ClientError
from barnabas.broker.client.security import OAUTHBEARER, PLAIN, SCRAM_SHA_512, Security, Tls, TokenLogin, UserLogin
from barnabas.broker.security.sasl.jaas import LoginModule
from barnabas.broker.security.tls import stores
from barnabas.broker.security.tls.stores import StoreError

_MODULES: Final = "org.apache.kafka.common.security"
_PKCS8: Final = ("PRIVATE KEY", "ENCRYPTED PRIVATE KEY")
"""The forms of a private key that Java reads."""


def java_config(security: Security) -> dict[str, str]:
    """The properties of Kafka's clients for Java; empty for PLAINTEXT. Without a mechanism it is SCRAM-SHA-512.

    Errors: ClientError for a private key that cannot be read.
    """
    config = _protocol(security)
    tls, login = security.tls, security.login
    if tls is not None:
        config |= _java_tls(tls)
    if isinstance(login, UserLogin):
        mechanism = login.mechanism or SCRAM_SHA_512
        module = "plain.PlainLoginModule" if mechanism == PLAIN else "scram.ScramLoginModule"
        config["sasl.mechanism"] = mechanism
        config["sasl.jaas.config"] = _jaas(module, {"username": login.username, "password": login.password})
    elif isinstance(login, TokenLogin):
        config |= _java_token(login)
    return config


def librdkafka_config(security: Security) -> dict[str, str]:
    """The same for librdkafka."""
    config = _protocol(security)
    tls, login = security.tls, security.login
    if tls is not None:
        config |= _present(
            {
                "ssl.ca.pem": tls.trusted.decode(),
                "ssl.certificate.pem": tls.chain.decode(),
                "ssl.key.pem": tls.key.decode(),
                "ssl.key.password": tls.key_password,
            }
        )
        if not tls.checks_host_name:
            config["ssl.endpoint.identification.algorithm"] = "none"
        if not tls.checks_certificate:
            config["enable.ssl.certificate.verification"] = "false"
    if isinstance(login, UserLogin):
        config["sasl.mechanisms"] = login.mechanism or SCRAM_SHA_512
        config |= {"sasl.username": login.username, "sasl.password": login.password}
    elif isinstance(login, TokenLogin):
        config |= _librdkafka_token(login)
    return config


def _protocol(security: Security) -> dict[str, str]:
    encryption = "PLAINTEXT" if security.tls is None else "SSL"
    name = encryption if security.login is None else f"SASL_{encryption}"
    return {} if name == "PLAINTEXT" else {"security.protocol": name}


def _present(values: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in values.items() if value}


def _java_tls(tls: Tls) -> dict[str, str]:
    config: dict[str, str] = {}
    if tls.trusted:
        config |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": tls.trusted.decode()}
    if tls.chain:
        config |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": tls.chain.decode(),
            **_present(_java_key(tls)),
        }
    if not tls.checks_host_name:
        config["ssl.endpoint.identification.algorithm"] = ""
    return config


def _java_key(tls: Tls) -> dict[str, str]:
    """The private key in a form that Java reads. Errors: ClientError."""
    try:
        entry = stores.private_key_in(tls.key)
        pem = entry.pem
    except (StoreError, ValueError) as error:
        raise ClientError("the client's certificate has no private key") from error
    if entry.label in _PKCS8:
        return {"ssl.keystore.key": pem.decode(), "ssl.key.password": tls.key_password}
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        load_pem_private_key,
    )

    try:
        key = load_pem_private_key(pem, tls.key_password.encode() or None)
    except (ValueError, TypeError) as error:
        raise ClientError("the private key cannot be read: it is damaged, or needs another password") from error
    return {"ssl.keystore.key": key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()}


def _jaas(module: str, options: dict[str, str]) -> str:
    return LoginModule(f"{_MODULES}.{module}", "required", options).line()


def _java_token(login: TokenLogin) -> dict[str, str]:
    module = "oauthbearer.OAuthBearerLoginModule"
    config = {"sasl.mechanism": OAUTHBEARER}
    extensions = {f"extension_{name}": value for name, value in login.extensions}
    if not login.endpoint_url:
        options = {"unsecuredLoginStringClaim_sub": login.unsecured_subject} | extensions
        return config | {"sasl.jaas.config": _jaas(module, options)}
    options = {"clientId": login.client_id, "clientSecret": login.client_secret, "scope": login.scope}
    return config | {
        "sasl.jaas.config": _jaas(module, _present(options) | extensions),
        "sasl.login.callback.handler.class": f"{_MODULES}.oauthbearer.OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.token.endpoint.url": login.endpoint_url,
    }


def _librdkafka_token(login: TokenLogin) -> dict[str, str]:
    config = {"sasl.mechanisms": OAUTHBEARER}
    extensions = ",".join(f"{name}={value}" for name, value in login.extensions)
    if not login.endpoint_url:
        subject = f"principal={login.unsecured_subject}"
        return config | {"enable.sasl.oauthbearer.unsecure.jwt": "true", "sasl.oauthbearer.config": subject}
    return config | _present(
        {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": login.endpoint_url,
            "sasl.oauthbearer.client.id": login.client_id,
            "sasl.oauthbearer.client.secret": login.client_secret,
            "sasl.oauthbearer.scope": login.scope,
            "sasl.oauthbearer.extensions": extensions,
        }
    )
