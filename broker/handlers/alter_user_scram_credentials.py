"""AlterUserScramCredentials (key 51): set and delete the SCRAM credentials of users (KIP-554).   Version 0.

Behaviour: on the controller. All changes of one user are made together, or none; users are independent of each other.
Clients send salted passwords: no password comes here. A credential counts for the next login of its user, on the other
brokers as soon as they hear of it; sessions go on.
Authorization: Alter on Cluster: CLUSTER_AUTHORIZATION_FAILED per user.
Errors of all users: NOT_CONTROLLER; of one: UNACCEPTABLE_CREDENTIAL (no name; fewer than 4096 or more than 16384
iterations), UNSUPPORTED_SASL_MECHANISM, DUPLICATE_RESOURCE (two changes of one credential), RESOURCE_NOT_FOUND (a
deletion of what does not exist), REQUEST_TIMED_OUT, KAFKA_STORAGE_ERROR, POLICY_VIOLATION (no room for more).
Source: ZkAdminManager.alterUserScramCredentials of Kafka 3.9.1.
"""

from __future__ import annotations

from collections.abc import Mapping

from barnabas.broker.api.authorization import may_on_cluster
from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler, WaitsFor
from barnabas.broker.configuration.changes import check_room
from barnabas.broker.security.operations import Operation
from barnabas.broker.security.sasl.scram_credentials import ITERATIONS_MAX, ITERATIONS_MIN, MECHANISMS, Credential
from barnabas.controller.sanitizer import sanitize
from barnabas.turns import Turns
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)

USERS_PER_TURN = 16
"""The number of users after which other requests have their turn."""

_NAMES: Mapping[int, str] = {of_mechanism.type: name for name, of_mechanism in MECHANISMS.items()}

Change = ScramCredentialDeletion | ScramCredentialUpsertion


async def handle(
    request: AlterUserScramCredentialsRequest, context: RequestContext
) -> AlterUserScramCredentialsResponse:
    changes: dict[str, list[Change]] = {}
    asked: list[Change] = [*request.deletions, *request.upsertions]
    for change in asked:
        changes.setdefault(change.name, []).append(change)
    refusal = _refusal(context)
    turns = Turns(USERS_PER_TURN)
    results = []
    for user, of_user in changes.items():
        await turns.after_one()
        try:
            if refusal is not None:
                raise refusal
            check_changes(user, of_user)
            await _change(user, of_user, context)
        except ApiError as error:
            results.append(
                AlterUserScramCredentialsResult(user=user, error_code=error.error, error_message=error.message)
            )
        else:
            results.append(AlterUserScramCredentialsResult(user=user))
    return AlterUserScramCredentialsResponse(results=results)


def _refusal(context: RequestContext) -> ApiError | None:
    """The error of all users, if there is one."""
    if not context.services.controller.is_active:
        return ApiError(ErrorCode.NOT_CONTROLLER)
    if not may_on_cluster(context, Operation.ALTER):
        return ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return None


def check_changes(user: str, changes: list[Change]) -> None:
    """Check the changes of a user's credentials by themselves. Raises ApiError."""
    for change in changes:
        if not user:
            raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
        if change.mechanism not in _NAMES:
            raise ApiError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
        if isinstance(change, ScramCredentialUpsertion):
            if change.iterations < ITERATIONS_MIN:
                raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
            if change.iterations > ITERATIONS_MAX:
                raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    if len({change.mechanism for change in changes}) < len(changes):
        raise ApiError(ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request")


async def _change(user: str, changes: list[Change], context: RequestContext) -> None:
    """Write a user's credentials. Raises ApiError."""
    configs = context.services.configs

    def decide(current: Mapping[str, str]) -> Mapping[str, str]:
        changed = with_changes(current, changes)
        check_room(current, changed, configs.held_bytes)
        return changed

    await configs.change("users", sanitize(user), decide)


def with_changes(current: Mapping[str, str], changes: list[Change]) -> dict[str, str]:
    """The overrides of a user after the changes of its credentials. Raises ApiError."""
    changed = dict(current)
    for change in changes:
        name = _NAMES[change.mechanism]
        if isinstance(change, ScramCredentialUpsertion):
            salted, salt = bytes(change.salted_password), bytes(change.salt)
            changed[name] = Credential.of_salted_password(name, salted, salt, change.iterations).to_text()
        elif changed.pop(name, None) is None:
            raise ApiError(ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
    return changed


HANDLER: Handler[AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse] = Handler(
    key=51, min_version=0, max_version=0, handle=handle, waits_for=WaitsFor.CONTROLLER
)
