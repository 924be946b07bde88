"""Describes and changes configs, for the commands; each request is sent to the broker that has the resource."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from barnabas.broker.client.client import ANSWER_S, KafkaClient, similar
from barnabas.broker.client.errors import ClientError, ResponseError, check, timed_out
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
)
from barnabas.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

TOPIC: Final = 2
BROKER: Final = 4
BROKER_LOGGER: Final = 8

_KINDS: Final = {TOPIC: "topic", BROKER: "broker", BROKER_LOGGER: "loggers of broker"}
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)

RESOURCES_MAX: Final = 200
"""The number of resources in one request: a broker refuses responses larger than 32 MiB, and serves no other request
while it builds one."""

ConfigResource = tuple[int, str]


def resource_text(resource: ConfigResource) -> str:
    """A resource's name in messages."""
    kind, name = resource
    return f"{_KINDS.get(kind, kind)} {name}" if name else "all brokers"


def meant_instead(code: int, keys: Iterable[str]) -> str:
    """A suggestion of similar keys for unknown keys of a topic that were refused."""
    return _proposal(TOPIC, unknown_keys(TOPIC, keys)) if code == ErrorCode.INVALID_CONFIG else ""


def unknown_keys(kind: int, keys: Iterable[str]) -> list[str]:
    """Those of the keys that neither Kafka nor Barnabas has for topics or brokers."""
    if kind == TOPIC:
        return [key for key in keys if key not in _known(TOPIC)]
    from barnabas.broker.configuration.keys import REMOVED_KEYS, broker_key

    return [
        key for key in keys if broker_key(key) is None and key not in REMOVED_KEYS and _base(key) not in _known(BROKER)
    ]


def stored_in_vain(key: str) -> str:
    """What to say of an unknown key of a broker that was set."""
    known = "no broker is known to have this config: it is stored, and has an effect only if a plugin reads it"
    return f"{key}: {known}{_proposal(BROKER, [key])}"


def _known(kind: int) -> Collection[str]:  # commands that succeed need not load these
    if kind == TOPIC:
        from barnabas.broker.configuration.topics import TOPIC_KEYS

        return TOPIC_KEYS
    from barnabas.broker.configuration.keys import BROKER_KEYS, REFUSED_KEYS

    return BROKER_KEYS.keys() | REFUSED_KEYS.keys()


def _base(key: str) -> str:
    """A key of a broker without the prefix of a listener."""
    return key.split(".", 3)[-1] if key.startswith("listener.name.") else key


def _proposal(kind: int, keys: Iterable[str]) -> str:
    found = [other for key in keys for other in similar(key, _known(kind))]
    return f"; did you mean {', '.join(found)}?" if found else ""


def _node_of(resource: ConfigResource) -> int | None:
    kind, name = resource
    return int(name) if kind in (BROKER, BROKER_LOGGER) and name.isdecimal() else None


async def describe_configs(
    client: KafkaClient,
    resources: Sequence[ConfigResource],
    keys: Collection[str] | None = None,
    *,
    include_documentation: bool = False,
) -> dict[ConfigResource, list[DescribeConfigsResourceResult]]:
    """The configs of some resources: of these keys, or all. Errors: ClientError."""
    by_node: dict[int | None, list[ConfigResource]] = {}
    for resource in resources:
        by_node.setdefault(_node_of(resource), []).append(resource)
    found: dict[ConfigResource, list[DescribeConfigsResourceResult]] = {}
    for node_id, asked in by_node.items():
        for start in range(0, len(asked), RESOURCES_MAX):
            request = _question(asked[start : start + RESOURCES_MAX], keys)
            if include_documentation and await client.supports(DescribeConfigsRequest, 3, node_id):
                request.include_documentation = True
            found |= _told(await client.send(request, node_id), keys)
    for resource in resources:
        if resource not in found:
            raise ClientError(f"the broker does not return the configs of {resource_text(resource)}")
    return found


def _question(resources: Sequence[ConfigResource], keys: Collection[str] | None) -> DescribeConfigsRequest:
    return DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(
                resource_type=kind, resource_name=name, configuration_keys=None if keys is None else list(keys)
            )
            for kind, name in resources
        ]
    )


def _told(
    response: DescribeConfigsResponse, keys: Collection[str] | None
) -> dict[ConfigResource, list[DescribeConfigsResourceResult]]:
    """The configs of each resource in a response. Errors: ClientError if one cannot be described."""
    found = {}
    for result in response.results:
        resource = (result.resource_type, result.resource_name)
        check(result.error_code, f"cannot describe {resource_text(resource)}", result.error_message)
        asked = (config for config in result.configs if keys is None or config.name in keys)
        found[resource] = sorted(asked, key=lambda config: config.name)
    return found


async def alter_configs(
    client: KafkaClient,
    kind: int,
    name: str,
    *,
    set_to: Mapping[str, str],
    delete: Sequence[str] = (),
    append: Mapping[str, str] | None = None,
    subtract: Mapping[str, str] | None = None,
    validate_only: bool = False,
) -> None:
    """Change some configs of one resource, all or none of them, or only validate the change.

    Errors: ClientError, also for the deletion of an unknown key that is not set: brokers accept it.
    """
    if delete and kind in (TOPIC, BROKER):
        await _check_deletions(client, (kind, name), delete)
    configs = [
        *(AlterableConfig(name=key, config_operation=_SET, value=value) for key, value in set_to.items()),
        *(AlterableConfig(name=key, config_operation=_DELETE, value=None) for key in delete),
        *(AlterableConfig(name=key, config_operation=_APPEND, value=value) for key, value in (append or {}).items()),
        *(
            AlterableConfig(name=key, config_operation=_SUBTRACT, value=value)
            for key, value in (subtract or {}).items()
        ),
    ]
    request = IncrementalAlterConfigsRequest(
        resources=[AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)],
        validate_only=validate_only,
    )
    response: IncrementalAlterConfigsResponse = await client.send(request, _node_of((kind, name)), wait_s=ANSWER_S)
    result = response.responses[0]
    message = result.error_message or ErrorCode.of(result.error_code).message
    message += timed_out(result.error_code, "the change may still come into effect")
    if kind == TOPIC:
        message += meant_instead(result.error_code, [config.name for config in configs])
    check(result.error_code, f"cannot change {resource_text((kind, name))}", message)


async def _check_deletions(client: KafkaClient, resource: ConfigResource, keys: Iterable[str]) -> None:
    """Raise ClientError for unknown keys, unless the resource has them: a misspelt one that was set can be deleted."""
    unknown = unknown_keys(resource[0], keys)
    if not unknown:
        return
    try:
        there = {config.name for config in (await describe_configs(client, [resource], unknown))[resource]}
    except ResponseError:
        return  # the user may change configs but not see them, or the change will be refused, too
    if missing := [key for key in unknown if key not in there]:
        told = f"there is no config {' or '.join(missing)}{_proposal(resource[0], missing)}"
        raise ClientError(f"cannot change {resource_text(resource)}: {told}")
