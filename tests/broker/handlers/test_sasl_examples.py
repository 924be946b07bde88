"""The configurations of docs/security/sasl.md: each is accepted, and its users can log in."""

import json
import re
from base64 import b64encode
from pathlib import Path
from typing import Any, Final

import pytest
from joserfc import jwt
from joserfc.jwk import RSAKey

from barnabas.broker.configuration.config import BrokerConfig, load
from barnabas.broker.configuration.properties import parse_properties
from barnabas.broker.security.sasl import oauthbearer, plain
from barnabas.broker.security.sasl.kerberos_names import NoShortName, ShortNamer, parse
from barnabas.broker.security.sasl.making import Sources, make_listener
from barnabas.broker.security.sasl.mechanism import ClientMechanism
from barnabas.broker.security.sasl.plain import Credentials
from barnabas.broker.security.sasl.scram import Client
from barnabas.wire.messages.create_delegation_token import CreateDelegationTokenRequest
from tests.broker.running import running
from tests.broker.sasl_clients import add_scram_user, wire

PAGE: Final = (Path(__file__).parents[3] / "docs/security/sasl.md").read_text()
ALICE: Final = Credentials("alice", "alice-secret")

pytestmark = pytest.mark.anyio


def examples(title: str) -> list[dict[str, str]]:
    """The properties below a heading, by block."""
    section = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return [dict(parse_properties(block)) for block in re.findall(r"```properties\n(.*?)```", section, re.DOTALL)]


def on_free_ports(properties: dict[str, str]) -> dict[str, str]:
    """The same on free ports, by a name of the listener that `running` can pass on (it has dots for underscores)."""
    load(properties=properties)
    listeners = re.sub(r":\d+", ":0", properties["listeners"]).replace("SASL_PLAINTEXT:", "CLIENTS:")
    named = {key.replace("sasl_plaintext", "clients"): value for key, value in properties.items()}
    return {"listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT", **named, "listeners": listeners}


def token(key: RSAKey, now_s: int) -> str:
    claims = {"sub": "alice", "iss": "https://issuer.example", "aud": "kafka", "iat": now_s, "exp": now_s + 60}
    return jwt.encode({"alg": "RS256", "kid": "k"}, claims, key)


@pytest.mark.parametrize("title", ["PLAIN", "SCRAM-SHA-256, SCRAM-SHA-512", "OAUTHBEARER"])
async def test_examples(tmp_path: Path, title: str) -> None:
    """alice logs in by each mechanism."""
    [found] = examples(title)
    properties = on_free_ports(found)
    key = RSAKey.generate_key(2048, {"kid": "k"})
    keys = tmp_path / "jwks.json"
    keys.write_text(json.dumps({"keys": [key.as_dict(private=False)]}))
    if "sasl.oauthbearer.jwks.endpoint.url" in properties:
        properties["sasl.oauthbearer.jwks.endpoint.url"] = keys.as_uri()
    async with running(tmp_path / "data", **properties) as broker:
        await add_scram_user(broker, "alice", "alice-secret", "SCRAM-SHA-512")
        clients: dict[str, ClientMechanism] = {
            "PLAIN": plain.Client(ALICE),
            "SCRAM-SHA-512": Client("SCRAM-SHA-512", ALICE, bytes),
            "OAUTHBEARER": oauthbearer.Client(lambda: token(key, broker.clock.now_ms() // 1000)),
        }
        listener = next(each.name for each in broker.config.listeners if each.has_sasl)
        async with wire(broker, listener) as client:
            assert (await client.log_in(clients[properties["sasl.enabled.mechanisms"]])).error_code == 0


async def test_example_of_delegation_tokens(tmp_path: Path) -> None:
    """alice logs in and gets a token, with which somebody else logs in as alice."""
    properties = on_free_ports(examples("Delegation tokens")[0])
    line = 'tokenauth="true" username="TOKEN-ID" password="HMAC";'
    assert line in PAGE
    async with running(tmp_path, **properties) as broker:
        async with wire(broker) as client:
            assert (await client.log_in(plain.Client(ALICE))).error_code == 0
            token = await client.ask(CreateDelegationTokenRequest(max_lifetime_ms=-1), 3)
        credentials = Credentials(token.token_id, b64encode(bytes(token.hmac)).decode())
        async with wire(broker) as client:
            login = Client("SCRAM-SHA-512", credentials, bytes, is_token=True)
            assert (await client.log_in(login)).error_code == 0


def test_example_of_brokers() -> None:
    """The configurations of a broker among others, by SCRAM and with tokens of an issuer."""
    scram, tokens = examples("Among brokers")
    for properties in (scram, {**scram, **tokens}):
        assert load(properties=properties).inter_broker_listener_name == "BROKERS"


def test_example_of_kerberos() -> None:
    """The mechanism can be made, and the rules make the names that the page says; no Kerberos is asked."""
    nothing: Any = None
    [properties] = examples("GSSAPI (Kerberos)")
    config = BrokerConfig({}, raw=properties, sources={}, defaults=load().defaults, warnings=())
    sources = Sources(nothing, nothing, bytes, nothing, find_gssapi=lambda: nothing)
    assert make_listener("SASL_PLAINTEXT", config.value_for_listener, sources).names == ["GSSAPI"]
    rules: Any = config.value("sasl.kerberos.principal.to.local.rules")
    namer = ShortNamer("EXAMPLE.COM", rules)
    principals = ("alice@EXAMPLE.COM", "alice/admin@EXAMPLE.COM", "alice@PARTNER.EXAMPLE")
    assert {namer.short_name(parse(each)) for each in principals} == {"alice"}
    for other in ("alice@OTHER", "alice/admin@PARTNER.EXAMPLE"):
        with pytest.raises(NoShortName):
            namer.short_name(parse(other))
