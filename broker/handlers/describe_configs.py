"""DescribeConfigs (key 32): configs of topics, brokers and loggers, with sources (KIP-133, KIP-226).   Versions 1-4.

Behaviour: null or empty key lists request all configs. BROKER with an empty name lists the dynamic defaults of all
brokers; BROKER_LOGGER lists this process's loggers. Values of unknown or password configs are not shown.
Errors per resource: UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION, INVALID_REQUEST (another broker's id, types
that are not served), POLICY_VIOLATION (a response of more than 32 MiB).
Authorization: DescribeConfigs on Topic: TOPIC_AUTHORIZATION_FAILED per resource; DescribeConfigs on Cluster (brokers,
loggers, client metrics): CLUSTER_AUTHORIZATION_FAILED per resource; DescribeConfigs on Group:
GROUP_AUTHORIZATION_FAILED per resource.
Deviations: throttle_time_ms is always 0; resource types GROUP and CLIENT_METRICS are refused (nothing here has such
configs).   Versions: 1 synonyms and sources; 3 types and documentation (KIP-569); 4 flexible.
"""

from collections.abc import Collection, Iterator, Mapping

from barnabas.broker.api.authorization import check_on_configs
from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.api.reply_room import ReplyRoom, text_bytes
from barnabas.broker.configuration.changes import BROKER, BROKER_LOGGER, TOPIC, broker_id
from barnabas.broker.configuration.definitions import INTERNAL, PASSWORD, READ_ONLY, to_text
from barnabas.broker.configuration.keys import BROKER_KEYS, broker_documentation, broker_key
from barnabas.broker.configuration.topics import (
    DEFAULT_CONFIG,
    DYNAMIC_BROKER_LOGGER_CONFIG,
    DYNAMIC_DEFAULT_BROKER_CONFIG,
    BrokerLevels,
    ConfigEntry,
    broker_synonyms,
)
from barnabas.broker.security.operations import Operation
from barnabas.controller.topics import check_topic_name
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

ENTRY_BYTES = 100
"""The size of a config or a synonym in a response, besides its texts."""

_Room = ReplyRoom[tuple[int, str, tuple[str, ...] | None], DescribeConfigsResult]


def handle(request: DescribeConfigsRequest, context: RequestContext) -> DescribeConfigsResponse:
    """One result per resource, in the order of the request."""
    room: _Room = ReplyRoom(_reply_bytes, context.services.reply_bytes_max)
    return DescribeConfigsResponse(
        results=[_described(resource, request, context, room) for resource in request.resources]
    )


def _described(
    resource: DescribeConfigsResource, request: DescribeConfigsRequest, context: RequestContext, room: _Room
) -> DescribeConfigsResult:
    keys = None if resource.configuration_keys is None else tuple(resource.configuration_keys)
    question = (resource.resource_type, resource.resource_name, keys)
    try:
        check_on_configs(context, Operation.DESCRIBE_CONFIGS, resource.resource_type, resource.resource_name)
        known = room.again(question)
        return room.first(question, _describe(resource, request, context)) if known is None else known
    except ApiError as error:
        return DescribeConfigsResult(
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            error_code=error.error,
            error_message=error.message,
        )


def _reply_bytes(result: DescribeConfigsResult) -> int:
    """The size that a result counts, in bytes: each entry counts more than it takes, since many short
    ones cost time.
    """
    return ENTRY_BYTES + sum(
        ENTRY_BYTES
        + text_bytes(entry.name)
        + text_bytes(entry.value)
        + text_bytes(entry.documentation)
        + sum(ENTRY_BYTES + text_bytes(synonym.name) + text_bytes(synonym.value) for synonym in entry.synonyms)
        for entry in result.configs
    )


