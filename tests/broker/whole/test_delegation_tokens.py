"""Delegation tokens in a cluster of brokers: each broker knows those that another one has issued, renewed or removed,
also after lost sessions, and the controller removes expired ones."""

import sys
from base64 import b64encode
from pathlib import Path

import pytest

from barnabas.broker.security.delegation_tokens import DelegationTokens
from barnabas.broker.security.sasl.plain import Credentials
from barnabas.broker.security.sasl.scram import Client
from barnabas.broker.server import Broker
from tests.broker.sasl_clients import wire
from tests.broker.whole.cluster import cluster
from tools.processes import children
from tools.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

CONFIGS = {
    "delegation_token_secret_key": "the key of all brokers",
    "listeners": "PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:0",
    "listener_security_protocol_map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
    "inter_broker_listener_name": "PLAINTEXT",
    "sasl_enabled_mechanisms": "SCRAM-SHA-256",
}
ALICE = "User:alice"


def tokens_of(broker: Broker) -> DelegationTokens:
    tokens = broker.services.tokens
    assert tokens is not None
    return tokens


def known_to(broker: Broker) -> dict[str, int]:
    """The expiry of each token."""
    return {each.token_id: each.expiry_timestamp_ms for each in tokens_of(broker).repository.tokens.values()}


async def test_each_broker_knows_the_tokens_of_the_others(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2, **CONFIGS) as brokers:
        first, second = brokers.brokers[1], brokers.brokers[2]
        token = await tokens_of(first).create(ALICE, ALICE, [], -1)
        token_hmac = tokens_of(first).hmac_of(token.token_id)
        await until(lambda: token.token_id in known_to(second))
        credentials = Credentials(token.token_id, b64encode(token_hmac).decode())
        async with wire(second) as client:
            login = Client("SCRAM-SHA-256", credentials, bytes, is_token=True)
            assert (await client.log_in(login)).error_code == 0

        expiry_ms = await tokens_of(second).renew(ALICE, token_hmac, 60_000)
        await until(lambda: known_to(first) == {token.token_id: expiry_ms})

        await tokens_of(second).repository.stop()
        await tokens_of(first).expire(ALICE, token_hmac, -1)
        assert known_to(second) == {token.token_id: expiry_ms}, "it has not heard of it"
        await brokers.expire_session(2)
        await until(lambda: known_to(second) == {})


async def test_the_controller_removes_expired_tokens(tmp_path: Path) -> None:
    """A token of a broker that is not the controller."""
    async with cluster(tmp_path, 2, **CONFIGS, delegation_token_expiry_check_interval_ms="1") as brokers:
        (controller_id,) = brokers.controller_ids
        other = brokers.brokers[3 - controller_id]
        kept = await tokens_of(other).create(ALICE, ALICE, [], -1)
        await tokens_of(other).create(ALICE, ALICE, [], 1)
        await until(lambda: all(list(known_to(each)) == [kept.token_id] for each in brokers.brokers.values()))


def test_without_a_secret_key_there_is_nothing_in_memory() -> None:
    code = """
import sys
from barnabas.testing import Broker
with Broker() as broker:
    broker.create_topic("t").produce("x")
print(*sorted(name for name in sys.modules if name.startswith("barnabas.") and "token" in name))
"""
    done = children.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    kinds = ("create", "renew", "expire", "describe")
    assert set(done.stdout.split()) <= {
        # What clients are told of the APIs served.
        *(f"barnabas.broker.handlers.{kind}_delegation_token" for kind in kinds),
        *(f"barnabas.wire.messages.{kind}_delegation_token" for kind in kinds),
        "barnabas.broker.api.token_requests",
        "barnabas.controller.token_znodes",
    }
