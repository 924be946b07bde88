"""How a broker logs in to others: the configurations of OAUTHBEARER, and what is refused."""

from pathlib import Path
from typing import Final

import pytest

from barnabas.broker.configuration.config import load
from barnabas.broker.security.sasl import jaas
from barnabas.broker.security.sasl.making import MechanismError
from barnabas.broker.security.sasl.making_clients import ClientSources, make_client
from barnabas.broker.security.sasl.mechanism import RenewedMechanism
from barnabas.broker.security.sasl.token_endpoint import TokenUnavailable, UnsecuredTokens
from barnabas.clock import ManualClock
from barnabas.threads import OneThread

pytestmark = pytest.mark.anyio

UNSECURED: Final = {"unsecuredLoginStringClaim_sub": "brokers"}
URL: Final = "sasl.oauthbearer.token.endpoint.url"
HANDLER: Final = "sasl.login.callback.handler.class"
CLASSES: Final = "org.apache.kafka.common.security.oauthbearer"
WITH_URL: Final = f"{CLASSES}.OAuthBearerLoginCallbackHandler"
WITHOUT: Final = f"{CLASSES}.internals.unsecured.OAuthBearerUnsecuredLoginCallbackHandler"
CLIENT: Final = "sasl.oauthbearer.client.credentials.client"


def client(options: dict[str, str], **keys: str) -> RenewedMechanism:
    """The mechanism of a broker with these options in its line, and keys with underscores for dots."""
    config = load(
        options={
            "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
            "sasl.jaas.config": jaas.LoginModule(jaas.OAUTHBEARER_LOGIN_MODULE, options=options).line(),
            **{key.replace("_", "."): value for key, value in keys.items()},
        }
    )
    made = make_client("SASL_PLAINTEXT", config.value_for_listener, ClientSources(ManualClock(0), OneThread(), bytes))
    assert isinstance(made, RenewedMechanism)
    return made


async def first_message(made: RenewedMechanism) -> bytes:
    await made.prepare()
    message: bytes = made.start().first()  # type: ignore[attr-defined]
    return message


async def test_unsecured_tokens() -> None:
    """Without a URL, or with the class of the handler that makes them."""
    token = UnsecuredTokens(UNSECURED, ManualClock(0)).make().encode()
    for keys in ({}, {HANDLER: WITHOUT}, {HANDLER: WITHOUT, URL: "http://127.0.0.1:1/token"}):
        assert await first_message(client(UNSECURED, **keys)) == b"n,,\1auth=Bearer " + token + b"\1\1"


async def test_extensions() -> None:
    """They follow the token (KIP-342)."""
    message = await first_message(client({**UNSECURED, "unsecuredLoginExtension_traceId": "5"}))
    assert message.endswith(b"\1traceId=5\1\1")


async def test_a_token_in_a_file(tmp_path: Path) -> None:
    """With a URL that begins with file:, whichever of Kafka's classes is named."""
    path = tmp_path / "token"
    path.write_text(UnsecuredTokens(UNSECURED, ManualClock(0)).make())
    for keys in (
        {},
        {HANDLER: WITH_URL},
        {"sasl.oauthbearer.jwt.retriever.class": f"{CLASSES}.FileJwtRetriever"},
    ):
        message = await first_message(client({"extension_x": "y"}, **{URL: path.as_uri(), **keys}))
        assert message.split(b"\1")[1:] == [b"auth=Bearer " + path.read_bytes(), b"x=y", b"", b""]


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ({"clientId": "a", "clientSecret": "b", "scope": "c"}, {}),
        ({}, {f"{CLIENT}.id": "a", f"{CLIENT}.secret": "b", "sasl.oauthbearer.scope": "c"}),
        ({"clientId": "a"}, {f"{CLIENT}.secret": "b", "sasl.login.connect.timeout.ms": "5000"}),
    ],
)
async def test_client_credentials(options: dict[str, str], keys: dict[str, str]) -> None:
    """The client is named by the keys or by the line."""
    with pytest.raises(TokenUnavailable, match="refused"):
        await client(options, **{URL: "http://127.0.0.1:1/token", **keys}).prepare()


@pytest.mark.parametrize(
    ("options", "keys", "told"),
    [
        ({}, {}, "unsecuredLoginStringClaim_sub is not set"),
        ({}, {HANDLER: WITH_URL}, "sasl.oauthbearer.token.endpoint.url is not set"),
        ({}, {URL: "ftp://x"}, "not a URL that begins with"),
        ({"clientId": "a"}, {URL: "http://x/"}, r"client\.credentials\.client\.id and \.secret are not set"),
        ({"clientId": "a", "clientSecret": "b", "ssl.truststore.location": "/x"}, {URL: "https://x/"}, "SSL_CERT_FILE"),
        (
            {},
            {URL: "http://x/", "sasl.oauthbearer.jwt.retriever.class": f"{CLASSES}.FileJwtRetriever"},
            "FileJwtRetriever gets no tokens",
        ),
        (
            {},
            {URL: "file:///x", "sasl.oauthbearer.jwt.retriever.class": f"{CLASSES}.ClientCredentialsJwtRetriever"},
            "ClientCredentialsJwtRetriever gets no tokens",
        ),
        ({**UNSECURED, "unsecuredLoginExtension_auth": "x"}, {}, "no extension"),
        ({**UNSECURED, "unsecuredLoginExtension_a1": "x"}, {}, "no extension"),
        ({**UNSECURED, "unsecuredLoginExtension_a": "\u00fc"}, {}, "no extension"),
    ],
)
def test_refused_configurations(options: dict[str, str], keys: dict[str, str], told: str) -> None:
    with pytest.raises(MechanismError, match=told) as refused:
        client(options, **keys)
    assert "\n" not in str(refused.value)
