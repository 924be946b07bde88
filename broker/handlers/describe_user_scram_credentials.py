"""DescribeUserScramCredentials (key 50): the users with SCRAM credentials, and the iterations of each (KIP-554).
Version 0.

Behaviour: without names, all users that have any, sorted. Salts and keys are not told.
Authorization: Describe on Cluster: CLUSTER_AUTHORIZATION_FAILED.
Errors of one user: RESOURCE_NOT_FOUND (no name, no credentials), DUPLICATE_RESOURCE (named twice),
UNKNOWN_SERVER_ERROR (a credential in the metadata store is damaged).
Source: ZkAdminManager.describeUserScramCredentials of Kafka 3.9.1.
"""

from collections import Counter

from barnabas.broker.api.authorization import may_on_cluster
from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.security.operations import Operation
from barnabas.broker.security.sasl.scram_credentials import MECHANISMS, Credential
from barnabas.controller.configs import ConfigRepository
from barnabas.controller.sanitizer import desanitize, sanitize
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)


def handle(
    request: DescribeUserScramCredentialsRequest, context: RequestContext
) -> DescribeUserScramCredentialsResponse:
    if not may_on_cluster(context, Operation.DESCRIBE):
        # ApiError.fromThrowable of Kafka leaves out a message that is the code's own.
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return DescribeUserScramCredentialsResponse(error_code=error, error_message=None)
    configs = context.services.configs
    if not request.users:
        names = sorted(desanitize(name) for _, name in configs.entities("users") if "/" not in name)
        results = [_describe(name, configs) for name in names if _has_credentials(name, configs)]
        return DescribeUserScramCredentialsResponse(results=results)
    results = []
    for name, count in Counter(user.name for user in request.users).items():
        if not name:
            results.append(_failed(name, ErrorCode.RESOURCE_NOT_FOUND, "Username must not be empty"))
        elif count > 1:
            told = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
            results.append(_failed(name, ErrorCode.DUPLICATE_RESOURCE, told))
        elif not _has_credentials(name, configs):
            told = f"Attempt to describe a user credential that does not exist: {name}"
            results.append(_failed(name, ErrorCode.RESOURCE_NOT_FOUND, told))
        else:
            results.append(_describe(name, configs))
    return DescribeUserScramCredentialsResponse(results=results)


def _has_credentials(user: str, configs: ConfigRepository) -> bool:
    return not MECHANISMS.keys().isdisjoint(configs.overrides("users", sanitize(user)))


def _describe(user: str, configs: ConfigRepository) -> DescribeUserScramCredentialsResult:
    overrides = configs.overrides("users", sanitize(user))
    try:
        infos = [
            CredentialInfo(mechanism=of_name.type, iterations=Credential.from_text(overrides[name]).iterations)
            for name, of_name in MECHANISMS.items()
            if name in overrides
        ]
    except ValueError as error:
        return _failed(user, ErrorCode.UNKNOWN_SERVER_ERROR, f"A value in the metadata store is damaged: {error}")
    return DescribeUserScramCredentialsResult(user=user, credential_infos=infos)


def _failed(user: str, error: ErrorCode, message: str) -> DescribeUserScramCredentialsResult:
    return DescribeUserScramCredentialsResult(user=user, error_code=error, error_message=message)


HANDLER: Handler[DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse] = Handler(
    key=50, min_version=0, max_version=0, handle=handle, has_large_replies=True
)
