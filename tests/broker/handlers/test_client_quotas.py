"""AlterClientQuotas and DescribeClientQuotas on a whole broker."""

from dataclasses import replace
from pathlib import Path

import pytest

from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.local import LocalClient
from barnabas.broker.configuration.changes import ALL_OVERRIDES_BYTES_MAX
from barnabas.broker.handlers import alter_client_quotas, describe_client_quotas
from barnabas.broker.security.operations import CLUSTER_NAME, Operation, ResourceType
from barnabas.wire.errors import ErrorCode
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
from tests.broker.quotas.clients import local_client
from tests.broker.running import running

pytestmark = pytest.mark.anyio

VERSION = 1
ALICE = [("user", "alice")]
"""An entity, as a request has it."""

Parts = list[tuple[str, str | None]]


def entry(parts: Parts, **quotas: float | None) -> RequestEntryData:
    """An entity's changes; None removes a quota."""
    return RequestEntryData(
        entity=[RequestEntityData(entity_type=entity_type, entity_name=name) for entity_type, name in parts],
        ops=[OpData(key=key, value=value or 0, remove=value is None) for key, value in quotas.items()],
    )


async def alter(client: LocalClient, *entries: RequestEntryData, validate_only: bool = False) -> list[ErrorCode]:
    """The error of each entity."""
    request = AlterClientQuotasRequest(entries=list(entries), validate_only=validate_only)
    response = await client.ask(request, VERSION, AlterClientQuotasResponse)
    return [ErrorCode(each.error_code) for each in response.entries]


async def describe(
    client: LocalClient, *components: tuple[str, int, str | None], strict: bool = False
) -> dict[tuple[tuple[str, str | None], ...], dict[str, float]]:
    """The quotas of the entities found."""
    asked = [ComponentData(entity_type=each[0], match_type=each[1], match=each[2]) for each in components]
    request = DescribeClientQuotasRequest(components=asked, strict=strict)
    response = await client.ask(request, VERSION, DescribeClientQuotasResponse)
    assert response.error_code == ErrorCode.NONE
    assert response.entries is not None
    return {
        tuple((part.entity_type, part.entity_name) for part in found.entity): {v.key: v.value for v in found.values}
        for found in response.entries
    }


