"""AlterUserScramCredentials and DescribeUserScramCredentials: what is kept, and what is refused."""

from pathlib import Path
from typing import Any, Final

import pytest

from barnabas.broker.security.sasl.plain import Credentials
from barnabas.broker.security.sasl.scram import Client
from barnabas.broker.security.sasl.scram_credentials import Credential, salted_password
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from barnabas.wire.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest, UserName
from tests.broker.running import running
from tests.broker.sasl_clients import Wire, sasl_listener, wire

SHA_256: Final = 1
SHA_512: Final = 2
TWO_LISTENERS: Final = {
    **sasl_listener("SCRAM-SHA-256,SCRAM-SHA-512"),
    "listeners": "CLIENTS://127.0.0.1:0,OPEN://127.0.0.1:0",
    "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT,OPEN:PLAINTEXT",
    "inter.broker.listener.name": "OPEN",
    "connection.failed.authentication.delay.ms": "0",
}

pytestmark = pytest.mark.anyio


def upsertion(name: str, mechanism: int = SHA_256, iterations: int = 4096, **fields: bytes) -> Any:
    return ScramCredentialUpsertion(
        name=name, mechanism=mechanism, iterations=iterations, **{"salt": b"salt", "salted_password": b"x", **fields}
    )


def deletion(name: str, mechanism: int = SHA_256) -> Any:
    return ScramCredentialDeletion(name=name, mechanism=mechanism)


async def alter(client: Wire, *changes: Any) -> dict[str, int]:
    request = AlterUserScramCredentialsRequest(
        upsertions=[each for each in changes if isinstance(each, ScramCredentialUpsertion)],
        deletions=[each for each in changes if isinstance(each, ScramCredentialDeletion)],
    )
    return {result.user: result.error_code for result in (await client.ask(request, 0)).results}


async def described(client: Wire, *names: str) -> dict[str, Any]:
    users = [UserName(name=name) for name in names] or None
    answer = await client.ask(DescribeUserScramCredentialsRequest(users=users), 0)
    assert answer.error_code == 0
    return {
        each.user: each.error_code or {info.mechanism: info.iterations for info in each.credential_infos}
        for each in answer.results
    }


async def test_credentials_count_for_logins(tmp_path: Path) -> None:
    """From the salted password, as clients send it, to a login; and no more after the deletion."""
    user = "a/lice, ~é*"
    async with running(tmp_path, **TWO_LISTENERS) as broker, wire(broker, "OPEN") as admin:
        for mechanism, hash_name, number in (
            ("SCRAM-SHA-256", "sha256", SHA_256),
            ("SCRAM-SHA-512", "sha512", SHA_512),
        ):
            salted = salted_password(hash_name, "secret", b"salt", 8192)
            change = upsertion(user, number, 8192, salted_password=salted)
            assert await alter(admin, change) == {user: 0}
            login = Client(mechanism, Credentials(user, "secret"), bytes)
            async with wire(broker) as client:
                assert (await client.log_in(login)).error_code == 0
            assert await alter(admin, deletion(user, number)) == {user: 0}
            async with wire(broker) as client:
                assert (await client.log_in(login)).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


async def test_znodes(tmp_path: Path) -> None:
    """The text is Kafka's, beside the user's quotas, under the sanitized name."""
    async with running(tmp_path) as broker, wire(broker, "PLAINTEXT") as client:
        await broker.configs.change("users", "a%2Fb%2A", lambda _: {"producer_byte_rate": "5"})
        await alter(client, upsertion("a/b*"))
        overrides = broker.configs.overrides("users", "a%2Fb%2A")
        assert overrides["producer_byte_rate"] == "5"
        text = Credential.of_salted_password("SCRAM-SHA-256", b"x", b"salt", 4096).to_text()
        assert overrides["SCRAM-SHA-256"] == text
        assert await described(client) == {"a/b*": {SHA_256: 4096}}


async def test_describe(tmp_path: Path) -> None:
    """All users with credentials, or the named ones, with an error for each that is not well named."""
    async with running(tmp_path) as broker, wire(broker, "PLAINTEXT") as client:
        await alter(client, upsertion("b", SHA_512, 16384), upsertion("b"), upsertion("a"), upsertion("damaged"))
        await broker.configs.change("users", "quota", lambda _: {"producer_byte_rate": "5"})
        await broker.configs.change("users", "quota/clients/app", lambda _: {"producer_byte_rate": "5"})
        await broker.configs.change("users", "damaged", lambda _: {"SCRAM-SHA-256": "x"})
        everybody = {"a": {SHA_256: 4096}, "b": {SHA_256: 4096, SHA_512: 16384}, "damaged": -1}
        assert await described(client) == everybody
        assert await described(client, "b", "quota", "", "a", "a") == {
            "b": {SHA_256: 4096, SHA_512: 16384},
            "quota": ErrorCode.RESOURCE_NOT_FOUND,
            "": ErrorCode.RESOURCE_NOT_FOUND,
            "a": ErrorCode.DUPLICATE_RESOURCE,
        }


async def test_refused_changes(tmp_path: Path) -> None:
    """Each user succeeds or fails with all of its changes."""
    async with running(tmp_path) as broker, wire(broker, "PLAINTEXT") as client:
        assert await alter(
            client,
            upsertion(""),
            upsertion("few", iterations=4095),
            upsertion("many", iterations=16385),
            upsertion("unknown", 3),
            deletion("zero", 0),
            upsertion("twice"),
            deletion("twice"),
            deletion("nobody"),
            upsertion("half"),
            deletion("half", SHA_512),
            upsertion("good"),
        ) == {
            "": ErrorCode.UNACCEPTABLE_CREDENTIAL,
            "few": ErrorCode.UNACCEPTABLE_CREDENTIAL,
            "many": ErrorCode.UNACCEPTABLE_CREDENTIAL,
            "unknown": ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            "zero": ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            "twice": ErrorCode.DUPLICATE_RESOURCE,
            "nobody": ErrorCode.RESOURCE_NOT_FOUND,
            "half": ErrorCode.RESOURCE_NOT_FOUND,
            "good": 0,
        }
        assert await described(client) == {"good": {SHA_256: 4096}}
        big = upsertion("big", salt=bytes(600_000))
        assert await alter(client, big) == {"big": ErrorCode.POLICY_VIOLATION}
