"""ApiVersions (key 18): the APIs and versions that this broker serves.   Versions 0-4.

Behaviour: computed from the registry of handlers. To a version that is not served, the broker responds at version 0
with UNSUPPORTED_VERSION and this API's own range, so that the client can retry (KIP-511); the response header is always
version 0. From version 3 on the response contains the feature `transaction.version`: supported from 0 to 2, and its
finalised level.
Errors: INVALID_REQUEST for a client software name or version outside Kafka's pattern (version 3+); UNSUPPORTED_VERSION.
Authorization: none, as in Kafka: a client has to know the versions before it authenticates.
Versions: 3 client software, features; before 4 a supported feature whose lowest level is 0 is left out, because clients
of these versions cannot parse it (KAFKA-17011).
"""

import re
from functools import cache

from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.cluster.features import SUPPORTED_FEATURES, TRANSACTION_VERSION
from barnabas.broker.handlers import load_handler, served_apis
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

_SUPPORTED = [
    SupportedFeatureKey(name=feature.name, min_version=feature.min_version, max_version=feature.max_version)
    for feature in SUPPORTED_FEATURES
]

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(request: ApiVersionsRequest, context: RequestContext) -> ApiVersionsResponse:
    if context.api_version >= 3 and not (
        _SOFTWARE.fullmatch(request.client_software_name) and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    context.session.introduce(request.client_software_name, request.client_software_version)
    level, epoch = context.services.features.finalized
    return ApiVersionsResponse(
        api_keys=_served(),
        supported_features=_SUPPORTED if context.api_version >= 4 else [],
        finalized_features_epoch=epoch,
        finalized_features=(
            [FinalizedFeatureKey(name=TRANSACTION_VERSION.name, min_version_level=level, max_version_level=level)]
            if level
            else []
        ),
    )


def unsupported_version() -> ApiVersionsResponse:
    """The response, to be encoded at version 0, to a request of a version that is not served."""
    own = [api for api in _served() if api.api_key == HANDLER.key]
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=own)


@cache
def _served() -> list[ApiVersion]:
    versions = []
    for key in sorted(served_apis()):
        handler = load_handler(key)
        min_version = handler.min_version if handler.advertised_min is None else handler.advertised_min
        versions.append(ApiVersion(api_key=key, min_version=min_version, max_version=handler.max_version))
    return versions


HANDLER: Handler[ApiVersionsRequest, ApiVersionsResponse] = Handler(
    key=18, min_version=0, max_version=4, handle=handle, unsupported_version=unsupported_version
)
