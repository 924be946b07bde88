"""The first users of a broker that is secured from its first start (`serve --secure`): they have to be able to log in
before there is anybody who could add them.

They are added by requests of a client in the broker's process, as an administrator would, and only where they are
missing: a password that was changed, and a permission that was taken away, stay so. Where the file of passwords is lost
and made anew, its passwords count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from barnabas.broker.api.local import LocalClient
from barnabas.broker.security.operations import CLUSTER_NAME, Operation, ResourceType
from barnabas.broker.security.sasl.scram_credentials import MECHANISMS, Hash, salted_password
from barnabas.threads import Threads
from barnabas.timers import Timers, pause
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialUpsertion,
)
from barnabas.wire.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from barnabas.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)

ITERATIONS: Final = 8192
SALT_BYTES: Final = 24

_TRIES_MAX: Final = 200
_TRIES_INTERVAL_MS: Final = 50
_ALL: Final = 2
_ALLOW: Final = 3
_LITERAL: Final = 3
_CREATE_ACLS_VERSION: Final = 3

_OF_CLIENTS: Final = (
    (ResourceType.TOPIC, "*", _ALL),
    (ResourceType.GROUP, "*", _ALL),
    (ResourceType.TRANSACTIONAL_ID, "*", _ALL),
    (ResourceType.CLUSTER, CLUSTER_NAME, Operation.DESCRIBE),
    (ResourceType.CLUSTER, CLUSTER_NAME, Operation.IDEMPOTENT_WRITE),
)
"""All that concerns records, but not users, permissions and the cluster's settings."""


@dataclass(frozen=True, slots=True)
class FirstUser:
    """A user; one that `is_administrator` is a super user of the configuration, and gets no permissions here.
    `has_new_password` is whether the password was made for this start: a former one is lost, and does not count."""

    name: str
    password: str = field(repr=False)
    is_administrator: bool = False
    has_new_password: bool = field(default=False, compare=False)


async def add_first_users(
    client: LocalClient,
    users: Sequence[FirstUser],
    threads: Threads,
    random_bytes: Callable[[int], bytes],
    timers: Timers,
) -> list[str]:
    """Add those users that have no password for SCRAM, set passwords that are new, and return the names of these users.
    `client` speaks for the first administrator.

    Of a cluster that starts, the controller does so, and the others wait until the users are there. Raises: ApiError.
    """
    administrator = next(user for user in users if user.is_administrator)
    client.session.principal = f"User:{administrator.name}"
    for _ in range(_TRIES_MAX):
        try:
            return await _add(client, users, threads, random_bytes)
        except ApiError as error:
            if error.error is not ErrorCode.NOT_CONTROLLER:
                raise
            users = [replace(user, has_new_password=False) for user in users]
        await pause(timers, _TRIES_INTERVAL_MS)
    return await _add(client, users, threads, random_bytes)


async def _add(
    client: LocalClient, users: Sequence[FirstUser], threads: Threads, random_bytes: Callable[[int], bytes]
) -> list[str]:
    found = await client.ask(
        DescribeUserScramCredentialsRequest(users=[UserName(name=user.name) for user in users]),
        0,
        DescribeUserScramCredentialsResponse,
    )
    _check(found.error_code, found.error_message)
    there = {each.user for each in found.results if each.error_code == ErrorCode.NONE}
    changed = [user for user in users if user.name not in there or user.has_new_password]
    if not changed:
        return []
    await _permit(client, [user.name for user in users if user.name not in there and not user.is_administrator])
    for mechanism in MECHANISMS.values():
        salts = [random_bytes(SALT_BYTES) for _ in changed]
        upsertions = await threads.call(_upsertions, mechanism, changed, salts)
        request = AlterUserScramCredentialsRequest(upsertions=upsertions)
        response = await client.ask(request, 0, AlterUserScramCredentialsResponse)
        for result in response.results:
            _check(result.error_code, result.error_message)
    return [user.name for user in changed]


def _upsertions(mechanism: Hash, users: list[FirstUser], salts: list[bytes]) -> list[ScramCredentialUpsertion]:
    """The requests for users' passwords; takes milliseconds for each."""
    return [
        ScramCredentialUpsertion(
            name=user.name,
            mechanism=mechanism.type,
            iterations=ITERATIONS,
            salt=salt,
            salted_password=salted_password(mechanism.name, user.password, salt, ITERATIONS),
        )
        for user, salt in zip(users, salts, strict=True)
    ]


async def _permit(client: LocalClient, names: Sequence[str]) -> None:
    """Allow these users what `_OF_CLIENTS` has. Raises: ApiError."""
    creations = [
        AclCreation(
            resource_type=resource_type,
            resource_name=resource_name,
            resource_pattern_type=_LITERAL,
            principal=f"User:{name}",
            host="*",
            operation=operation,
            permission_type=_ALLOW,
        )
        for name in names
        for resource_type, resource_name, operation in _OF_CLIENTS
    ]
    if not creations:
        return
    response = await client.ask(CreateAclsRequest(creations=creations), _CREATE_ACLS_VERSION, CreateAclsResponse)
    for result in response.results:
        # Whoever configured another authorizer, or none, gives permissions by other means.
        if result.error_code != ErrorCode.SECURITY_DISABLED:
            _check(result.error_code, result.error_message)


def _check(code: int, message: str | None) -> None:
    if code:
        error = ErrorCode.of(code)
        raise ApiError(error, f"the first users cannot be added: {message or error.message}")
