"""Users with passwords for SCRAM, which the cluster keeps: APIs 50 and 51 (KIP-554). Brokers receive a salted password,
never the password itself."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from typing import Final

from barnabas.broker.client.client import KafkaClient
from barnabas.broker.client.errors import ClientError, check
from barnabas.broker.security.sasl.scram_credentials import MECHANISMS, salted_password
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from barnabas.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)

_NAMES: Final = {mechanism.type: name for name, mechanism in MECHANISMS.items()}

ITERATIONS: Final = 8192
"""Brokers accept 4096 to 16384."""
PASSWORD_BYTES: Final = 18
SALT_BYTES: Final = 24

Iterations = dict[str, int]
"""The iterations of a user's password, by mechanism."""


def new_password() -> str:
    """A random password of 24 letters, digits, - and _, which needs no quotes anywhere, and is not taken for an
    option."""
    while True:
        password = base64.urlsafe_b64encode(os.urandom(PASSWORD_BYTES)).decode()
        if not password.startswith("-"):
            return password


async def describe_users(client: KafkaClient, names: Sequence[str] | None = None) -> dict[str, Iterations]:
    """The users of these names that have a password for SCRAM, or all. Errors: ClientError."""
    users = None if names is None else [UserName(name=name) for name in names]
    response: DescribeUserScramCredentialsResponse = await client.send(DescribeUserScramCredentialsRequest(users=users))
    check(response.error_code, "cannot list the users", response.error_message)
    found = {}
    for result in response.results:
        if result.error_code != ErrorCode.RESOURCE_NOT_FOUND:
            check(result.error_code, f"cannot look up user {result.user}", result.error_message)
            found[result.user] = {
                _NAMES.get(each.mechanism, str(each.mechanism)): each.iterations for each in result.credential_infos
            }
    return found


async def set_password(client: KafkaClient, name: str, password: str, mechanisms: Sequence[str]) -> None:
    """Give a user this password for some mechanisms; a new one, if the user has none. Errors: ClientError.

    Kafka refuses a request that names a user twice, so there is one for each mechanism.
    """
    if not password:
        raise ClientError(f"cannot set the password of {name}: it is empty")
    for mechanism in mechanisms:
        salt = os.urandom(SALT_BYTES)
        found = MECHANISMS[mechanism]
        salted = salted_password(found.name, password, salt, ITERATIONS)
        upsertion = ScramCredentialUpsertion(
            name=name, mechanism=found.type, iterations=ITERATIONS, salt=salt, salted_password=salted
        )
        request = AlterUserScramCredentialsRequest(upsertions=[upsertion])
        await _alter(client, request, f"cannot set the password of {name} for {mechanism}")


async def remove_password(client: KafkaClient, name: str, mechanisms: Sequence[str]) -> None:
    """Delete a user's passwords for some mechanisms. Errors: ClientError."""
    for mechanism in mechanisms:
        deletion = ScramCredentialDeletion(name=name, mechanism=MECHANISMS[mechanism].type)
        request = AlterUserScramCredentialsRequest(deletions=[deletion])
        await _alter(client, request, f"cannot remove the password of {name} for {mechanism}")


async def _alter(client: KafkaClient, request: AlterUserScramCredentialsRequest, what: str) -> None:
    response: AlterUserScramCredentialsResponse = await client.send_to_controller(request)
    for result in response.results:
        check(result.error_code, what, result.error_message)