async def test_quotas_are_set_described_and_removed(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        client = local_client(broker, "admin")
        both: Parts = [("user", "alice"), ("client-id", None)]
        assert (
            await alter(
                client,
                entry(ALICE, producer_byte_rate=1000.0, request_percentage=12.5),
                entry(both, consumer_byte_rate=2000.0),
                entry([("ip", "10.0.0.1")], connection_creation_rate=3.0),
            )
            == [ErrorCode.NONE] * 3
        )
        assert await describe(client) == {
            (("user", "alice"),): {"producer_byte_rate": 1000, "request_percentage": 12.5},
            (("user", "alice"), ("client-id", None)): {"consumer_byte_rate": 2000},
            (("ip", "10.0.0.1"),): {"connection_creation_rate": 3},
        }
        assert list(await describe(client, ("user", 0, "alice"), strict=True)) == [(("user", "alice"),)]
        assert await alter(client, entry(ALICE, producer_byte_rate=None), entry(both, consumer_byte_rate=None)) == [
            0,
            0,
        ]
        assert await describe(client, ("user", 2, None)) == {(("user", "alice"),): {"request_percentage": 12.5}}


async def test_the_store_has_kafkas_znodes(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        client = local_client(broker, "admin")
        await alter(client, entry([("user", "CN=a"), ("client-id", "b/c")], producer_byte_rate=5.0))
        assert broker.configs.overrides("users", "CN%3Da/clients/b%2Fc") == {"producer_byte_rate": "5"}


async def test_nothing_is_changed_by_a_validation(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        client = local_client(broker, "admin")
        assert await alter(client, entry(ALICE, producer_byte_rate=1.0), validate_only=True) == [ErrorCode.NONE]
        assert await alter(client, entry(ALICE, producer_byte_rate=0.5), validate_only=True) == [
            ErrorCode.INVALID_REQUEST
        ]
        assert await describe(client) == {}


async def test_each_entity_fails_by_itself(tmp_path: Path) -> None:
    """All changes of an entity, or none; of an entity that is given twice the first."""
    async with running(tmp_path) as broker:
        client = local_client(broker, "admin")
        results = await alter(
            client,
            entry([("user", "")], producer_byte_rate=1.0),
            entry([("user", "bob")], producer_byte_rate=1.0, unknown=2.0),
            entry(ALICE, producer_byte_rate=1.0),
            entry(ALICE, producer_byte_rate=2.0),
        )
        assert results == [
            ErrorCode.INVALID_REQUEST,
            ErrorCode.INVALID_REQUEST,
            ErrorCode.NONE,
            ErrorCode.INVALID_REQUEST,
        ]
        assert await describe(client) == {(("user", "alice"),): {"producer_byte_rate": 1}}


async def test_quotas_do_not_fill_the_memory(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        client = local_client(broker, "admin")
        broker.configs.held_bytes = ALL_OVERRIDES_BYTES_MAX
        assert await alter(client, entry(ALICE, producer_byte_rate=1.0)) == [ErrorCode.POLICY_VIOLATION]


@pytest.mark.parametrize(
    ("component", "error"),
    [
        (ComponentData(entity_type="topic", match_type=2, match=None), ErrorCode.UNSUPPORTED_VERSION),
        (ComponentData(entity_type="user", match_type=9, match=None), ErrorCode.INVALID_REQUEST),
    ],
)
async def test_invalid_filters(tmp_path: Path, component: ComponentData, error: ErrorCode) -> None:
    async with running(tmp_path) as broker:
        client = local_client(broker, "admin")
        request = DescribeClientQuotasRequest(components=[component])
        response = await client.ask(request, VERSION, DescribeClientQuotasResponse)
        assert (response.error_code, response.entries) == (error, None)
        assert response.error_message


@pytest.mark.parametrize("version", [0, 1])
async def test_all_versions(tmp_path: Path, version: int) -> None:
    async with running(tmp_path) as broker:
        client = local_client(broker, "admin")
        await alter(client, entry(ALICE, producer_byte_rate=1.0))
        response = await client.ask(DescribeClientQuotasRequest(), version, DescribeClientQuotasResponse)
        assert response.entries is not None
        assert response.entries[0].entity[0].entity_name == "alice"


class Clerk:
    """An authorizer that allows nothing, and remembers the questions."""

    def __init__(self) -> None:
        self.asked: list[tuple[Operation, ResourceType, str]] = []

    def authorize(self, _principal: str, _host: str, operation: Operation, kind: ResourceType, name: str) -> bool:
        self.asked.append((operation, kind, name))
        return False

    def authorize_by_resource_type(self, *_question: object) -> bool:
        return False


async def test_who_may_not(tmp_path: Path) -> None:
    """Without ALTER_CONFIGS and DESCRIBE_CONFIGS on the cluster nothing is told or done."""
    async with running(tmp_path) as broker:
        client = local_client(broker, "admin")
        clerk = Clerk()
        context = RequestContext(replace(broker.services, authorizer=clerk), client.session, 49, VERSION, 0, "admin")
        alteration = AlterClientQuotasRequest(entries=[entry(ALICE, producer_byte_rate=1.0), entry([("user", "")])])
        altered = await alter_client_quotas.handle(alteration, context)
        described = await describe_client_quotas.handle(DescribeClientQuotasRequest(), context)
        assert [each.error_code for each in altered.entries] == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED] * 2
        assert (described.error_code, described.entries) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, None)
        assert clerk.asked == [
            (Operation.ALTER_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME),
            (Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME),
        ]
        assert broker.configs.entities("users") == []
