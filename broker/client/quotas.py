"""Quotas of users, client ids and IP addresses: APIs 48 and 49 (KIP-546, KIP-612)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from barnabas.broker.client.client import KafkaClient
from barnabas.broker.client.errors import check
from barnabas.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    OpData,
    RequestEntityData,
    RequestEntryData,
)
from barnabas.wire.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"

_EXACT, _DEFAULT = range(2)

Entity = dict[str, str | None]
"""Names by types, None for the default of all without a quota of their own."""


def entity_text(entity: Entity) -> str:
    """An entity in words."""
    return ", ".join(
        f"{'any' if name is None else ''} {kind}{'' if name is None else f' {name}'}".strip()
        for kind, name in sorted(entity.items(), reverse=True)
    )


async def describe_quotas(
    client: KafkaClient, wanted: Entity, *, is_exact: bool = False
) -> list[tuple[Entity, dict[str, float]]]:
    """The quotas of the entities that have these names, and others besides unless `is_exact`. Errors: ClientError."""
    components = [
        ComponentData(entity_type=kind, match_type=_DEFAULT if name is None else _EXACT, match=name)
        for kind, name in wanted.items()
    ]
    request = DescribeClientQuotasRequest(components=components, strict=is_exact)
    response: DescribeClientQuotasResponse = await client.send(request)
    check(response.error_code, "cannot list quotas", response.error_message)
    found = [
        (
            {each.entity_type: each.entity_name for each in entry.entity},
            {value.key: value.value for value in entry.values},
        )
        for entry in response.entries or ()
    ]
    return sorted(found, key=lambda each: entity_text(each[0]))


async def alter_quotas(client: KafkaClient, entity: Entity, values: Mapping[str, float | None]) -> None:
    """Set quotas of an entity by their keys, or remove them (None). Errors: ClientError."""
    entry = RequestEntryData(
        entity=[RequestEntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()],
        ops=[OpData(key=key, value=value or 0.0, remove=value is None) for key, value in values.items()],
    )
    response: AlterClientQuotasResponse = await client.send_to_controller(AlterClientQuotasRequest(entries=[entry]))
    for answer in response.entries:
        check(answer.error_code, f"cannot change the quotas of {entity_text(entity)}", answer.error_message)
