"""What administrators do with ACLs, on a store in memory."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from barnabas.broker.security.acls.administration import LIMITS, AclAdministration, AclLimits
from barnabas.broker.security.acls.authorizer import AclAuthorizer
from barnabas.broker.security.acls.bindings import (
    ANY,
    AccessControlEntry,
    AclBinding,
    AclBindingFilter,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourcePatternFilter,
)
from barnabas.broker.security.operations import Operation, ResourceType
from barnabas.clock import ManualClock
from barnabas.controller.acl_znodes import ALLOW, StoredAcl, encode_acls
from barnabas.controller.acls import AclRepository
from barnabas.controller.coordination.embedded import EmbeddedSession, EmbeddedStore
from barnabas.controller.coordination.interface import ConnectionLost, StoreUnavailable
from barnabas.wire.errors import ApiError, ErrorCode
from tests.support.manual_timers import ManualTimers

pytestmark = pytest.mark.anyio

TOPIC = ResourcePattern(ResourceType.TOPIC, PatternType.LITERAL, "t")
PREFIX = ResourcePattern(ResourceType.TOPIC, PatternType.PREFIXED, "t")
EVERYTHING = AclBindingFilter(ResourcePatternFilter(ANY, ANY, None), None, None, ANY, ANY)


def acl(number: int, pattern: ResourcePattern = TOPIC, principal: str = "") -> AclBinding:
    who = principal or f"User:{number}"
    return AclBinding(pattern, AccessControlEntry(who, "*", Operation.READ, PermissionType.ALLOW))


@asynccontextmanager
async def administration(
    clock: ManualClock, limits: AclLimits = LIMITS
) -> AsyncIterator[tuple[AclAdministration, EmbeddedSession]]:
    store = EmbeddedStore(":memory:", clock)
    await store.open()
    session = await store.session()
    repository = AclRepository(session, clock, ManualTimers())
    acls = AclAdministration(repository, AclAuthorizer(), limits)
    await repository.start()
    yield acls, session
    await repository.stop()
    await store.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def errors_of(acls: AclAdministration, *bindings: AclBinding) -> list[ErrorCode | None]:
    return [None if error is None else error.error for error in await acls.create(bindings)]


def is_allowed(acls: AclAdministration, who: str, name: str = "t") -> bool:
    return acls.authorizer.authorize(who, "127.0.0.1", Operation.READ, ResourceType.TOPIC, name)


async def test_the_authorizer_obeys_each_change(clock: ManualClock) -> None:
    async with administration(clock) as (acls, session):
        assert not is_allowed(acls, "User:1")
        assert await errors_of(acls, acl(1), acl(2, PREFIX)) == [None, None]
        assert is_allowed(acls, "User:1")
        assert is_allowed(acls, "User:2", "tea")
        assert await session.get_children("/kafka-acl/Topic") == ["t"]
        await acls.delete([EVERYTHING])
        assert not is_allowed(acls, "User:1")
        assert not is_allowed(acls, "User:2", "tea")
        assert await session.get_children("/kafka-acl/Topic") == []


@pytest.mark.parametrize(
    ("limits", "refused"),
    [
        (AclLimits(acls_of_pattern=2), [True, True, False]),
        (AclLimits(acls=2), [True, True, True]),
        (AclLimits(bytes=1), [True, True, True]),
        (AclLimits(payload_bytes=300), [True, True, False]),
    ],
)
async def test_too_many_acls_are_refused(clock: ManualClock, limits: AclLimits, refused: list[bool]) -> None:
    async with administration(clock, limits) as (acls, _):
        assert await errors_of(acls, acl(1), acl(2)) == [None, None]
        found = await errors_of(acls, acl(3), acl(4), acl(5, PREFIX))
        assert [error is ErrorCode.INVALID_REQUEST for error in found] == refused
        assert await errors_of(acls, acl(1), acl(2)) == [None, None], "they exist"
        await acls.delete([EVERYTHING])
        assert await errors_of(acls, acl(3)) == [None]


@pytest.mark.parametrize("limits", [AclLimits(filters=2), AclLimits(listed=5)])
async def test_too_large_deletions_delete_nothing(clock: ManualClock, limits: AclLimits) -> None:
    async with administration(clock, limits) as (acls, _):
        assert await errors_of(acls, acl(1), acl(2)) == [None, None]
        with pytest.raises(ApiError, match="INVALID_REQUEST"):
            await acls.delete([EVERYTHING] * 3)
        assert is_allowed(acls, "User:1")
        assert [len(each) for each in await acls.delete([EVERYTHING] * 2)] == [2, 2]
        assert not is_allowed(acls, "User:1")


async def test_a_full_disk_refuses_changes(clock: ManualClock) -> None:
    """All ACLs of the resource pattern, and no others."""
    async with administration(clock) as (acls, session):
        assert await errors_of(acls, acl(1)) == [None]
        write = session.multi

        async def multi(operations: object) -> object:
            raise StoreUnavailable("/kafka-acl/Topic/t", "disk full")

        session.multi = multi  # type: ignore[assignment, method-assign]
        assert await errors_of(acls, acl(2), acl(3)) == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
        [[deletion]] = await acls.delete([EVERYTHING])
        assert deletion.binding == acl(1)
        assert deletion.error is not None
        assert deletion.error.error is ErrorCode.KAFKA_STORAGE_ERROR
        assert is_allowed(acls, "User:1")
        session.multi = write  # type: ignore[method-assign]
        assert await errors_of(acls, acl(2)) == [None]


async def test_a_request_waits_once_for_a_store_out_of_reach(clock: ManualClock) -> None:
    async with administration(clock) as (acls, session):
        assert await errors_of(acls, acl(1), acl(2, PREFIX)) == [None, None]
        read, reads = session.get_many, []

        async def get_many(paths: list[str], watcher: object = None) -> object:
            reads.append(paths)
            raise ConnectionLost

        session.get_many = get_many  # type: ignore[assignment, method-assign]
        assert await errors_of(acls, acl(3), acl(4, PREFIX)) == [ErrorCode.REQUEST_TIMED_OUT] * 2
        assert len(reads) == 1
        [deletions] = await acls.delete([EVERYTHING])
        assert len(reads) == 2
        assert [each.binding for each in deletions] == [acl(1), acl(2, PREFIX)]
        assert {each.error is not None and each.error.error for each in deletions} == {ErrorCode.REQUEST_TIMED_OUT}
        session.get_many = read  # type: ignore[method-assign]
        assert len((await acls.delete([EVERYTHING]))[0]) == 2


async def test_acls_that_another_broker_has_just_created_are_deleted(clock: ManualClock) -> None:
    """A filter that names the resource pattern finds them before their notification is read."""
    async with administration(clock) as (acls, session):
        await acls.repository.stop()
        created = StoredAcl("User:9", ALLOW, "READ", "*")
        await session.create("/kafka-acl/Topic/t", encode_acls([created]))
        named = EVERYTHING._replace(pattern=ResourcePatternFilter(ResourceType.TOPIC, ANY, "t"))
        [[deletion]] = await acls.delete([named])
        assert deletion.binding.entry.principal == "User:9"
        assert await session.exists("/kafka-acl/Topic/t") is None


async def test_acls_with_operations_of_a_newer_kafka_stay(clock: ManualClock) -> None:
    async with administration(clock) as (acls, session):
        strange = StoredAcl("User:1", ALLOW, "Levitate", "*")
        await session.create("/kafka-acl/Topic/t", encode_acls([strange]))
        assert await errors_of(acls, acl(1)) == [None]
        assert await acls.describe(EVERYTHING) == {TOPIC: [acl(1).entry]}
        reading = EVERYTHING._replace(operation=Operation.READ)
        assert [each.binding for each in (await acls.delete([reading]))[0]] == [acl(1)]
        assert (await session.get("/kafka-acl/Topic/t"))[0] == encode_acls([strange])
        assert await acls.describe(EVERYTHING) == {}
        assert await acls.delete([EVERYTHING]) == [[]]
        assert await session.exists("/kafka-acl/Topic/t") is None