def _describe(
    resource: DescribeConfigsResource, request: DescribeConfigsRequest, context: RequestContext
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(resource_type=resource.resource_type, resource_name=resource.resource_name)
    try:
        if resource.resource_type == TOPIC:
            entries = _topic_entries(resource, request, context)
        elif resource.resource_type == BROKER:
            entries = list(_broker_entries(resource, request, context))
        elif resource.resource_type == BROKER_LOGGER:
            entries = list(_logger_entries(resource, context))
        else:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {resource.resource_type}")
    except Exception as found:  # noqa: BLE001 - one entry's error does not affect the others
        error = context.services.unforeseen.refusal(found, f"resource {resource.resource_name!r}")
        result.error_code = error.error
        result.error_message = error.message
    else:
        result.configs = [_result(entry) for entry in entries]
    return result


def _topic_entries(
    resource: DescribeConfigsResource, request: DescribeConfigsRequest, context: RequestContext
) -> list[ConfigEntry]:
    check_topic_name(resource.resource_name)
    if resource.resource_name not in context.services.metadata:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{resource.resource_name}' does not exist.")
    return context.services.topic_configs.describe(
        resource.resource_name,
        resource.configuration_keys,
        include_synonyms=request.include_synonyms,
        include_documentation=request.include_documentation,
    )


def _broker_entries(
    resource: DescribeConfigsResource, request: DescribeConfigsRequest, context: RequestContext
) -> Iterator[ConfigEntry]:
    """Source: ConfigHelper.createBrokerConfigEntry."""
    levels = context.services.topic_configs.levels()
    per_broker = bool(resource.resource_name)
    if per_broker and broker_id(resource.resource_name, "Broker id") != context.services.node_id:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {context.services.node_id} or empty string, "
            f"but received {resource.resource_name}",
        )
    dynamic = levels.dynamic() if per_broker else dict(levels.cluster_wide)
    names = _listed_names(levels, dynamic) if per_broker else sorted(dynamic)
    for name in _asked(names, resource.configuration_keys):
        yield _broker_entry(name, levels, dynamic, request, per_broker=per_broker)


def _listed_names(levels: BrokerLevels, dynamic: Mapping[str, str]) -> list[str]:
    listed = {name for name, key in BROKER_KEYS.items() if key.visibility != INTERNAL}
    return sorted(listed.union(levels.static.raw, dynamic))


def _broker_entry(
    name: str, levels: BrokerLevels, dynamic: Mapping[str, str], request: DescribeConfigsRequest, *, per_broker: bool
) -> ConfigEntry:
    key = broker_key(name)
    # An unknown config may be a secret: it is not shown (KafkaConfig.maybeSensitive).
    is_sensitive = key is None or key.type == PASSWORD
    is_of_listener = key is not None and key.name != name
    names = (name, key.name) if key is not None and is_of_listener else broker_synonyms(name)
    synonyms = levels.synonyms(name, names, is_sensitive=is_sensitive)
    if not per_broker:
        synonyms = tuple(synonym for synonym in synonyms if synonym.source == DYNAMIC_DEFAULT_BROKER_CONFIG)
    return ConfigEntry(
        name=name,
        value=None if is_sensitive else _value(name, levels, dynamic, is_of_listener=is_of_listener),
        source=synonyms[0].source if synonyms else DEFAULT_CONFIG,
        is_sensitive=is_sensitive,
        read_only=key is None or key.mode == READ_ONLY or is_of_listener,
        synonyms=synonyms if request.include_synonyms else (),
        config_type=0 if key is None else key.type,
        documentation=broker_documentation(key.name) if key is not None and request.include_documentation else None,
    )


def _value(name: str, levels: BrokerLevels, dynamic: Mapping[str, str], *, is_of_listener: bool) -> str | None:
    if is_of_listener:
        return dynamic.get(name, levels.static.raw.get(name))
    return to_text(levels.static.current_value(name, dynamic))


def _logger_entries(resource: DescribeConfigsResource, context: RequestContext) -> Iterator[ConfigEntry]:
    from barnabas.broker.observability.logs import logger_levels

    if not resource.resource_name:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
    if broker_id(resource.resource_name, "Broker id") != context.services.node_id:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {context.services.node_id} but received {resource.resource_name}",
        )
    levels = logger_levels()
    for name in _asked(levels, resource.configuration_keys):
        yield ConfigEntry(name, levels[name], DYNAMIC_BROKER_LOGGER_CONFIG, False, False, (), 0, "")


def _asked(names: Collection[str], keys: Collection[str] | None) -> Iterator[str]:
    wanted = frozenset(keys or ())
    return (name for name in names if not wanted or name in wanted)


def _result(entry: ConfigEntry) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in entry.synonyms
        ],
        config_type=entry.config_type,
        documentation=entry.documentation,
    )


HANDLER: Handler[DescribeConfigsRequest, DescribeConfigsResponse] = Handler(
    key=32, min_version=1, max_version=4, handle=handle, has_large_replies=True
)
